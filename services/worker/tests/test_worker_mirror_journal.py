"""Numbers, the ring and snapshots: a receiver can always be told what it missed."""

from array import array
from collections.abc import Sequence

import pytest
from catenary_protocols.bus.codec import encode
from catenary_protocols.bus.messages import (
    KvCleared,
    KvEvent,
    KvEvents,
    KvRemoved,
    KvReplay,
    KvStored,
    SnapshotPage,
    SnapshotQuery,
)
from catenary_worker import kv_journal
from catenary_worker.engines.base import Cleared, Removed, Stored
from catenary_worker.engines.base import KvEvent as EngineEvent
from catenary_worker.kv_journal import KvJournal
from hypothesis import given
from hypothesis import strategies as st

SIZE = 4
MAX_PAYLOAD = 1024 * 1024


def journal(**more: int) -> KvJournal:
    return KvJournal("w0", 7, "m", SIZE, own_hashes=False, **more)


def stored(parent: int | None, *names: int, rank: int = 0) -> Stored:
    return Stored(parent=parent, hashes=names, tokens=array("I", bytes(4 * SIZE * len(names))), rank=rank)


def fold(events: Sequence[KvEvent], held: set[int] | None = None) -> set[int]:
    held = held if held is not None else set()
    for event in events:
        if isinstance(event, KvCleared):
            held.clear()
        elif isinstance(event, KvStored):
            assert event.parent is None or event.parent in held
            held |= set(memoryview(event.hashes).cast("Q"))
        else:
            held -= set(memoryview(event.hashes).cast("Q"))
    return held


def snapshot(book: KvJournal) -> tuple[int, set[int]]:
    held: set[int] = set()
    page, as_of = 0, 0
    while True:
        answer = book.answer(SnapshotQuery(rank=0, page=page, as_of=as_of))
        assert isinstance(answer, SnapshotPage)
        assert page == 0 or answer.as_of == as_of
        fold(answer.events, held)
        page, as_of = page + 1, answer.as_of
        if answer.last:
            return as_of, held


def test_events_are_numbered_by_rank_and_signed() -> None:
    book = journal(ranks=2)
    first, second = book.feed([stored(None, 1), stored(None, 1, rank=1), stored(1, 2)])
    assert (first.worker, first.incarnation, first.model, first.block_size) == ("w0", 7, "m", SIZE)
    assert (first.rank, first.first, len(first.events)) == (0, 1, 2)
    assert (second.rank, second.first, len(second.events)) == (1, 1, 1)
    assert book.last == (2, 1)


def test_what_says_nothing_takes_no_number() -> None:
    book = journal()
    assert book.feed([Removed((5,))]) == []
    assert book.feed([stored(99, 1)]) == []
    assert book.last == (0,)
    assert book.refused() == {"parent_unknown": 1}
    assert not book.refused(), "each is told of once"


def test_a_replay_goes_on_where_it_was_asked_to() -> None:
    book = journal()
    for name in range(1, 6):
        book.feed([stored(name - 1 or None, name)])
    answer = book.answer(KvReplay(rank=0, first=3))
    assert isinstance(answer, KvEvents)
    assert (answer.first, len(answer.events)) == (3, 3)


def test_events_that_are_gone_or_were_never_there_are_answered_by_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_journal, "RING_BYTES", 200)
    book = journal()
    for name in range(1, 50):
        book.feed([stored(name - 1 or None, name)])
    for first in (1, 50):
        answer = book.answer(KvReplay(rank=0, first=first))
        assert isinstance(answer, SnapshotPage)
        assert (answer.as_of, answer.last) == (49, True)
        assert fold(answer.events) == set(range(1, 50))


def test_pages_are_of_one_picture_though_the_engine_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_journal, "MESSAGE_BYTES", 100)
    book = journal()
    for name in range(1, 20):
        book.feed([stored(None, name)])
    first = book.answer(SnapshotQuery(rank=0))
    assert isinstance(first, SnapshotPage)
    assert not first.last
    book.feed([Cleared()])
    held = fold(first.events)
    for page in range(1, 19):
        answer = book.answer(SnapshotQuery(rank=0, page=page, as_of=first.as_of))
        assert isinstance(answer, SnapshotPage)
        assert (answer.page, answer.as_of) == (page, first.as_of)
        fold(answer.events, held)
        if answer.last:
            break
    assert held == set(range(1, 20))


