"""The table: overlap by a few probes equals overlap by looking at every block; tiers, ranks, memory."""

import sys
import time
from collections.abc import Sequence
from itertools import pairwise

from catenary_kv_indexer.core.apart import Apart
from catenary_kv_indexer.core.index import DEVICE, DISK, HOST, BlockIndex, Holder
from catenary_kv_indexer.core.indexer import FIRST_BEATS_S, SILENT_S, Indexer
from catenary_protocols.bus.messages import KvEvents, KvRemoved, KvStored, OverlapQuery, WorkerLoad
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

PROMPT = [(at * 0x9E37_79B9_7F4A_7C15) & 0xFFFF_FFFF_FFFF_FFFF for at in range(1, 200)]


def depths(index: BlockIndex, hashes: Sequence[int]) -> dict[int, int]:
    return {holder.bit: blocks for holder, blocks in index.overlap(hashes)}


@given(st.lists(st.integers(0, 199), max_size=70), st.integers(0, 199))
def test_overlap_is_every_holders_own_prefix(lengths: list[int], asked: int) -> None:
    index = BlockIndex()
    want: dict[int, int] = {}
    for length in lengths:
        holder = index.open("w")
        index.store(holder, PROMPT[:length])
        if min(length, asked):
            want[holder.bit] = min(length, asked)
    assert depths(index, PROMPT[:asked]) == want


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 199), st.booleans()), max_size=60))
def test_blocks_and_digest_follow_what_is_held(script: list[tuple[int, int, bool]]) -> None:
    index = BlockIndex()
    holders = [index.open(f"w{n}") for n in range(4)]
    held: list[set[int]] = [set() for _ in holders]
    for who, length, store in script:
        if store:
            index.store(holders[who], PROMPT[:length])
            held[who] |= set(PROMPT[:length])
        else:
            index.remove(holders[who], PROMPT[length:])
            held[who] -= set(PROMPT[length:])
    for holder, blocks in zip(holders, held, strict=True):
        folded = 0
        for one in blocks:
            folded ^= one
        assert (holder.blocks, holder.digest) == (len(blocks), folded)
        assert set(index.blocks_of(holder)) == blocks


tiers = st.sampled_from([DEVICE, HOST, DISK])


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9), tiers), max_size=60))
def test_a_block_is_held_while_any_tier_has_it(script: list[tuple[bool, int, int]]) -> None:
    index = BlockIndex()
    holder = index.open("w")
    truth: dict[int, int] = {}
    for store, block, tier in script:
        if store:
            index.store(holder, [PROMPT[block]], tier)
            truth[block] = truth.get(block, 0) | tier
        else:
            index.remove(holder, [PROMPT[block]], tier)
            truth[block] = truth.get(block, 0) & ~tier
        assert {block for block in range(10) if index.holds(holder, PROMPT[block])} == {
            block for block, where in truth.items() if where
        }


def test_a_holder_given_up_is_gone_at_once_and_its_bit_comes_back_after_tidying() -> None:
    index = BlockIndex()
    first, other = index.open("w0"), index.open("w1")
    index.store(first, PROMPT)
    index.store(other, PROMPT[:5])
    index.give_up(first)
    assert depths(index, PROMPT) == {other.bit: 5}
    assert index.open("w2").bit not in {first.bit, other.bit}
    while index.tidy():
        pass
    assert len(index) == 5
    reborn = index.open("w3")
    assert reborn.bit == first.bit
    assert depths(index, PROMPT) == {other.bit: 5}


def test_memory_is_given_back() -> None:
    index = BlockIndex()
    holder = index.open("w")
    before = size_of(index)
    hashes = [(n * 0x9E37_79B9_7F4A_7C15) & 0xFFFF_FFFF_FFFF_FFFF for n in range(300_000)]
    index.store(holder, hashes)
    full = size_of(index)
    index.remove(holder, hashes)
    for _ in range(1024):
        index.tidy()
    assert full > 10 * size_of(index)
    assert size_of(index) <= 2 * before


def test_wiping_what_the_dead_held_takes_many_small_steps() -> None:
    index = BlockIndex()
    first, second = index.open("w0"), index.open("w1")
    hashes = [(n * 0x9E37_79B9_7F4A_7C15) & 0x003F_FFFF_FFFF_FFFF for n in range(5_000)]  # all in one small dict
    index.store(first, hashes)
    index.store(second, hashes[:100])
    index.give_up(first)
    wiped = [len(index)]
    while index.tidy():
        wiped.append(len(index))
    assert wiped[-1] == len(index) == 100
    assert max(before - after for before, after in pairwise(wiped)) <= 512


