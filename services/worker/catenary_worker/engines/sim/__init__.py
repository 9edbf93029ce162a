"""The simulator: an engine whose GPU is a clock and whose model is a small agent."""

from catenary_protocols.errors import RequestError
from catenary_tokenizers import TokenizerError, load

from catenary_worker.engines.base import EngineSetup
from catenary_worker.engines.sim.engine import SimEngine
from catenary_worker.engines.sim.settings import SimSettings
from catenary_worker.engines.sim.writing import render_for

__all__ = ["SimEngine", "SimSettings", "sim"]

_CONTEXT = 32_768
"""Tokens, for a model directory that does not say."""


def sim(setup: EngineSetup) -> SimEngine:
    """The factory of the entry point. Raises `RequestError` that names the wrong setting."""
    settings = SimSettings.read(setup.options)
    render = render_for(setup.parser, setup.reasoning)
    try:
        tokenizer = load(setup.directory)
    except TokenizerError as error:
        raise RequestError(str(error), code="invalid_value", field="path") from error
    context = setup.context or tokenizer.context_length or _CONTEXT
    return SimEngine(tokenizer, render, settings, context)
