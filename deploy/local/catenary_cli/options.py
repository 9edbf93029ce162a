"""What a mesh is made from: flags over `CATENARY_*` over `catenary.toml` over defaults, read once."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from catenary_frontend.settings import FrontendSettings
from catenary_protocols.bus.subjects import Subjects
from catenary_runtime.config import ConfigError, Loaded, Settings, load, read_file
from catenary_runtime.hub import is_hub_id
from catenary_tool_dispatch.registry import DEMO
from catenary_tool_dispatch.registry import load as load_tools
from catenary_tool_dispatch.settings import ToolDispatchSettings

from catenary_cli.models import Model, read_models


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """What was said on the command line; None and "" were not.

    Attributes:
        model: a model directory, a GGUF file or a hub id, to serve alone.
        model_path: model directory of a GGUF file that has no vocabulary we read.
        nats: an external broker; without one the launcher runs its own.
        nats_port: of its own broker, if free; 0 for any.
        environment: more for every process.
    """

    config: str = ""
    host: str = ""
    port: int | None = None
    tls_cert: str = ""
    tls_key: str = ""
    workers: int | None = None
    engine: str = ""
    model: str = ""
    model_path: str = ""
    time_scale: float | None = None
    nats: str = ""
    nats_port: int = 4222
    namespace: str = ""
    data_dir: str = ""
    sim_script: bool = False
    verbose: bool = False
    ready_s: float = 60.0
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What holds, after all sources were read.

    Attributes:
        tls_cert: of the HTTP APIs, "" for plain HTTP.
        broker: URL of the external broker, "" to run our own.
        registry: file of the tools that tool-dispatch runs.
        tools: names in it.
    """

    flags: Flags
    common: Settings
    host: str
    port: int
    tls_cert: str
    tls_key: str
    broker: str
    models: tuple[Model, ...]
    registry: Path
    tools: tuple[str, ...]

    @property
    def data_dir(self) -> Path:
        """Where the mesh keeps its files."""
        return Path(self.common.data_dir)

    @property
    def subjects(self) -> Subjects:
        """Of the mesh's namespace."""
        return Subjects(self.common.namespace)


def resolve(flags: Flags, environ: Mapping[str, str] = os.environ) -> Options:
    """Read files, environment and flags; raises `ConfigError` or `RegistryError`."""
    config = ["--config", flags.config] if flags.config else []
    named = [
        f"--{name}={value}"
        for name, value in (("nats", flags.nats), ("namespace", flags.namespace), ("data-dir", flags.data_dir))
        if value
    ]
    common: Loaded[Settings] = load(Settings, "mesh", [*config, *named], environ)
    front = load(FrontendSettings, "frontend", [*config, *_frontend(flags)], environ).settings
    named_tools = load(ToolDispatchSettings, "tool_dispatch", config, environ).settings.registry
    registry = Path(named_tools) if named_tools else DEMO
    return Options(
        flags=flags,
        common=common.settings,
        host=front.host,
        port=front.port,
        tls_cert=front.tls_cert,
        tls_key=front.tls_key,
        broker="" if common.origins["nats"] == "default" else common.settings.nats,
        models=tuple(_models(flags, flags.config or environ.get("CATENARY_CONFIG", ""))),
        registry=registry,
        tools=tuple(load_tools(registry)),
    )


def _frontend(flags: Flags) -> Sequence[str]:
    port = "" if flags.port is None else str(flags.port)
    said = {"host": flags.host, "port": port, "tls-cert": flags.tls_cert, "tls-key": flags.tls_key}
    return [f"--{name}={value}" for name, value in said.items() if value]


def _models(flags: Flags, file: str) -> list[Model]:
    if flags.model or flags.model_path:
        return [_override(_given(flags), flags)]
    path, tables = read_file(file)
    models = read_models(tables["models"], str(path)) if tables.get("models") else [Model()]
    return [_override(model, flags) for model in models]


def _given(flags: Flags) -> Model:
    """The model of the flags, under its file's name or hub id; a machine that has it has room for it once."""
    for flag, said in (("model", flags.model), ("model-path", flags.model_path)):
        if said and not Path(said).exists() and not is_hub_id(said):
            raise ConfigError(f"--{flag} is {said}, which is not there", field=flag.replace("-", "_"))
    path = Path(flags.model or flags.model_path)
    gguf = path.suffix == ".gguf"
    if flags.model and flags.model_path and not gguf:
        raise ConfigError(f"--model-path goes with a GGUF file, and --model is {path}", field="model_path")
    return Model(
        name=path.stem if gguf else flags.model if is_hub_id(flags.model) else path.resolve().name,
        path=flags.model_path or flags.model,
        engine="llamacpp" if gguf else "sim",
        workers=1,
        options={"gguf": str(path.resolve())} if gguf and flags.model_path else {},
    )


def _override(model: Model, flags: Flags) -> Model:
    """Flags stand over the file, for every model; `--time-scale` is the simulator's."""
    workers = model.workers if flags.workers is None else flags.workers
    if workers < 1:
        raise ConfigError(f"--workers is {workers}; at least 1 is needed", field="workers")
    changed = msgspec.structs.replace(model, workers=workers, engine=flags.engine or model.engine)
    if flags.time_scale is not None and changed.engine == "sim":
        changed = msgspec.structs.replace(changed, options={**changed.options, "time_scale": flags.time_scale})
    return changed
