"""How long a client waits for its next token when the worker that runs its turn is killed."""

import asyncio
import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from catenary_runtime.presence import AGAIN_S, BEAT_S

from tests.faults.stand import Stand, standing
from tests.faults.turns import LONG, Clients

KILLS = 5
SILENCE_MS = 1500
AGAIN_MS = round((BEAT_S + AGAIN_S) * 1000)


def measure() -> dict[str, Any]:
    """Pauses in milliseconds, beside what it takes to notice a death: by silence, and where the broker tells of it."""
    return {"by_silence": _measured(SILENCE_MS, advisories=False), "by_advisory": _measured(AGAIN_MS, advisories=True)}


def _measured(detection_ms: int, *, advisories: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        pauses = asyncio.run(_kills(Path(folder), advisories=advisories))
    return {
        "detection_ms": detection_ms,
        "pause_ms": {"median": round(statistics.median(pauses)), "most": round(max(pauses))},
    }


async def _kills(folder: Path, *, advisories: bool) -> list[float]:
    async with standing(folder, time_scale=0.5, advisories=advisories) as stand:
        clients = Clients(stand)
        await clients.truth(LONG)
        pauses = []
        for _ in range(KILLS):
            pauses.append(await _pause(clients, stand))
            await stand.whole()
        return pauses


async def _pause(clients: Clients, stand: Stand) -> float:
    body = {**LONG, "max_tokens": 400}
    async with clients.turns(body) as (turn,):
        await turn.begun()
        stand.parts[await stand.watch.holding("worker", turn.turn_id)].kill()
        killed = time.monotonic()
        await turn.answer()
        return max(later - max(earlier, killed) for earlier, later in pairwise(turn.times) if later > killed) * 1000
