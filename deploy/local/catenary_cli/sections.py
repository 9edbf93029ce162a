"""The settings class of each table of `catenary.toml`."""

from collections.abc import Mapping

from catenary_frontend.settings import FrontendSettings
from catenary_kv_indexer.settings import KvIndexerSettings
from catenary_router.settings import RouterSettings
from catenary_runtime.config import Settings
from catenary_tokenizer_service.settings import TokenizerSettings
from catenary_tool_dispatch.settings import ToolDispatchSettings
from catenary_worker.settings import WorkerSettings

SECTIONS: Mapping[str, type[Settings]] = {
    "mesh": Settings,
    "frontend": FrontendSettings,
    "tokenizer": TokenizerSettings,
    "router": RouterSettings,
    "kv_indexer": KvIndexerSettings,
    "worker": WorkerSettings,
    "tool_dispatch": ToolDispatchSettings,
}
