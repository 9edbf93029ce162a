"""The books of a worker: laws over any order of events."""

from array import array
from typing import Literal

from catenary_protocols.bus.messages import LiveTurn
from catenary_protocols.conversation import TokenLogprob
from catenary_protocols.ids import TurnKey
from catenary_worker.core.turns import PART_TOKENS, TOMBSTONE_S, TURN_BYTES, Turn, Turns, listed_at
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

LIMIT = 1.5


def turn(name: str = "t", attempt: int = 0, owner: str = "tok", at: float = 0.0, tokens: int = 0) -> Turn:
    return Turn(name, attempt, owner, 1, 0, admitted_at=at, ids=bytearray(4 * tokens))


def books(*here: Turn, kept_bytes: int = 1 << 20) -> Turns:
    turns = Turns(death_limit=LIMIT, kept_bytes=kept_bytes)
    for one in here:
        turns.add(one)
    return turns


def end(turns: Turns, one: Turn, now: float) -> None:
    one.finish = "stop"
    turns.end(one, now)


def says(*keys: TurnKey, offset: int = 0) -> dict[str, LiveTurn]:
    beat = tuple(LiveTurn(turn_id=key.turn_id, attempt=key.attempt, at="w", offset=offset) for key in keys)
    return listed_at("w", beat)


def test_an_attempt_is_new_then_known_and_older_ones_are_fenced() -> None:
    turns = books(turn(attempt=3))
    assert turns.judge(TurnKey(turn_id="t", attempt=3), 0.0) == "known"
    assert turns.judge(TurnKey(turn_id="t", attempt=2), 0.0) == "fenced"
    assert turns.judge(TurnKey(turn_id="t", attempt=4), 0.0) == "new"
    assert turns.judge(TurnKey(turn_id="u"), 0.0) == "new"


def test_a_tombstone_stands_for_thirty_seconds_and_covers_older_attempts() -> None:
    turns = books()
    assert turns.cancel(TurnKey(turn_id="t", attempt=2), 100.0) is None
    for attempt, verdict in ((1, "fenced"), (2, "fenced"), (3, "new")):
        assert turns.judge(TurnKey(turn_id="t", attempt=attempt), 100.0 + TOMBSTONE_S - 0.1) == verdict
    assert turns.judge(TurnKey(turn_id="t", attempt=2), 100.1 + TOMBSTONE_S) == "new"


def test_a_cancel_of_an_older_attempt_leaves_the_newer_one_alone() -> None:
    one = turn(attempt=3)
    turns = books(one)
    assert turns.cancel(TurnKey(turn_id="t", attempt=2), 0.0) is None
    assert turns.here == {"t": one}


def test_a_running_turn_goes_when_two_beats_after_the_death_limit_do_not_list_it() -> None:
    one = turn()
    turns = books(one)
    assert turns.beat("tok", {}, LIMIT - 0.1) == []
    assert turns.beat("tok", {}, LIMIT + 0.1) == []
    assert turns.beat("tok", says(one.key), LIMIT + 0.2) == []
    assert turns.beat("tok", {}, LIMIT + 0.3) == []
    assert turns.beat("other", {}, LIMIT + 0.4) == []
    assert turns.beat("tok", {}, LIMIT + 0.5) == [one]
    assert (turns.here, turns.running) == ({}, 0)


def test_a_beat_that_lists_another_attempt_does_not_list_this_one() -> None:
    one = turn(attempt=1)
    turns = books(one)
    for now in (2.0, 2.1):
        gone = turns.beat("tok", says(TurnKey(turn_id="t", attempt=0)), now)
    assert gone == [one]


def test_an_ended_turn_stays_while_its_owner_lists_it_and_lacks_something() -> None:
    one = turn(tokens=10)
    turns = books(one)
    end(turns, one, 1.0)
    for now in (1.1, 5.0, 50.0):
        turns.beat("tok", says(one.key, offset=9), now)
        assert turns.here == {"t": one}
    turns.beat("tok", says(one.key, offset=10), 51.0)
    assert turns.here == {}


def test_an_end_that_may_be_lost_can_be_asked_for_though_all_tokens_came() -> None:
    one = turn(tokens=10)
    turns = books(one)
    end(turns, one, 1.0)
    turns.beat("tok", says(one.key, offset=10), 1.0 + 2 * LIMIT)
    assert turns.here == {"t": one}
    turns.beat("tok", says(one.key, offset=10), 1.1 + 2 * LIMIT)
    assert turns.here == {}


def test_an_ended_turn_goes_when_two_beats_do_not_list_it() -> None:
    one = turn()
    turns = books(one)
    end(turns, one, 1.0)
    turns.beat("tok", {}, 1.1)
    assert turns.here == {"t": one}
    turns.beat("tok", {}, 1.2)
    assert turns.here == {}
    assert turns.judge(one.key, 1.3) == "fenced"


def test_what_is_kept_is_bounded_and_the_oldest_goes_first() -> None:
    every = [turn(f"t{n}", tokens=100) for n in range(5)]
    turns = books(*every, kept_bytes=2 * (400 + TURN_BYTES))
    for one in every[:4]:
        end(turns, one, 1.0)
    assert set(turns.here) == {"t2", "t3", "t4"}
    assert turns.kept == 2 * (400 + TURN_BYTES)


