"""Types of the LLM API, as strict as the original's, and which names each version knows."""

from collections.abc import Mapping
from dataclasses import dataclass, field, make_dataclass
from datetime import timedelta
from typing import Any, ClassVar

from catenary_worker.engines.trtllm.standin.events import Version

_FIRST = "inputs sampling_params lora_request"
_MIDDLE = "streaming kv_cache_retention_config disaggregated_params"
CALLS: Mapping[Version, str] = {
    "1.1": f"{_FIRST} prompt_adapter_request {_MIDDLE} _postproc_params scheduling_params",
    "1.2": f"{_FIRST} prompt_adapter_request {_MIDDLE} trace_headers _postproc_params scheduling_params cache_salt",
    "1.4": f"{_FIRST} {_MIDDLE} trace_headers _postproc_params scheduling_params cache_salt "
    "conversation_params priority",
}
"""Parameters of `generate_async`."""
ARGUMENTS = frozenset(
    [
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "moe_expert_parallel_size",
        "enable_attention_dp",
        "max_batch_size",
        "max_num_tokens",
        "max_seq_len",
        "enable_chunked_prefill",
        "return_perf_metrics",
        "enable_iter_perf_stats",
        "guided_decoding_backend",
        "kv_cache_config",
        "scheduler_config",
        "enable_lora",
        "lora_config",
        "stream_interval",
        "cache_transceiver_config",
        "disable_overlap_scheduler",
    ]
)
"""Keywords of `LLM` beside those in its signature."""
KV_CACHE: Mapping[str, object] = {
    "enable_block_reuse": True,
    "event_buffer_max_size": 0,
    "free_gpu_memory_fraction": 0.9,
    "tokens_per_block": 32,
    "dtype": "auto",
    "host_cache_size": None,
    "attention_dp_events_gather_period_ms": 5,
}
_SAMPLING = (
    "end_id pad_id stop_token_ids embedding_bias temperature top_p top_k min_p seed min_tokens repetition_penalty "
    "presence_penalty frequency_penalty guided_decoding logprobs"
)


class RequestError(RuntimeError):
    """One request failed."""


class CppExecutorError(RuntimeError):
    """The executor is dead."""


class Model:
    """Like a pydantic model that forbids extra fields."""

    model_fields: ClassVar[Mapping[str, object]] = {}

    def __init__(self, **values: object) -> None:
        if unknown := values.keys() - self.model_fields.keys():
            raise ValueError(f"extra fields not permitted: {sorted(unknown)}")
        self.__dict__.update({**self.model_fields, **values})


class GuidedDecodingParams:
    """At most one guide."""

    def __init__(self, json: object = None, regex: object = None, structural_tag: object = None) -> None:
        if sum(guide is not None for guide in (json, regex, structural_tag)) > 1:
            raise ValueError("only one guide can be used")
        self.json, self.structural_tag = json, structural_tag


def disaggregated_params(version: Version) -> Any:
    """The class `DisaggregatedParams`: what a half is told, and what it leaves behind."""
    names = ["request_type", "first_gen_tokens", "ctx_request_id", "opaque_state", "draft_tokens"]
    later = ["disagg_request_id", "ctx_dp_rank", "ctx_info_endpoint"] if version == "1.4" else []
    return make_dataclass("DisaggregatedParams", [(name, Any, None) for name in [*names, *later]], kw_only=True)


class KvCacheRetentionConfig:
    """Of a prompt's ranges, and of what is generated."""

    @dataclass
    class TokenRangeRetentionConfig:
        """`token_end` None is the rest."""

        token_start: int
        token_end: int | None
        priority: int
        duration_ms: timedelta | None

    def __init__(self, ranges: list[Any], decode_retention_priority: int = 35, decode_duration_ms: Any = None) -> None:
        if not 0 <= decode_retention_priority <= 100 or not isinstance(decode_duration_ms, timedelta | None):
            raise TypeError("incompatible constructor arguments")
        self.ranges, self.priority, self.duration = ranges, decode_retention_priority, decode_duration_ms


@dataclass
class LoRARequest:
    """An adapter."""

    name: str
    adapter_id: int
    path: str


def sampling_params(version: Version) -> Any:
    """The class `SamplingParams`."""
    later = ["prompt_ignore_length"] if version == "1.4" else []
    fields: list[Any] = [(name, Any, field(default=None)) for name in [*_SAMPLING.split(), *later]]
    fields.append(("max_tokens", int, field(default=32)))
    fields += [(name, bool, field(default=True)) for name in ("detokenize", "add_special_tokens")]
    off = ("include_stop_str_in_output", "ignore_eos", "return_perf_metrics")
    fields += [(name, bool, field(default=False)) for name in off]
    return make_dataclass("SamplingParams", fields, kw_only=True)
