"""TensorRT-LLM's KV events to ours: what is left out, what is forgotten, and what is proved again."""

from array import array
from typing import Any

import pytest
from catenary_worker.engines.base import Cleared, KvEvent, Removed, Stored
from catenary_worker.engines.trtllm.kv_events import KvTranslator
from catenary_worker.engines.trtllm.private import GRACE_S, PrivateTurns

SIZE = 4
Json = dict[str, Any]


def block(name: int | str, tokens: list[Any] | None = None, **more: Any) -> Json:
    ids = [int(str(name)[:6], 16) * 10 + at for at in range(SIZE)] if tokens is None else tokens
    spelled = [{"type": "unique_token", "token_id": one, "token_extra_id": 0} for one in ids]
    return {"type": "stored_block", "block_hash": name, "tokens": spelled, "cache_level": 0, "priority": 35, **more}


def stored(parent: int | str | None, *blocks: Json) -> Json:
    return {"type": "stored", "parent_hash": parent, "blocks": list(blocks)}


def removed(*names: int | str) -> Json:
    return {"type": "removed", "block_hashes": list(names)}


class Stream:
    """Numbers events as the engine does, and feeds those that are not lost."""

    def __init__(self, ranks: int = 1) -> None:
        self.private = PrivateTurns()
        self.translator = KvTranslator(SIZE, ranks, self.private)
        self.numbers = [0] * ranks

    def raw(self, data: Json, *, rank: int = 0, **more: Any) -> Json:
        event = {"event_id": self.numbers[rank], "data": data, "window_size": 4096, "attention_dp_rank": rank, **more}
        self.numbers[rank] += 1
        return event

    def say(self, *datas: Json, now: float = 0.0, **more: Any) -> list[KvEvent]:
        return self.translator.feed([self.raw(data, **more) for data in datas], now)

    @property
    def counts(self) -> Json:
        return dict(self.translator.counts)


def names(events: list[KvEvent]) -> list[Any]:
    """Short: ("+", parent, names), ("-", names), "0"."""
    short: list[Any] = []
    for event in events:
        match event:
            case Stored():
                short.append(("+", event.parent, *event.hashes))
            case Removed(hashes):
                short.append(("-", *hashes))
            case Cleared():
                short.append("0")
    return short


def test_a_chain_is_stored_and_removed() -> None:
    stream = Stream()
    told = stream.say(stored(None, block(1), block(2)), stored(2, block(3)), removed(3, 2))
    assert names(told) == [("+", None, 1, 2), ("+", 2, 3), ("-", 3, 2)]
    assert isinstance(told[0], Stored)
    assert told[0].tokens == array("I", [10, 11, 12, 13, 20, 21, 22, 23])


def test_a_partial_block_is_not_told_of_and_its_removal_means_nothing() -> None:
    stream = Stream()
    assert names(stream.say(stored(None, block(1), block(2, [5, 6])), removed(2))) == [("+", None, 1)]
    assert names(stream.say(stored(1, block(3, [7])))) == []
    assert stream.counts == {"partial": 2}


def test_a_block_longer_than_a_block_is_not_told_of() -> None:
    stream = Stream()
    assert names(stream.say(stored(None, block(1, [1, 2, 3, 4, 5, 6, 7, 8])))) == []
    assert stream.counts == {"block_size": 1}


def test_a_block_stored_twice_is_told_once() -> None:
    stream = Stream()
    stream.say(stored(None, block(1), block(2)))
    assert names(stream.say(stored(None, block(1), block(2), block(3)))) == [("+", 2, 3)]


def test_what_hangs_on_an_unknown_block_is_left_out() -> None:
    stream = Stream()
    assert names(stream.say(stored(99, block(1)), stored(1, block(2)))) == []
    assert stream.counts == {"orphan": 2}


def test_only_the_widest_window_counts_and_the_others_use_up_numbers() -> None:
    stream = Stream()
    created = {"type": "created", "num_blocks_per_cache_level": [8, 0]}
    told = stream.say(created, window_size=128) + stream.say(created, window_size=4096)
    told += stream.say(stored(None, block(1)), window_size=128) + stream.say(stored(None, block(1)))
    told += stream.say(removed(1), window_size=128)
    assert names(told) == [("+", None, 1)]
    assert stream.counts == {"window": 2}


