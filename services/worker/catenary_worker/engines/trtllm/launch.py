"""Settings to the arguments of `LLM(...)`."""

import os
from pathlib import Path
from typing import Any

from catenary_protocols.errors import RequestError

from catenary_worker.engines.trtllm.api import Api, fields_of, known
from catenary_worker.engines.trtllm.settings import TrtSettings

GIB = 1 << 30
KV_NEEDED = frozenset({"enable_block_reuse", "event_buffer_max_size", "tokens_per_block"})
EVENTS_GATHER_MS = 5


def llm_arguments(settings: TrtSettings, api: Api, model: Path, context: int) -> dict[str, Any]:
    """What this version takes of what we want. Raises `RequestError` for a wrong key under `llm`.

    Without chunked prefill, a prompt longer than a step is refused; without perf metrics nobody hears of cached tokens;
    without iteration statistics there are none. A guide needs the tokenizer inside the engine, though turns are ids.
    """
    for name in settings.llm:
        if name not in api.arguments:
            message = f"this version of TensorRT-LLM has no LLM argument {name!r}"
            raise RequestError(message, code="unsupported", field=f"trtllm.llm.{name}")
    guided = settings.guide != "none"
    wanted: dict[str, object] = {
        "skip_tokenizer_init": not guided,
        "dtype": settings.dtype,
        "max_batch_size": settings.max_batch,
        "max_num_tokens": settings.max_batched_tokens,
        "return_perf_metrics": True,
        "enable_iter_perf_stats": True,
    }
    needed: dict[str, object] = {
        "model": str(model),
        "enable_chunked_prefill": True,
        "kv_cache_config": _kv_cache(settings, api),
        "tensor_parallel_size": settings.tensor_parallel,
        "pipeline_parallel_size": settings.pipeline_parallel,
    }
    if context:
        needed["max_seq_len"] = context
    if settings.expert_parallel:
        needed["moe_expert_parallel_size"] = settings.expert_parallel
    if settings.attention_dp:
        needed["enable_attention_dp"] = True
    if guided:
        needed["guided_decoding_backend"] = settings.guide
    if api.takes_priority:
        policies = getattr(api.llmapi, "WaitingQueuePolicy", None)
        policy = "PRIORITY" if policies is None else policies.PRIORITY
        needed["scheduler_config"] = api.llmapi.SchedulerConfig(waiting_queue_policy=policy)
    if settings.loras:
        needed |= {"enable_lora": True, "lora_config": _loras(settings)}
    needed |= _half(settings, api, context) | settings.llm
    return known({**wanted, **needed}, api.arguments, needed=frozenset(needed))


def _kv_cache(settings: TrtSettings, api: Api) -> Any:
    kind = api.llmapi.KvCacheConfig
    wanted: dict[str, object] = {
        "enable_block_reuse": True,
        "event_buffer_max_size": settings.event_buffer,
        "free_gpu_memory_fraction": settings.memory_fraction,
        "tokens_per_block": settings.block_size,
        "dtype": settings.kv_dtype,
    }
    if settings.host_cache_gib:
        wanted["host_cache_size"] = int(settings.host_cache_gib * GIB)
    if settings.attention_dp:
        wanted["attention_dp_events_gather_period_ms"] = EVENTS_GATHER_MS
    return kind(**known(wanted, fields_of(kind), needed=KV_NEEDED))


def _half(settings: TrtSettings, api: Api, context: int) -> dict[str, object]:
    """What a split engine needs: a way for blocks; with the overlap scheduler, the prefill half would be refused.

    A buffer that the longest prompt does not fit into stops the worker for good.
    """
    if settings.role == "full":
        return {}
    kind = api.llmapi.CacheTransceiverConfig
    wanted: dict[str, object] = {"backend": settings.transfer}
    if context:
        wanted["max_tokens_in_buffer"] = context
    transfer = kind(**known(wanted, fields_of(kind), needed=frozenset({"backend"})))
    overlap = {"disable_overlap_scheduler": True} if settings.role == "prefill" else {}
    return {"cache_transceiver_config": transfer, **overlap}


def _loras(settings: TrtSettings) -> Any:
    from tensorrt_llm.lora_helper import LoraConfig

    return LoraConfig(
        lora_dir=list(settings.loras.values()), max_lora_rank=settings.lora_rank, max_loras=len(settings.loras)
    )


def allow_mpi() -> None:
    """Open MPI starts a worker for each GPU, and refuses to do it for root (a container's user) unless told."""
    if os.geteuid() == 0:
        os.environ.setdefault("OMPI_ALLOW_RUN_AS_ROOT", "1")
        os.environ.setdefault("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
