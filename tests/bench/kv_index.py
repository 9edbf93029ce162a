"""What the kv-indexer's table costs: blocks stored a second, a lookup, bytes a block, stalls, and memory under churn.

CPU time of one core. Run in a process of its own (memory is the process's resident set).
"""

from __future__ import annotations

import gc
import os
import random
import statistics
import struct
import time
from pathlib import Path
from typing import Any

from catenary_kv_indexer.core.index import BlockIndex, Holder
from catenary_kv_indexer.core.indexer import Indexer
from catenary_protocols.bus.codec import Decoder, encode
from catenary_protocols.bus.messages import KvEvents, KvStored, OverlapQuery

PAGE = os.sysconf("SC_PAGE_SIZE")
PROMPT_BLOCKS = 3250
EVENT_BLOCKS = 128
ROUNDS = 200


def measure() -> dict[str, Any]:
    """Figures by name; the sizes they were taken at are in the names."""
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


def growth(distinct: int) -> dict[str, Any]:
    """Eight workers fill the index: every block is held by one to eight of them."""
    index = BlockIndex()
    holders = [index.open(f"w{n}") for n in range(8)]
    hashes = blocks(distinct, 1)
    gc.collect()
    before = rss()
    slowest = 0.0
    began = time.process_time()
    for start in range(0, distinct, EVENT_BLOCKS):
        at = time.thread_time()
        index.store(holders[start // EVENT_BLOCKS % 8], hashes[start : start + EVENT_BLOCKS])
        slowest = max(slowest, time.thread_time() - at)
    took = time.process_time() - began
    grown = rss() - before
    for holder in holders[:4]:  # a shared half
        index.store(holder, hashes[: distinct // 2])
    shared = rss() - before
    began = time.process_time()
    for start in range(0, distinct, EVENT_BLOCKS):
        index.remove(holders[start // EVENT_BLOCKS % 8], hashes[start : start + EVENT_BLOCKS])
    removed = time.process_time() - began
    tidied = tidy(index, holders)
    label = f"{distinct // 1_000_000}m"
    return {
        f"stored_{label}_per_s": distinct / took,
        f"removed_{label}_per_s": distinct / removed,
        f"bytes_per_block_{label}": grown / distinct,
        f"bytes_per_block_shared_{label}": shared / distinct,
        f"slowest_event_{label}_ms": slowest * 1e3,
        f"slowest_tidy_{label}_ms": tidied * 1e3,
    }


def tidy(index: BlockIndex, holders: list[Holder]) -> float:
    """Give everything up; the longest step of wiping it."""
    for holder in holders:
        index.give_up(holder)
    slowest, more = 0.0, True
    while more:
        at = time.thread_time()
        more = index.tidy()
        slowest = max(slowest, time.thread_time() - at)
    return slowest


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
    began = time.process_time()
    for frame in frames:
        indexer.events(events(frame))
    took = time.process_time() - began
    query = encode(
        OverlapQuery(model="m", block_size=16, hashes=struct.pack(f"<{PROMPT_BLOCKS}Q", *range(PROMPT_BLOCKS)))
    )
    answered = timed(lambda: encode(indexer.overlap(queries(query))))
    return {"wire_stored_per_s": len(hashes) / took, "wire_query_ms": answered * 1e3}


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
        for _ in range(64):
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
