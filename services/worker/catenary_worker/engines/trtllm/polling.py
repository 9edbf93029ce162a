"""KV events and statistics, fetched while the engine has something to do.

Both come only with iterations, so an idle engine is left in peace. Before the first request the engine has neither
(and fails if asked), and an older version's stream is over whenever it was quiet: each round asks anew.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from catenary_protocols.errors import EngineError

from catenary_worker.engines.trtllm.boundary import foreign

QUIET_ROUNDS = 10
"""Empty rounds after the last turn ended before nobody asks any more."""
_GROWTH = 1.5


@dataclass(frozen=True, slots=True)
class Source:
    """One stream of the engine's.

    Attributes:
        fetch: `LLM.get_kv_cache_events_async` or `LLM.get_stats_async`.
        wait_s: how long one round waits for the first item.
        shortest_s, longest_s: between rounds; the pause grows while nothing comes.
        take: gets what a round brought, in order.
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
    stopped: bool = False


async def round_of(fetch: Callable[..., Any], wait_s: float) -> list[object]:
    """What is there now. Raises `EngineError`."""
    items: list[object] = []
    with foreign("told of itself"):
        async for item in fetch(timeout=wait_s):
            if isinstance(item, list):
                items += item
            else:
                items.append(item)
    return items


async def poll(source: Source, engine: Activity) -> None:
    """Ask until the engine stops, while it has something to do."""
    pause, quiet = source.shortest_s, 0
    while not engine.stopped:
        if quiet > QUIET_ROUNDS and not engine.running():
            engine.busy.clear()
        await engine.busy.wait()
        try:
            items = await round_of(source.fetch, source.wait_s)
        except EngineError:
            items = []
            source.failed()
        if items:
            source.take(items)
        pause, quiet = (source.shortest_s, 0) if items else (min(pause * _GROWTH, source.longest_s), quiet + 1)
        await asyncio.sleep(pause)