def test_a_wider_window_that_shows_up_late_clears_what_the_narrow_one_said() -> None:
    stream = Stream()
    assert names(stream.say(stored(None, block(1)), window_size=128)) == [("+", None, 1)]
    assert names(stream.say(stored(None, block(2)))) == ["0", ("+", None, 2)]


def test_of_two_layer_groups_with_one_window_the_first_speaks() -> None:
    stream = Stream()
    told = stream.say(stored(None, block(1)), layer_group_id=0) + stream.say(removed(1), layer_group_id=1)
    assert names(told) == [("+", None, 1)]


def test_ranks_count_for_themselves() -> None:
    stream = Stream(ranks=2)
    told = [names(stream.say(stored(None, block(name)), rank=rank)) for name, rank in ((1, 0), (1, 1), (2, 1), (2, 0))]
    assert told == [[("+", None, 1)], [("+", None, 1)], [("+", None, 2)], [("+", None, 2)]]
    assert not stream.counts


def test_a_missing_number_clears_every_rank_since_the_buffer_is_theirs_together() -> None:
    stream = Stream(ranks=2)
    stream.say(stored(None, block(1), block(2)), rank=0)
    stream.say(stored(None, block(1)), rank=1)
    stream.raw(removed(1), rank=1)
    told = stream.say(stored(None, block(5)), rank=1)
    assert names(told) == ["0", "0", ("+", None, 5)]
    assert [event.rank for event in told] == [0, 1, 1]
    assert names(stream.say(removed(2), rank=0)) == []
    assert names(stream.say(stored(1, block(3)), rank=0)) == [("+", None, 1), ("+", 1, 3)]
    assert stream.counts == {"gap": 1, "recalled": 1}


def test_a_number_lost_to_a_narrow_window_is_missed_too() -> None:
    stream = Stream()
    stream.say(stored(None, block(1)))
    stream.raw(stored(None, block(7)))
    assert names(stream.say(removed(9), window_size=128)) == ["0"]


def test_after_a_gap_a_child_proves_that_its_parents_are_still_there() -> None:
    stream = Stream()
    stream.say(stored(None, block(1), block(2), block(3)), stored(1, block(4)))
    stream.raw(removed(4))
    told = stream.say(stored(2, block(5)))
    assert names(told) == ["0", ("+", None, 1, 2), ("+", 2, 5)]
    assert names(stream.say(stored(3, block(6)))) == [("+", 2, 3), ("+", 3, 6)]
    assert stream.counts == {"gap": 1, "recalled": 3}


def test_a_block_that_was_removed_after_the_gap_proves_nothing() -> None:
    stream = Stream()
    stream.say(stored(None, block(1), block(2)))
    stream.raw(removed(9))
    assert names(stream.say(removed(2), stored(2, block(3)))) == ["0"]
    assert stream.counts["orphan"] == 1


def test_a_chain_with_a_hole_in_it_proves_nothing() -> None:
    stream = Stream()
    stream.say(stored(None, block(1), block(2), block(3)))
    stream.raw(removed(9))
    assert names(stream.say(removed(2), stored(3, block(4)))) == ["0"]
    assert stream.counts == {"gap": 1, "orphan": 1}


def test_a_restart_is_forgotten_for_good() -> None:
    stream = Stream()
    stream.say(stored(None, block(1)), removed(9))
    stream.numbers = [0]
    assert names(stream.say(stored(1, block(2)))) == ["0"]
    assert stream.counts == {"restart": 1, "orphan": 1}


@pytest.mark.parametrize(
    "data",
    [
        {"type": "updated", "block_hash": 1, "cache_level": None, "priority": None},
        {"type": "updated", "block_hash": 1, "cache_level": {"type": "event_diff", "new_value": 1, "old_value": 0}},
        {"type": "updated", "block_hash": "ab", "priority": {"type": "event_diff", "new_value": 9, "old_value": 35}},
    ],
)
def test_a_block_that_moves_between_tiers_is_still_held(data: Json) -> None:
    stream = Stream()
    stream.say(stored(None, block(1)))
    assert names(stream.say(data)) == []
    assert names(stream.say(removed(1))) == [("-", 1)]
    assert not stream.counts


def test_names_in_hex_are_names() -> None:
    stream = Stream()
    told = stream.say(stored(None, block("0a" * 32)), stored("0A" * 32, block("ff" * 32)), removed("ff" * 32))
    first, second = int("0a" * 32, 16), int("ff" * 32, 16)
    assert names(told) == [("+", None, first), ("+", first, second), ("-", second)]


