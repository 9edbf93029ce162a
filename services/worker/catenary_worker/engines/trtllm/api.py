"""The installed TensorRT-LLM: its names, and which keywords this version takes.

Rule: nothing asks for a version number. What a version can do is read from signatures and fields; what it cannot is
left out of the call, and out of the features.
"""

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from catenary_protocols.errors import EngineError, RequestError

PACKAGE = "tensorrt_llm"
HOW_TO_GET_IT = (
    "TensorRT-LLM is not installed. It needs Linux, an NVIDIA GPU and Python 3.12: "
    "pip install 'catenary-worker[trtllm]' with NVIDIA's package index as --extra-index-url"
)


@dataclass(frozen=True, slots=True)
class Api:
    """What of TensorRT-LLM the adapter uses.

    Attributes:
        llmapi: the module with the LLM API's types.
        request_error: what a result raises if it alone failed; anything else means that the engine is broken.
        call: keywords of `LLM.generate_async`.
        arguments: keywords of `LLM(...)`.
    """

    llmapi: Any
    llm: Any
    sampling: Any
    lora_request: Any
    request_error: type[Exception]
    call: frozenset[str]
    arguments: frozenset[str]

    @property
    def takes_priority(self) -> bool:
        """The engine's own queue can be ordered."""
        return "priority" in self.call and "waiting_queue_policy" in fields_of(self.llmapi.SchedulerConfig)


def check_installed() -> None:
    """Raises `RequestError` (field `engine`) that says how to get it; looks, and imports nothing."""
    if find_spec(PACKAGE) is None:
        raise RequestError(HOW_TO_GET_IT, code="unsupported", field="engine")


def load_api() -> Api:
    """Import it, which takes seconds. Raises what the import raises."""
    import tensorrt_llm
    from tensorrt_llm import executor, llmapi
    from tensorrt_llm.executor.request import LoRARequest

    return Api(
        llmapi=llmapi,
        llm=tensorrt_llm.LLM,
        sampling=tensorrt_llm.SamplingParams,
        lora_request=LoRARequest,
        request_error=executor.RequestError,
        call=frozenset(inspect.signature(tensorrt_llm.LLM.generate_async).parameters),
        arguments=frozenset(inspect.signature(tensorrt_llm.LLM.__init__).parameters) | fields_of(llmapi.TorchLlmArgs),
    )


def fields_of(kind: Any) -> frozenset[str]:
    """Fields of one of its types: pydantic model, dataclass, or anything with a signature."""
    fields: Iterable[str] | None = getattr(kind, "model_fields", None)
    return frozenset(inspect.signature(kind).parameters if fields is None else fields)


def known(
    wanted: Mapping[str, object], taken: frozenset[str], *, needed: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """`wanted` without what this version does not take. Raises `EngineError` if something `needed` is not taken."""
    if missing := sorted(needed - taken):
        raise EngineError(f"this version of TensorRT-LLM does not know {', '.join(missing)}")
    return {name: value for name, value in wanted.items() if name in taken}
