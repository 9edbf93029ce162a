"""KV events and statistics, fetched while the engine has something to do.

Both come only with iterations, so an idle engine is left in peace. Before the first request the engine has neither
(and fails if asked). An older version's stream is over for good whenever it was quiet for a moment, until the next
request comes or somebody says that it is not: each round does.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from catenary_protocols.errors import EngineError

from catenary_worker.engines.trtllm.boundary import foreign

QUIET_ROUNDS = 10
"""Empty rounds after the last turn ended before nobody asks any more."""
PATIENCE_S = 5.0
"""Beyond what a round was told to wait."""
_GROWTH = 1.5


@dataclass(frozen=True, slots=True)
class Source:
    """One stream of the engine's.

    Attributes:
        fetch: `LLM.get_kv_cache_events_async` or `LLM.get_stats_async`.
        wait_s: how long to wait for an item before the round is over.
        shortest_s, longest_s: between rounds; the pause grows while nothing comes.
        take: gets what comes, in order.
        failed: a round failed.
    """

    fetch: Callable[..., Any]
    wait_s: float
    shortest_s: float
    longest_s: float
    take: Callable[[list[object]], None]
    failed: Callable[[], None]


@dataclass(slots=True)
class Activity:
    """Whether there is something to ask for.

    Attributes:
        running: whether the engine has turns.
        busy: set with every request.
        stopped: ends polling; a cancel alone can get lost in what is awaited.
    """

    running: Callable[[], bool]
    busy: asyncio.Event = field(default_factory=asyncio.Event)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)


async def told(fetch: Callable[..., Any], wait_s: float) -> AsyncIterator[list[object]]:
    """One round: what comes, until nothing came for `wait_s`; with a busy engine that is never.

    Raises `EngineError`, also if there is no answer at all.
    """
    with foreign("told of itself"):
        stream = aiter(fetch(timeout=wait_s))
        if hasattr(stream, "mark_undone"):
            stream.mark_undone()
        while True:
            async with asyncio.timeout(wait_s + PATIENCE_S):
                item = await anext(stream, None)
            if item is None:
                return
            yield item if isinstance(item, list) else [item]


async def poll(source: Source, engine: Activity) -> None:
    """Ask until the engine stops, while it has something to do."""
    pause, quiet = source.shortest_s, 0
    while not engine.stopped.is_set():
        if quiet > QUIET_ROUNDS and not engine.running():
            engine.busy.clear()
        await engine.busy.wait()
        pause, quiet = min(pause * _GROWTH, source.longest_s), quiet + 1
        try:
            async for items in told(source.fetch, source.wait_s):
                if items:
                    source.take(items)
                    pause, quiet = source.shortest_s, 0
                if engine.stopped.is_set():
                    return
        except EngineError:
            source.failed()
        await asyncio.sleep(pause)