@pytest.mark.parametrize(
    "odd",
    [
        block(2, ["ab" * 32, 1, 2, 3]),
        block(2, [-1, 1, 2, 3]),
        block(2, [1 << 32, 1, 2, 3]),
        {**block(2), "tokens": [7, {}, None, {"token_id": 4}]},
        block(2, mm_keys=[{"type": "mm_key", "hash": "00", "start_offset": 0}]),
        {**block(2), "tokens": [{"token_id": at, "token_extra_id": 7} for at in range(SIZE)]},
    ],
)
def test_blocks_with_images_are_left_out_with_all_that_hangs_on_them(odd: Json) -> None:
    stream = Stream()
    assert names(stream.say(stored(None, block(1), odd, block(3)), stored(2, block(4)))) == [("+", None, 1)]
    assert stream.counts == {"media": 1, "orphan": 1}


@pytest.mark.parametrize(
    "odd",
    [
        {"type": "stored", "parent_hash": None, "blocks": [{"block_hash": "no hex"}]},
        {"type": "evaporated"},
        None,
    ],
)
def test_an_event_that_cannot_be_read_is_a_lost_one(odd: Any) -> None:
    stream = Stream()
    stream.say(stored(None, block(1)))
    assert names(stream.say(odd)) == ["0"]
    assert names(stream.say(stored(None, block(5)))) == [("+", None, 5)]
    assert stream.counts == {"malformed": 1}


@pytest.mark.parametrize("odd", [None, 7, [], {"event_id": "x"}, {"event_id": 1, "attention_dp_rank": 9, "data": {}}])
def test_what_is_no_event_at_all_clears_every_rank(odd: Any) -> None:
    stream = Stream(ranks=2)
    for rank in range(2):
        stream.say(stored(None, block(1)), rank=rank)
    assert [event.rank for event in stream.translator.feed([odd], 0.0)] == [0, 1]


def test_a_rank_that_is_not_here_is_left_out() -> None:
    stream = Stream()
    event = {**stream.raw(stored(None, block(1))), "attention_dp_rank": 3}
    assert stream.translator.feed([event], 0.0) == []
    assert stream.counts == {"rank": 1}


def test_events_that_could_not_be_fetched_are_lost() -> None:
    stream = Stream()
    stream.say(stored(None, block(1)))
    assert names(stream.translator.lost()) == ["0"]
    assert names(stream.say(stored(1, block(2)))) == [("+", None, 1), ("+", 1, 2)]


# --- private turns ------------------------------------------------------------------------------------------------


def tokens_of(name: int) -> "array[int]":
    return array("I", [name * 10 + at for at in range(SIZE)])


def test_a_first_block_that_could_be_a_private_turns_stays_out_with_all_that_hangs_on_it() -> None:
    stream = Stream()
    stream.private.began(tokens_of(1), SIZE)
    assert names(stream.say(stored(None, block(1), block(2)), stored(2, block(3)), stored(None, block(4)))) == [
        ("+", None, 4)
    ]
    assert stream.counts == {"private": 1, "orphan": 1}


def test_a_short_private_prompt_hides_every_block_that_goes_on_from_it() -> None:
    stream = Stream()
    stream.private.began(tokens_of(1)[:2], SIZE)
    assert names(stream.say(stored(None, block(1, [10, 11, 8, 9])), stored(None, block(4)))) == [("+", None, 4)]


def test_private_turns_are_remembered_a_little_longer_than_they_run() -> None:
    stream = Stream()
    for _ in range(2):
        stream.private.began(tokens_of(1), SIZE)
    stream.private.ended(tokens_of(1), SIZE, 100.0)
    assert names(stream.say(stored(None, block(1)), now=1000.0)) == []
    stream.private.ended(tokens_of(1), SIZE, 1000.0)
    assert names(stream.say(stored(None, block(1)), now=1000.0 + GRACE_S / 2)) == []
    assert names(stream.say(stored(None, block(1)), now=1000.0 + GRACE_S)) == [("+", None, 1)]


def test_a_block_that_says_its_salt_is_private() -> None:
    stream = Stream()
    assert names(stream.say(stored(None, block(1, cache_salt="x")), stored(None, block(2, cache_salt=None)))) == [
        ("+", None, 2)
    ]
