"""A stand-in for `tensorrt_llm`: signatures, events and manners of 1.1, 1.2 and 1.4, on the paged core without a GPU.

    with standin("1.2") as gpu:
        engine = TrtEngine(…)       # finds the stand-in when it imports tensorrt_llm
        gpu.llm.calls               # what generate_async was given

It is as strict as the original where that matters: unknown arguments raise, results are cumulative and one object, a
`SamplingParams` is written to, events before the first request fail, the oldest of too many are dropped.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from unittest.mock import patch

from catenary_worker.engines.trtllm.standin.events import Version
from catenary_worker.engines.trtllm.standin.llm import StandIn, llm_of
from catenary_worker.engines.trtllm.standin.types import (
    ARGUMENTS,
    KV_CACHE,
    CppExecutorError,
    GuidedDecodingParams,
    KvCacheRetentionConfig,
    LoRARequest,
    Model,
    RequestError,
    disaggregated_params,
    sampling_params,
)

__all__ = ["CppExecutorError", "RequestError", "StandIn", "Version", "standin"]


@contextmanager
def standin(version: Version) -> Iterator[StandIn]:
    """Let `import tensorrt_llm` find a stand-in of this version. Its constructor is not held up."""
    gpu = StandIn(version)
    gpu.gate.set()
    with patch.dict(sys.modules, _modules(gpu)):
        yield gpu
    gpu.gate.set()


def _modules(gpu: StandIn) -> dict[str, ModuleType]:
    policies: dict[str, object] = {"capacity_scheduler_policy": None}
    names: dict[str, object] = {}
    if gpu.version == "1.4":
        policies["waiting_queue_policy"] = "FCFS"
        names["WaitingQueuePolicy"] = SimpleNamespace(FCFS="FCFS", PRIORITY="PRIORITY")
    names |= {
        "KvCacheConfig": _model("KvCacheConfig", KV_CACHE),
        "SchedulerConfig": _model("SchedulerConfig", policies),
        "TorchLlmArgs": _model("TorchLlmArgs", dict.fromkeys(ARGUMENTS)),
        "GuidedDecodingParams": GuidedDecodingParams,
        "KvCacheRetentionConfig": KvCacheRetentionConfig,
        "DisaggregatedParams": disaggregated_params(gpu.version),
        "CacheTransceiverConfig": _model("CacheTransceiverConfig", {"backend": None, "max_tokens_in_buffer": None}),
    }
    lora = _model("LoraConfig", {"lora_dir": [], "max_lora_rank": 64, "max_loras": 4})
    contents: dict[str, dict[str, object]] = {
        "tensorrt_llm": {"LLM": llm_of(gpu), "SamplingParams": sampling_params(gpu.version)},
        "tensorrt_llm.llmapi": names,
        "tensorrt_llm.executor": {"RequestError": RequestError, "CppExecutorError": CppExecutorError},
        "tensorrt_llm.executor.request": {"LoRARequest": LoRARequest},
        "tensorrt_llm.lora_helper": {"LoraConfig": lora},
    }
    modules: dict[str, ModuleType] = {}
    for path, content in contents.items():
        module = modules[path] = ModuleType(path)
        module.__dict__.update(content)
        parent, _, name = path.rpartition(".")
        if parent:
            setattr(modules[parent], name, module)
    return modules


def _model(name: str, fields: object) -> type[Model]:
    return type(name, (Model,), {"model_fields": fields})