def test_tokens_are_told_from_an_offset_that_counts_from_the_original_prompt() -> None:
    one = Turn("t", 1, "tok", 1, 5, admitted_at=0.0, ids=bytearray(b"\1\0\0\0\2\0\0\0"))
    assert one.offset == 7
    assert (one.tokens_from(6).offset, one.tokens_from(6).tokens) == (6, b"\2\0\0\0")
    assert (one.tokens_from(0).offset, one.tokens_from(0).tokens) == (5, bytes(one.ids))
    assert (one.tokens_from(9).offset, one.tokens_from(9).tokens) == (9, b"")


@given(st.integers(0, 3 * PART_TOKENS), st.integers(0, 3 * PART_TOKENS), st.sampled_from(["", "stop"]))
def test_parts_join_to_the_whole_and_the_last_one_tells_the_end(
    tokens: int, offset: int, finish: Literal["", "stop"]
) -> None:
    one = turn(tokens=tokens)
    one.ids[:] = array("I", range(tokens)).tobytes()
    one.logprobs = [TokenLogprob(logprob=-float(number)) for number in range(tokens)]
    one.finish = finish
    whole, parts = one.tokens_from(offset), one.parts_from(offset)
    assert b"".join(part.tokens for part in parts) == whole.tokens
    assert tuple(said for part in parts for said in part.logprobs) == whole.logprobs
    assert [part.finish for part in parts] == [""] * (len(parts) - 1) + [finish]
    at = whole.offset
    for part in parts:
        assert part.offset == at
        assert len(part.tokens) <= 4 * PART_TOKENS
        at += len(part.tokens) // 4


def test_held_turns_go_when_their_owner_is_silent_for_the_death_limit() -> None:
    one, other = turn("a"), turn("b")
    turns = books(one, other)
    turns.hold(10.0)
    other.held_since = 0.0
    assert turns.unanswered(10.0 + LIMIT) == []
    assert turns.unanswered(10.1 + LIMIT) == [one]
    assert set(turns.here) == {"b"}


class Books(RuleBasedStateMachine):
    """Any order of events: the counts are those of the turns that are here, and every attempt's end is told once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.turns = Turns(death_limit=LIMIT, kept_bytes=3000)
        self.came: list[TurnKey] = []
        self.told: list[TurnKey] = []

    @rule(
        name=st.sampled_from("abcdef"),
        attempt=st.integers(0, 3),
        owner=st.sampled_from("xy"),
        tokens=st.integers(0, 200),
    )
    def arrive(self, name: str, attempt: int, owner: str, tokens: int) -> None:
        key = TurnKey(turn_id=name, attempt=attempt)
        if self.turns.judge(key, self.now) == "new":
            if name in self.turns.here:
                self.turns.cancel(self.turns.here[name].key, self.now)
            self.turns.add(turn(name, attempt, owner, self.now, tokens))
            self.came.append(key)
            assert self.turns.judge(key, self.now) == "known"

    @precondition(lambda self: self.turns.running)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        running = [one for one in self.turns.here.values() if not one.finish]
        end(self.turns, data.draw(st.sampled_from(running)), self.now)

    @rule(name=st.sampled_from("abcdef"), attempt=st.integers(0, 3))
    def cancel(self, name: str, attempt: int) -> None:
        key = TurnKey(turn_id=name, attempt=attempt)
        self.turns.cancel(key, self.now)
        assert self.turns.judge(key, self.now) == "fenced"

    @rule(owner=st.sampled_from("xy"), listed=st.sets(st.sampled_from("abcdef")), offset=st.integers(0, 200))
    def beat(self, owner: str, listed: set[str], offset: int) -> None:
        keys = [self.turns.here[name].key for name in listed if name in self.turns.here]
        gone = self.turns.beat(owner, says(*keys, offset=offset), self.now)
        assert all(one.owner == owner and one.turn_id not in listed for one in gone)

    @rule(owner=st.sampled_from("xy"))
    def die(self, owner: str) -> None:
        self.turns.owner_gone(owner, self.now)
        assert all(one.owner != owner for one in self.turns.here.values())

    @rule(owner=st.sampled_from("xy"), listed=st.sets(st.sampled_from("abcdef")))
    def renew(self, owner: str, listed: set[str]) -> None:
        keys = [self.turns.here[name].key for name in listed if name in self.turns.here]
        self.turns.owner_renewed(owner, 2, says(*keys), self.now)

    @rule()
    def hold(self) -> None:
        self.turns.hold(self.now)

    @rule(seconds=st.sampled_from((0.1, 1.0, 2.0, 40.0)))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.turns.unanswered(self.now)
        self.turns.strays({"x"}, self.now)

    @invariant()
    def counts_are_right(self) -> None:
        here = self.turns.here.values()
        ended = [one for one in here if one.finish]
        assert self.turns.running == len(here) - len(ended)
        assert self.turns.kept == sum(len(one.ids) + TURN_BYTES for one in ended) <= 3000
        assert len(self.turns.live()) == len(here)

    @invariant()
    def every_end_is_told_once(self) -> None:
        self.told += self.turns.ended()
        running = [one.key for one in self.turns.here.values() if not one.finish]
        assert sorted(map(repr, [*self.told, *running])) == sorted(map(repr, self.came))


TestBooks = Books.TestCase


@given(st.lists(st.tuples(st.text(), st.sampled_from(("w", "v"))), unique_by=lambda pair: pair[0]))
def test_only_turns_at_this_worker_are_read_from_a_beat(pairs: list[tuple[str, str]]) -> None:
    listed = listed_at("w", (LiveTurn(turn_id=name, at=at) for name, at in pairs))
    assert set(listed) == {name for name, at in pairs if at == "w"}
