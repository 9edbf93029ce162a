"""Settings of a worker."""

from dataclasses import dataclass

import msgspec
from catenary_parsers import format_named, reasoning_named
from catenary_runtime.config import Settings, option

DEFAULT_MODEL = "catenary-sim"
DETECTED = "auto"


def _check_parser(name: str) -> None:
    if name:
        format_named(name)


def _check_reasoning(name: str) -> None:
    if name != DETECTED:
        reasoning_named(name)


def engine_options(text: str) -> dict[str, object]:
    """The engine's settings; raises `ValueError` for what is no JSON object."""
    try:
        return msgspec.json.decode(text, type=dict[str, object])
    except msgspec.DecodeError as error:
        raise ValueError(f"not a JSON object: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings(Settings):
    """Settings of catenary-worker."""

    model: str = option(DEFAULT_MODEL, "Name under which the model is served.")
    model_path: str = option("", "Model directory, GGUF file, or hub id (org/name); left out: the embedded model.")
    parser: str = option("", "Format of the model's tool calls; left out: read from its template.", check=_check_parser)
    reasoning: str = option(
        DETECTED, "Format of the model's reasoning; auto is the call format's own.", check=_check_reasoning
    )
    context: int = option(0, "Tokens a turn may have; 0 leaves it to the model.")
    engine: str = option("sim", "Engine, by its name in the entry-point group catenary.engines.")
    engine_options: str = option("{}", "The engine's own settings, a JSON object.", check=engine_options)
    tags: tuple[str, ...] = option((), "What this worker is known for: a turn may ask for workers with some tags.")
    sim_script: bool = option(False, "Let tests tell the simulator what to say.")
