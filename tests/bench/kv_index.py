"""What the kv-indexer's table costs: blocks stored a second, a lookup, bytes a block, stalls, and memory under churn.

CPU time of one core; what ends in `_wall` is by the wall's clock, which neighbours slow down. Run in a process of its own
(memory is the process's resident set).
"""

from __future__ import annotations

import gc
import os
import random
import statistics
import struct
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from catenary_kv_indexer.core.index import BlockIndex, Holder
from catenary_kv_indexer.core.indexer import Indexer
from catenary_kv_indexer.service import TIDY_STEPS
from catenary_protocols.bus.codec import Decoder, encode
from catenary_protocols.bus.messages import KvEvents, KvStored, OverlapQuery

PAGE = os.sysconf("SC_PAGE_SIZE")
PROMPT_BLOCKS = 3250
EVENT_BLOCKS = 128
ROUNDS = 200


def measure() -> dict[str, Any]:
    """Figures by name; the sizes they were taken at are in the names."""
    gc.freeze()  # as a service does when it begins
    results: dict[str, Any] = {}
    for millions in (1, 5):
        results |= growth(millions * 1_000_000)
    results |= lookups()
    results |= wire()
    results |= churn()
    return results


def rss() -> int:
    """Resident bytes of this process."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * PAGE


def seeded(seed: int) -> random.Random:
    """The same numbers each time."""
    return random.Random(seed)  # noqa: S311  reproducible, not secret


def blocks(count: int, seed: int) -> memoryview:
    """Random hashes, which are what xxh3 gives."""
    return memoryview(seeded(seed).randbytes(8 * count)).cast("Q")


class Clock:
    """Seconds of work and its longest piece, by CPU time and by the wall's."""

    def __init__(self) -> None:
        self.cpu = self.wall = self.slowest_cpu = self.slowest_wall = 0.0

    def time(self, piece: Callable[[], object]) -> None:
        """Do one piece."""
        wall, cpu = time.perf_counter(), time.thread_time()
        piece()
        cpu, wall = time.thread_time() - cpu, time.perf_counter() - wall
        self.cpu += cpu
        self.wall += wall
        self.slowest_cpu = max(self.slowest_cpu, cpu)
        self.slowest_wall = max(self.slowest_wall, wall)

    def rate(self, name: str, count: int) -> dict[str, float]:
        """So many a second."""
        return {f"{name}_per_s": count / self.cpu, f"{name}_per_s_wall": count / self.wall}

    def slowest(self, name: str) -> dict[str, float]:
        """The longest piece."""
        return {f"slowest_{name}_ms": 1e3 * self.slowest_cpu, f"slowest_{name}_ms_wall": 1e3 * self.slowest_wall}