def size_of(index: BlockIndex) -> int:
    return sum(map(sys.getsizeof, index._shards))


def test_no_step_is_long_while_the_table_grows() -> None:
    """Single dicts stay small, so that growing one costs little."""
    index = BlockIndex()
    holder = index.open("w")
    slowest = 0.0
    for start in range(0, 400_000, 100):
        hashes = [(n * 0x9E37_79B9_7F4A_7C15) & 0xFFFF_FFFF_FFFF_FFFF for n in range(start, start + 100)]
        began = time.thread_time()
        index.store(holder, hashes)
        slowest = max(slowest, time.thread_time() - began)
    assert slowest < 0.01
    assert max(map(len, index._shards)) < 600


@given(st.permutations(range(12)))
def test_blocks_apart_are_adopted_with_their_whole_line_in_any_order(order: list[int]) -> None:
    apart = Apart()
    held: set[int] = {0}
    for child in order:
        block, parent = child + 1, child // 2
        if parent in held:
            held.add(block)
            adopted = [one for one, _ in apart.adopt([block])]
            for one in adopted:
                assert (one - 1) // 2 in held
                held.add(one)
        else:
            apart.put(parent, [block], DEVICE)
    assert held == set(range(13))
    assert len(apart) == 0


def test_blocks_apart_are_bounded_and_what_is_pushed_out_is_counted() -> None:
    apart = Apart(limit=10)
    apart.put(1, range(100, 125), DEVICE)
    assert len(apart) == 10
    assert apart.pushed_out == 15


def packed(hashes: Sequence[int]) -> bytes:
    return b"".join(one.to_bytes(8, "little") for one in hashes)


def message(first: int, *events: KvStored | KvRemoved, rank: int = 0, block_size: int = 4) -> KvEvents:
    return KvEvents(worker="w0", incarnation=1, model="m", block_size=block_size, first=first, events=events, rank=rank)


def overlap(indexer: Indexer, hashes: Sequence[int]) -> dict[str, int]:
    answer = indexer.overlap(OverlapQuery(model="m", block_size=4, hashes=packed(hashes)))
    return {one.worker: one.blocks for one in answer.workers}


def known(indexer: Indexer) -> bool:
    return indexer.workers["w0"].known


def test_a_workers_best_rank_counts_and_all_must_be_known() -> None:
    indexer = Indexer()
    load = WorkerLoad(worker="w0", incarnation=1, model="m", card="c", block_size=4, kv_last=(1, 1))
    indexer.events(message(1, KvStored(hashes=packed(PROMPT[:3]))))
    indexer.load(load, 1.0)
    assert not known(indexer)
    indexer.events(message(1, KvStored(hashes=packed(PROMPT[:5])), rank=1))
    assert known(indexer)
    assert overlap(indexer, PROMPT[:9]) == {"w0": 5}
    indexer.events(message(2, KvRemoved(hashes=packed(PROMPT[:5])), rank=1))
    assert overlap(indexer, PROMPT[:9]) == {"w0": 3}


def test_a_block_stored_twice_stays_until_its_rank_and_the_other_have_lost_it_as_often() -> None:
    indexer, told, blocks = Indexer(), [0, 0], packed(PROMPT[:3])

    def after(rank: int, event: KvStored | KvRemoved) -> dict[str, int]:
        told[rank] += 1
        indexer.events(message(told[rank], event, rank=rank))
        return overlap(indexer, PROMPT[:9])

    for rank in (0, 1):
        assert after(rank, KvStored(hashes=blocks)) == {"w0": 3}
        assert after(rank, KvStored(hashes=blocks, tier="host")) == {"w0": 3}
    assert after(0, KvRemoved(hashes=blocks)) == {"w0": 3}
    assert after(1, KvRemoved(hashes=blocks, tier="host")) == {"w0": 3}
    assert after(0, KvRemoved(hashes=blocks, tier="host")) == {"w0": 3}, "the other rank has it"
    assert after(1, KvRemoved(hashes=blocks)) == {}


def test_an_unknown_parent_is_not_guessed_and_waits() -> None:
    indexer = Indexer()
    indexer.events(message(1, KvStored(hashes=packed(PROMPT[2:4]), parent=PROMPT[1])))
    assert overlap(indexer, PROMPT[:9]) == {}
    assert indexer.counts["parent_unknown"] == 2
    indexer.events(message(2, KvStored(hashes=packed(PROMPT[:2]))))
    assert overlap(indexer, PROMPT[:9]) == {"w0": 4}


