"""TensorRT-LLM, for models on NVIDIA GPUs. Nothing of it is imported before the engine starts."""

from catenary_protocols.errors import RequestError
from catenary_tokenizers import TokenizerError, load

from catenary_worker.engines.base import EngineSetup
from catenary_worker.engines.trtllm.api import check_installed
from catenary_worker.engines.trtllm.engine import TrtEngine
from catenary_worker.engines.trtllm.settings import TrtSettings

__all__ = ["TrtEngine", "TrtSettings", "trtllm"]


def trtllm(setup: EngineSetup) -> TrtEngine:
    """The factory of the entry point. Raises `RequestError` that names the wrong setting, or says how to install it."""
    settings = TrtSettings.read(setup.options)
    check_installed()
    try:
        tokenizer = load(setup.directory)
    except TokenizerError as error:
        raise RequestError(str(error), code="invalid_value", field="path") from error
    return TrtEngine(
        setup.directory,
        settings,
        eos=tuple(sorted(tokenizer.eos_ids)),
        context=setup.context or tokenizer.context_length or 0,
        on_phase=setup.on_phase,
    )
