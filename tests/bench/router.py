"""What a routing decision costs at 64 workers.

The decision is measured whole: a turn arrives, its overlap is known, the placement comes out. CPU time of one core.
"""

from __future__ import annotations

import random
import statistics
import struct
import time
from typing import Any

from catenary_protocols.bus.messages import Overlap, Placement, PlaceTurn, WorkerLoad, WorkerOverlap
from catenary_protocols.ids import TurnKey
from catenary_router.core.cost import Weights
from catenary_router.core.desk import Desk
from catenary_router.core.placement import POLICIES
from catenary_router.core.room import Limits

WORKERS = 64
BLOCKS = 3250
BLOCK = 16
ROUNDS = 500


def measure() -> dict[str, Any]:
    """Milliseconds of CPU by name."""
    cold, settling = decision("kv", cold=True)
    return {f"decision_{policy}_ms": decision(policy)[0] * 1e3 for policy in POLICIES} | {
        "beat_ms": beat() * 1e3,
        "decision_cold_prompt_ms": cold * 1e3,
        "after_the_answer_cold_prompt_ms": settling * 1e3,
    }


def seeded(seed: int) -> random.Random:
    """The same numbers each time."""
    return random.Random(seed)  # noqa: S311  reproducible, not secret


def desk(policy: str) -> Desk:
    """A desk that knows 64 busy workers."""
    weights = Weights()
    one = Desk(router="r", policy=POLICIES[policy](weights, seeded(1)), weights=weights, limits=Limits(), now=0.0)
    for number in range(WORKERS):
        one.fleet.heard(load(number, 100.0), 100.0)
    return one


def load(number: int, now: float) -> WorkerLoad:
    """A beat."""
    return WorkerLoad(
        worker=f"w{number}",
        incarnation=1,
        model="m",
        card="c",
        block_size=BLOCK,
        running=number % 20,
        max_batch=256,
        kv_total=100_000,
        kv_used=1000,
        decode_ms=8.0,
        prefill_tokens_per_s=40_000.0,
        sent_at=now,
    )


def decision(policy: str, *, cold: bool = False) -> tuple[float, float]:
    """Median seconds until the answer and after it; of a prompt of 52,000 tokens whose session is known, or new."""
    one = desk(policy)
    hashes = seeded(2).randbytes(8 * BLOCKS)
    overlap = Overlap(
        workers=()
        if cold
        else tuple(WorkerOverlap(worker=f"w{n}", blocks=BLOCKS - 40 * (n + 1)) for n in range(WORKERS)),
        known=tuple(f"w{n}" for n in range(WORKERS)),
    )
    times: list[float] = []
    after: list[float] = []
    for number in range(ROUNDS):
        now = 100.0 + number / 100
        if cold:
            hashes = seeded(number).randbytes(8 * BLOCKS)
        turn = PlaceTurn(
            turn=TurnKey(turn_id=f"t{number}"),
            tokenizer="t",
            tokenizer_incarnation=1,
            model="m",
            card="c",
            block_size=BLOCK,
            hashes=hashes[:-8] + struct.pack("<Q", number),
            prompt_tokens=BLOCKS * BLOCK + 3,
            session=f"s{number % 50}",
            arrived_at=now,
            max_tokens=500,
        )
        began = time.thread_time()
        one.arrive(turn, "reply", now)
        outcome = one.overlap(turn.turn, overlap, now)
        answered = time.thread_time()
        one.settle()
        after.append(time.thread_time() - answered)
        times.append(answered - began)
        if not isinstance(outcome.answers[0].answer, Placement):
            raise TypeError(f"no placement: {outcome}")
        for worker in range(WORKERS):
            one.fleet.heard(load(worker, now), now + 1)
    return statistics.median(times), statistics.median(after)


def beat() -> float:
    """Median seconds to take a worker's beat in."""
    one = desk("kv")
    times: list[float] = []
    for number in range(ROUNDS):
        message = load(number % WORKERS, 101.0)
        began = time.thread_time()
        one.fleet.heard(message, 101.0)
        one.pump(101.0)
        times.append(time.thread_time() - began)
    return statistics.median(times)