def test_bytes_that_are_no_hashes_are_counted_and_mended_by_a_snapshot() -> None:
    indexer = Indexer()
    indexer.events(message(1, KvStored(hashes=b"odd")))
    assert indexer.counts["malformed"] == 1
    assert not known(indexer)
    assert len(indexer.questions(1.0)) == 1


def test_another_block_size_in_one_incarnation_is_refused_and_counted() -> None:
    indexer = Indexer()
    indexer.events(message(1, KvStored(hashes=packed(PROMPT[:2]))))
    indexer.events(message(2, KvStored(hashes=packed(PROMPT[2:4]), parent=PROMPT[1]), block_size=8))
    assert indexer.counts["block_size"] == 1
    assert overlap(indexer, PROMPT[:9]) == {"w0": 2}


def test_silent_divergence_shows_in_the_digest() -> None:
    indexer = Indexer()
    indexer.events(message(1, KvStored(hashes=packed(PROMPT[:2]))))
    load = WorkerLoad(
        worker="w0", incarnation=1, model="m", card="c", block_size=4, kv_last=(1,), kv_digest=(PROMPT[0] ^ PROMPT[1],)
    )
    indexer.load(load, 1.0)
    assert known(indexer)
    lie = WorkerLoad(
        worker="w0", incarnation=1, model="m", card="c", block_size=4, kv_last=(1,), kv_digest=(PROMPT[0],)
    )
    indexer.load(lie, 2.0)
    assert indexer.counts["diverged"] == 1
    assert not known(indexer)
    assert indexer.questions(2.0)


def test_a_worker_that_serves_but_sends_no_events_is_named() -> None:
    indexer = Indexer()
    load = WorkerLoad(worker="w0", incarnation=1, model="m", card="c", block_size=4, kv_used=3, kv_last=(0,))
    indexer.load(load, 1.0)
    indexer.load(load, 1.0 + SILENT_S)
    assert indexer.mute(1.0 + SILENT_S) == ["w0"]
    indexer.events(message(1, KvStored(hashes=packed(PROMPT[:2]))))
    indexer.load(WorkerLoad(worker="w0", incarnation=1, model="m", card="c", block_size=4, kv_last=(1,)), 9.0)
    assert indexer.mute(99.0) == []


def test_an_engine_without_events_is_never_known() -> None:
    indexer = Indexer()
    load = WorkerLoad(worker="w0", incarnation=1, model="m", card="c", block_size=4, kv_last=(0,), kv_events="none")
    indexer.load(load, 1.0)
    assert indexer.overlap(OverlapQuery(model="m", block_size=4, hashes=b"")).known == ()
    assert indexer.warm(1.0)


def test_a_worker_that_only_a_dump_tells_of_holds_up_nobody_and_is_forgotten() -> None:
    before, indexer = Indexer(), Indexer()
    before.events(message(1, KvStored(hashes=packed(PROMPT[:3]))))
    before.events(replace(message(1, KvStored(hashes=packed(PROMPT[:5]))), worker="w1"))
    indexer.restore(before.dump())
    assert overlap(indexer, PROMPT[:9]) == {"w0": 3, "w1": 5}
    indexer.load(WorkerLoad(worker="w0", incarnation=1, model="m", card="c", block_size=4, kv_last=(1,)), 0.2)
    assert not indexer.warm(FIRST_BEATS_S)
    assert indexer.warm(FIRST_BEATS_S + 0.1)
    indexer.forget_unheard()
    assert overlap(indexer, PROMPT[:9]) == {"w0": 3}
    assert known(indexer)
    while indexer.tidy(100):
        pass
    assert len(indexer.indexes["m", 4]) == 3


def test_a_holder_is_small() -> None:
    assert not hasattr(Holder(1, "w"), "__dict__")


def test_a_worker_that_beats_before_its_engine_is_up_is_mirrored_once_it_is() -> None:
    indexer = Indexer()
    indexer.load(WorkerLoad(worker="w0", incarnation=1, model="m", card="", block_size=0, ready=False), 1.0)
    indexer.load(WorkerLoad(worker="w0", incarnation=1, model="m", card="c", block_size=4, kv_last=(0,)), 2.0)
    indexer.events(message(1, KvStored(hashes=packed(PROMPT[:3]))))
    assert known(indexer)
    assert overlap(indexer, PROMPT[:9]) == {"w0": 3}
