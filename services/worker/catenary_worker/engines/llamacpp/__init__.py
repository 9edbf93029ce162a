"""llama.cpp, for GGUF models on CPUs and laptops. Nothing of it is imported before it is asked for."""

from pathlib import Path
from typing import TYPE_CHECKING

from catenary_protocols.errors import RequestError
from catenary_tokenizers import TokenizerError, load

from catenary_worker.engines.base import EngineSetup
from catenary_worker.engines.llamacpp.server import check_installed
from catenary_worker.engines.llamacpp.settings import LlamaSettings

if TYPE_CHECKING:
    from catenary_worker.engines.llamacpp.engine import LlamaEngine

__all__ = ["LlamaSettings", "llamacpp"]

_CONTEXT = 16_384
"""Tokens of a slot where nobody says how many: a KV cache that fits beside a laptop's model."""


def llamacpp(setup: EngineSetup) -> "LlamaEngine":
    """The factory of the entry point. Raises `RequestError` that names the wrong setting, or says how to install it."""
    settings = LlamaSettings.read(setup.options)
    check_installed()
    from catenary_worker.engines.llamacpp.engine import LlamaEngine

    file = _file(setup, settings)
    try:
        tokenizer = load(setup.directory)
    except TokenizerError as error:
        raise RequestError(str(error), code="invalid_value", field="path") from error
    context = setup.context or min(tokenizer.context_length or _CONTEXT, _CONTEXT)
    return LlamaEngine(file, tokenizer, settings, context, setup.on_phase)


def _file(setup: EngineSetup, settings: LlamaSettings) -> Path:
    """The GGUF file: as set, else the model's own, else the only one in its directory."""
    given = Path(settings.gguf) if settings.gguf else setup.file
    found = [given] if given else sorted(setup.directory.glob("*.gguf"))
    if len(found) != 1:
        message = f"{setup.directory} holds {len(found)} GGUF files: name one"
        raise RequestError(message, code="invalid_value", field="llamacpp.gguf")
    if not found[0].is_file():
        raise RequestError(f"{found[0]} is no file", code="invalid_value", field="llamacpp.gguf")
    return found[0]
