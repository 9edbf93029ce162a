"""The first request: before it TensorRT-LLM tells neither KV events nor statistics, and a few facts only then.

What was configured is not what is: some models change the block size or switch block reuse off. So the facts are read
from the running engine, and an engine that tells no KV events is declared as such.
"""

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from catenary_protocols.errors import EngineError

from catenary_worker.engines.base import EngineTurn
from catenary_worker.engines.trtllm.boundary import foreign
from catenary_worker.engines.trtllm.polling import told
from catenary_worker.engines.trtllm.requests import RequestWriter
from catenary_worker.engines.trtllm.wire import KvCacheStats, read_stats

ROUNDS = 5
"""Requests after which an engine that told nothing of itself is taken to tell nothing."""
WAIT_S = 0.1


@dataclass(frozen=True, slots=True)
class Facts:
    """What runs.

    Attributes:
        blocks: of one rank's KV cache.
        events: KV events of the first request, as they came.
    """

    context: int
    block_size: int
    blocks: int
    events: list[object] = field(default_factory=list)

    @property
    def tells_events(self) -> bool:
        """Whether block reuse and its events are on."""
        return bool(self.events)


async def warm_up(llm: Any, writer: RequestWriter, context: int) -> Facts:
    """Run one token, more than once if it takes that. Raises `EngineError` for an engine that is of no use."""
    events: list[object] = []
    cache = _capacity(llm)
    for number in range(ROUNDS):
        turn = EngineTurn("warm-up", array("I", [number]), ignore_eos=True, temperature=0.0)
        with foreign("ran its first request"):
            async for _ in llm.generate_async(**writer.write(turn, 1)):
                pass
        events += await _round(llm.get_kv_cache_events_async)
        if cache is None:
            cache = _size(await _round(llm.get_stats_async))
        if events and cache is not None:
            break
    if cache is None:
        raise EngineError("TensorRT-LLM tells nothing of its KV cache")
    context = context or getattr(llm.args, "max_seq_len", None) or 0
    if not context:
        raise EngineError("nobody knows how long a turn may be: set `context`")
    return Facts(context, cache.tokens_per_block, cache.max_num_blocks, events)


async def _round(fetch: Callable[..., Any]) -> list[object]:
    return [item async for items in told(fetch, WAIT_S) for item in items]


def _capacity(llm: Any) -> KvCacheStats | None:
    """Newer versions say it without a request."""
    if not hasattr(llm, "get_kv_cache_capacity"):
        return None
    with foreign("told its capacity"):
        return _size([{"kvCacheStats": llm.get_kv_cache_capacity()}])


def _size(statistics: list[object]) -> KvCacheStats | None:
    for raw in reversed(statistics):
        said = read_stats(raw)
        if said is not None and said.cache is not None and said.cache.max_num_blocks:
            return said.cache
    return None