def growth(distinct: int) -> dict[str, Any]:
    """Eight workers fill the index, four of them hold half of it too, half is removed, one worker dies, then all do."""
    index = BlockIndex()
    holders = [index.open(f"w{n}") for n in range(8)]
    hashes = blocks(distinct, 1)
    gc.collect()
    before = rss()
    storing, removing = Clock(), Clock()
    for start in range(0, distinct, EVENT_BLOCKS):
        holder, event = holders[start // EVENT_BLOCKS % 8], hashes[start : start + EVENT_BLOCKS]
        storing.time(partial(index.store, holder, event))
    grown = rss() - before
    for holder in holders[:4]:  # a shared half
        index.store(holder, hashes[: distinct // 2])
    shared = rss() - before
    for start in range(distinct // 2, distinct, EVENT_BLOCKS):
        holder, event = holders[start // EVENT_BLOCKS % 8], hashes[start : start + EVENT_BLOCKS]
        removing.time(partial(index.remove, holder, event))
    one_dead = buried(index, holders[:1])
    all_dead = buried(index, holders[1:])
    size = f"{distinct // 1_000_000}m"
    return {
        **storing.rate(f"stored_{size}", distinct),
        **removing.rate(f"removed_{size}", distinct // 2),
        f"bytes_per_block_{size}": grown / distinct,
        f"bytes_per_block_shared_{size}": shared / distinct,
        f"bytes_left_{size}": (rss() - before) / distinct,
        **storing.slowest(f"event_{size}"),
        **one_dead.slowest(f"tidy_one_dead_{size}"),
        **all_dead.slowest(f"tidy_all_dead_{size}"),
    }


def buried(index: BlockIndex, holders: list[Holder]) -> Clock:
    """Give them up, and wipe what they held; a piece is what the service does in one round."""
    for holder in holders:
        index.give_up(holder)
    clock, more = Clock(), True

    def tidy() -> None:
        nonlocal more
        for _ in range(TIDY_STEPS):
            more = index.tidy()

    while more:
        clock.time(tidy)
    return clock


def lookups() -> dict[str, Any]:
    """One prompt of 3,250 blocks against 64 workers that hold prefixes of it of any length."""
    index = BlockIndex()
    prompt = blocks(PROMPT_BLOCKS, 2)
    rng = seeded(3)
    for number in range(64):
        index.store(index.open(f"w{number}"), prompt[: rng.randrange(PROMPT_BLOCKS)])
    index.store(index.open("filler"), blocks(1_000_000, 4))
    one_owner = blocks(PROMPT_BLOCKS, 5)
    index.store(index.open("owner"), one_owner)
    miss = blocks(PROMPT_BLOCKS, 6)
    return {
        "lookup_64_workers_ms": timed(lambda: index.overlap(prompt)) * 1e3,
        "lookup_one_owner_ms": timed(lambda: index.overlap(one_owner)) * 1e3,
        "lookup_miss_ms": timed(lambda: index.overlap(miss)) * 1e3,
    }


def wire() -> dict[str, Any]:
    """Events and queries with their decoding and encoding, as the service handles them."""
    events: Decoder[KvEvents] = Decoder(KvEvents)
    queries: Decoder[OverlapQuery] = Decoder(OverlapQuery)
    indexer = Indexer()
    hashes = blocks(500_000, 7)
    frames = [
        encode(
            KvEvents(
                worker=f"w{number % 8}",
                incarnation=1,
                model="m",
                block_size=16,
                first=number // 8 + 1,
                events=(KvStored(hashes=hashes[start : start + EVENT_BLOCKS].tobytes()),),
            )
        )
        for number, start in enumerate(range(0, len(hashes), EVENT_BLOCKS))
    ]
    clock = Clock()
    for frame in frames:
        clock.time(partial(_apply, indexer, events, frame))
    query = encode(
        OverlapQuery(model="m", block_size=16, hashes=struct.pack(f"<{PROMPT_BLOCKS}Q", *range(PROMPT_BLOCKS)))
    )
    answered = timed(lambda: encode(indexer.overlap(queries(query))))
    return {**clock.rate("wire_stored", len(hashes)), "wire_query_ms": answered * 1e3}


def _apply(indexer: Indexer, decode: Decoder[KvEvents], frame: bytes) -> None:
    indexer.events(decode(frame))


def churn() -> dict[str, Any]:
    """Ten million blocks through an index of half a million: what memory does."""
    index = BlockIndex()
    holder = index.open("w")
    live: list[memoryview] = []
    after: dict[int, int] = {}
    for step in range(100):
        fresh = blocks(100_000, 100 + step)
        index.store(holder, fresh)
        live.append(fresh)
        if len(live) > 5:
            index.remove(holder, live.pop(0))
        for _ in range(64 * TIDY_STEPS):
            index.tidy()
        after[step + 1] = rss()
    return {"churn_rss_mb_after_1m": after[10] / 1e6, "churn_rss_mb_after_10m": after[100] / 1e6}


def timed(work: Any) -> float:
    """Median seconds of CPU."""
    times: list[float] = []
    for _ in range(ROUNDS):
        began = time.thread_time()
        work()
        times.append(time.thread_time() - began)
    return statistics.median(times)
