"""The worker's KV events, numbered, and what a kv-indexer that missed some may ask for.

The rule: each event of a rank gets the next number, for good; no message is longer than `MESSAGE_BYTES`. The last
events can be repeated from a ring; when they are gone, a snapshot tells all that is published as of one number, in
pages cut from a picture that stands still. An incarnation that kept its cache (it was only cut off) goes on counting,
so that a receiver who knows nothing of it sees a gap and asks; one that begins empty begins with number 1.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import msgspec
from catenary_protocols.bus.messages import (
    KvCleared,
    KvEvent,
    KvEvents,
    KvReplay,
    KvStored,
    SnapshotPage,
    SnapshotQuery,
)

from catenary_worker.engines.base import KvEvent as EngineEvent
from catenary_worker.mirror import Mirror

RING_BYTES = 8 * 1024 * 1024
MESSAGE_BYTES = 900_000
"""Most of one answer; the broker's own limit is higher, but a message that large would hold up the rest."""
PICTURES = 4
"""Snapshots kept, so that several kv-indexers can page through theirs at once."""
HASH_BYTES = 8
_EVENT_BYTES = 48
Event = TypeVar("Event", bound=KvEvent)


class _Rank:
    """One rank's mirror, numbers and ring."""

    def __init__(self, mirror: Mirror) -> None:
        self.mirror = mirror
        self.last = 0
        self.ring: deque[KvEvent] = deque()
        self.ring_bytes = 0
        self.pictures: dict[int, list[tuple[KvStored, ...]]] = {}

    def number(self, events: Sequence[KvEvent]) -> int:
        """Keep events under the next numbers; returns the first of them."""
        for event in events:
            self.ring.append(event)
            self.ring_bytes += _size(event)
        self.last += len(events)
        while self.ring_bytes > RING_BYTES:
            self.ring_bytes -= _size(self.ring.popleft())
        return self.last - len(events) + 1

    def repeat(self, first: int) -> tuple[KvEvent, ...] | None:
        """Events from `first` on, as many as fit into a message; None when they are gone or were never there."""
        oldest = self.last - len(self.ring) + 1
        if not oldest <= first <= self.last:
            return None
        chosen: list[KvEvent] = []
        size = 0
        for at in range(first - oldest, len(self.ring)):
            size += _size(self.ring[at])
            if chosen and size > MESSAGE_BYTES:
                break
            chosen.append(self.ring[at])
        return tuple(chosen)

    def page(self, number: int, as_of: int) -> tuple[int, int, tuple[KvStored, ...], bool]:
        """(as_of, page, events, last) of a frozen picture; one that is not here (any more) begins anew with page 0."""
        if number == 0 or number >= len(self.pictures.get(as_of, ())):
            number, as_of = 0, self.last
        if as_of not in self.pictures:
            self.pictures[as_of] = _pages(self.mirror)
            while len(self.pictures) > PICTURES:
                del self.pictures[next(iter(self.pictures))]
        pages = self.pictures[as_of]
        return as_of, number, pages[number], number == len(pages) - 1


class KvJournal:
    """All ranks of one worker.

    Attributes:
        incarnation: may be renewed at any time; the numbers go on.
    """

    def __init__(
        self, worker: str, incarnation: int, model: str, block_size: int, *, ranks: int = 1, own_hashes: bool = True
    ) -> None:
        self.worker = worker
        self.incarnation = incarnation
        self.model = model
        self.block_size = block_size
        self._ranks = [_Rank(Mirror(block_size, own_hashes=own_hashes)) for _ in range(ranks)]

    @property
    def last(self) -> tuple[int, ...]:
        """Number of the last event of each rank: `WorkerLoad.kv_last`."""
        return tuple(rank.last for rank in self._ranks)

    @property
    def digest(self) -> tuple[int, ...]:
        """What each rank holds, folded: `WorkerLoad.kv_digest`."""
        return tuple(rank.mirror.digest for rank in self._ranks)

    def refused(self) -> Counter[str]:
        """Engine events that said nothing that could be placed, by reason, since this was last asked."""
        refused: Counter[str] = Counter()
        for rank in self._ranks:
            refused += rank.mirror.refused
            rank.mirror.refused.clear()
        return refused

    def feed(self, events: Sequence[EngineEvent]) -> list[KvEvents]:
        """Messages to publish for the events of one step, for each rank that has something to say."""
        by_rank: dict[int, list[KvEvent]] = {}
        for event in events:
            told = by_rank.setdefault(event.rank, [])
            for one in self._ranks[event.rank].mirror.apply(event):
                told += _cut(one)
        return [
            self._message(rank, self._ranks[rank].number(part), part)
            for rank, told in by_rank.items()
            for part in _parts(told)
        ]

    def answer(self, query: KvReplay | SnapshotQuery) -> KvEvents | SnapshotPage | None:
        """The answer to a kv-indexer; None for a rank that is not here."""
        if not 0 <= query.rank < len(self._ranks):
            return None
        rank = self._ranks[query.rank]
        if isinstance(query, KvReplay):
            events = rank.repeat(query.first)
            if events is not None:
                return self._message(query.rank, query.first, events)
            query = SnapshotQuery(rank=query.rank)
        as_of, page, stored, last = rank.page(query.page, query.as_of)
        return SnapshotPage(
            worker=self.worker,
            incarnation=self.incarnation,
            model=self.model,
            block_size=self.block_size,
            as_of=as_of,
            page=page,
            events=stored,
            last=last,
            rank=query.rank,
        )

    def _message(self, rank: int, first: int, events: tuple[KvEvent, ...]) -> KvEvents:
        return KvEvents(
            worker=self.worker,
            incarnation=self.incarnation,
            model=self.model,
            block_size=self.block_size,
            first=first,
            events=events,
            rank=rank,
        )


def _size(event: KvEvent) -> int:
    return _EVENT_BYTES + (0 if isinstance(event, KvCleared) else len(event.hashes))


def _cut(event: KvEvent) -> Iterator[KvEvent]:
    """An event as events that each fit into a message."""
    if _size(event) <= MESSAGE_BYTES or isinstance(event, KvCleared):
        yield event
        return
    most = (MESSAGE_BYTES - _EVENT_BYTES) // HASH_BYTES * HASH_BYTES
    for at in range(0, len(event.hashes), most):
        hashes = event.hashes[at : at + most]
        if at and isinstance(event, KvStored):
            parent = int.from_bytes(event.hashes[at - HASH_BYTES : at], "little")
            yield msgspec.structs.replace(event, hashes=hashes, parent=parent)
        else:
            yield msgspec.structs.replace(event, hashes=hashes)


def _parts(events: Iterable[Event]) -> Iterator[tuple[Event, ...]]:
    """Events as many to a part as fit into a message; no part is empty."""
    part: list[Event] = []
    size = 0
    for event in events:
        if part and size + _size(event) > MESSAGE_BYTES:
            yield tuple(part)
            part, size = [], 0
        part.append(event)
        size += _size(event)
    if part:
        yield tuple(part)


def _pages(mirror: Mirror) -> list[tuple[KvStored, ...]]:
    """The picture, cut into pages that fit into messages; at least one, be it empty."""
    chains = (part for chain in mirror.chains() for part in _cut(chain) if isinstance(part, KvStored))
    return list(_parts(chains)) or [()]
