"""The adapter's own settings: `trtllm = { … }` of a model in `catenary.toml`."""

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from catenary_protocols.errors import RequestError

_Count = Annotated[int, msgspec.Meta(ge=1)]
AbortPolicy = Literal["always", "after_first_token", "never"]
ABORTS: Mapping[str, AbortPolicy] = {"full": "always", "decode": "after_first_token", "prefill": "never"}
"""What is safe for a role: a cancel while KV blocks travel between two engines has wedged both."""


class TrtSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How TensorRT-LLM is to run.

    Attributes:
        role: `full`, or one half of a split engine; decides what of a turn it takes, and how turns are cancelled.
        transfer: how KV blocks go from the prefilling half to the decoding one.
        abort: overrides what the role says of cancelling.
        tensor_parallel, pipeline_parallel: GPUs.
        expert_parallel: GPUs that share the experts of a mixture; 0 leaves it to the engine.
        attention_dp: each GPU attends to turns of its own; it is then a rank with a KV cache of its own.
        max_batch, max_batched_tokens: most of one step.
        max_waiting: turns that may wait beside those in the engine.
        memory_fraction: of the memory that is free when the weights are loaded, for the KV cache.
        block_size: tokens in a KV block.
        host_cache_gib: KV cache in the host's memory, behind the GPU's.
        dtype, kv_dtype: of weights and KV cache.
        guide: who constrains decoding; `none` lets the engine do without a tokenizer.
        loras: adapters by name, each a directory.
        lora_rank: the greatest of theirs.
        event_buffer: KV events the engine keeps for us; it drops the oldest when they are more.
        stop_s: patience with a shutdown that may hang.
        llm: further arguments of `LLM(...)`, as they are.
    """

    role: Literal["full", "prefill", "decode"] = "full"
    transfer: Literal["DEFAULT", "UCX", "NIXL", "MPI"] = "DEFAULT"
    abort: AbortPolicy | None = None
    tensor_parallel: _Count = 1
    pipeline_parallel: _Count = 1
    expert_parallel: Annotated[int, msgspec.Meta(ge=0)] = 0
    attention_dp: bool = False
    max_batch: _Count = 256
    max_batched_tokens: _Count = 8192
    max_waiting: _Count = 4096
    memory_fraction: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.9
    block_size: Annotated[int, msgspec.Meta(ge=2)] = 32
    host_cache_gib: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    dtype: str = "auto"
    kv_dtype: str = "auto"
    guide: Literal["xgrammar", "llguidance", "none"] = "xgrammar"
    loras: dict[str, str] = {}
    lora_rank: _Count = 64
    event_buffer: Annotated[int, msgspec.Meta(ge=16_384)] = 65_536
    stop_s: Annotated[float, msgspec.Meta(gt=0)] = 30.0
    llm: dict[str, object] = {}

    @classmethod
    def read(cls, options: Mapping[str, object]) -> "TrtSettings":
        """From configuration. Raises `RequestError` that names the wrong key."""
        try:
            settings = msgspec.convert(options, cls)
        except msgspec.ValidationError as error:
            _, _, path = str(error).partition("`$.")
            field = f"trtllm.{path.rstrip('`')}" if path else "trtllm"
            raise RequestError(f"trtllm: {error}", code="invalid_value", field=field) from error
        if settings.block_size & (settings.block_size - 1):
            message = f"trtllm: block_size must be a power of two, not {settings.block_size}"
            raise RequestError(message, code="invalid_value", field="trtllm.block_size")
        return settings

    @property
    def aborts(self) -> AbortPolicy:
        """When a cancelled turn is aborted in the engine."""
        return self.abort or ABORTS[self.role]

    @property
    def ranks(self) -> int:
        """KV caches that number their events apart."""
        return self.tensor_parallel if self.attention_dp else 1