def test_two_indexers_can_page_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_journal, "MESSAGE_BYTES", 100)
    book = journal()
    for name in range(1, 10):
        book.feed([stored(None, name)])
    one = book.answer(SnapshotQuery(rank=0))
    book.feed([stored(None, 10)])
    other = book.answer(SnapshotQuery(rank=0))
    assert isinstance(one, SnapshotPage)
    assert isinstance(other, SnapshotPage)
    second = book.answer(SnapshotQuery(rank=0, page=1, as_of=one.as_of))
    assert isinstance(second, SnapshotPage)
    assert (second.as_of, second.page) == (one.as_of, 1)
    assert other.as_of == one.as_of + 1


def test_a_picture_that_is_forgotten_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_journal, "MESSAGE_BYTES", 100)
    book = journal()
    book.feed([stored(None, name) for name in range(1, 10)])
    answer = book.answer(SnapshotQuery(rank=0, page=2, as_of=12345))
    assert isinstance(answer, SnapshotPage)
    assert (answer.page, answer.as_of) == (0, 9)


def test_a_renewed_incarnation_goes_on_counting() -> None:
    book = journal()
    book.feed([stored(None, 1)])
    book.incarnation = 8
    (message,) = book.feed([stored(1, 2)])
    assert (message.incarnation, message.first) == (8, 2)


def test_a_rank_that_is_not_here_is_not_answered() -> None:
    assert journal().answer(KvReplay(rank=3, first=1)) is None


acts = st.lists(
    st.one_of(
        st.tuples(st.just("store"), st.integers(1, 30)),
        st.tuples(st.just("remove"), st.integers(1, 30)),
        st.tuples(st.just("clear"), st.just(0)),
    ),
    max_size=60,
)


@given(acts, st.integers(1, 60))
def test_replay_and_snapshot_both_lead_to_the_present(script: list[tuple[str, int]], first: int) -> None:
    """Names form a binary tree (the parent of n is n // 2); evictions come in any order."""
    book = journal()
    log: list[KvEvent] = []
    for verb, name in script:
        event: EngineEvent = Cleared()
        if verb == "store":
            event = stored(name // 2 or None, name)
        elif verb == "remove":
            event = Removed((name,))
        for message in book.feed([event]):
            assert message.first == len(log) + 1
            log += message.events
    now = fold(log)
    assert snapshot(book) == (len(log), now)
    if first <= len(log):
        answer = book.answer(KvReplay(rank=0, first=first))
        assert isinstance(answer, KvEvents)
        assert fold(answer.events, fold(log[: first - 1])) == now
    folded = 0
    for one in now:
        folded ^= one
    assert book.digest == (folded,)
    assert not any(isinstance(event, KvRemoved) and not event.hashes for event in log)


def test_a_batch_too_large_for_a_message_is_split_without_a_gap() -> None:
    apart, chain = 40_000, 120_000
    book = journal()
    events: list[EngineEvent] = [stored(None, name) for name in range(1, apart + 1)]
    events.append(stored(None, *range(apart + 1, apart + chain + 1)))
    messages = book.feed(events)
    assert max(len(encode(message)) for message in messages) <= MAX_PAYLOAD
    numbers = [message.first + at for message in messages for at in range(len(message.events))]
    assert numbers == list(range(1, book.last[0] + 1))
    held: set[int] = set()
    for message in messages:
        fold(message.events, held)
    assert len(held) == apart + chain
    assert snapshot(book) == (book.last[0], held)
    removed = book.feed([Removed(hashes=tuple(range(apart + 1, apart + chain + 1)))])
    assert max(len(encode(message)) for message in removed) <= MAX_PAYLOAD
    for message in removed:
        fold(message.events, held)
    assert len(held) == apart
