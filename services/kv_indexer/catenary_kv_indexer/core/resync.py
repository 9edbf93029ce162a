"""One link: the numbered KV events of one rank of one worker incarnation, applied exactly once and in order.

The rule: an event is applied only when its number is the next one. Anything that shows a later number (an event, a
beat's tail) makes the link unsure, and it asks the worker: first for a replay from the next number on, and when those
events are gone, for a snapshot in pages, which is built beside what is held and takes its place whole. Events that
arrive meanwhile wait and are applied after. A link that is not `known` still tells what it holds, as a guess.
"""

from collections import Counter
from dataclasses import dataclass, field

from catenary_protocols.bus.messages import (
    KvEvent,
    KvEvents,
    KvRemoved,
    KvReplay,
    KvStored,
    SnapshotPage,
    SnapshotQuery,
)

from catenary_kv_indexer.core.apart import Apart
from catenary_kv_indexer.core.index import DEVICE, DISK, HOST, BlockIndex, Holder

TIERS = {"device": DEVICE, "host": HOST, "disk": DISK}
ANSWER_S = 2.0
"""An answer that takes longer is not waited for."""
BACKOFF_S = 0.25
BACKOFF_MOST_S = 5.0
EARLY_LIMIT = 16_384
"""Events that may wait for earlier ones; the rest is dropped and asked for when its turn comes."""
HASH_BYTES = 8


@dataclass(slots=True)
class Snapshot:
    """A snapshot that is coming in, page by page."""

    as_of: int
    holder: Holder
    apart: Apart = field(default_factory=Apart)
    page: int = 0


@dataclass(slots=True)
class Link:
    """See the module.

    Attributes:
        next: number of the next event to apply.
        heard: the highest number that surely exists.
        tail: the last beat's number; may be ahead of what is still under way.
        confirmed: a beat or the very first event told where the numbers stand.
    """

    index: BlockIndex
    worker: str
    rank: int
    counts: Counter[str]
    next: int = 1
    heard: int = 0
    tail: int = 0
    confirmed: bool = False
    holder: Holder = field(init=False)
    apart: Apart = field(default_factory=Apart)
    early: dict[int, KvEvent] = field(default_factory=dict)
    _snapshot: Snapshot | None = None
    _distrusted: bool = False
    _asked: KvReplay | SnapshotQuery | None = None
    _asked_at: float = 0.0
    _not_before: float = 0.0
    _futile: int = 0

    def __post_init__(self) -> None:
        self.holder = self.index.open(self.worker)

    @property
    def known(self) -> bool:
        """Whether what is held is what the worker holds, as far as anything heard can tell."""
        return self.confirmed and not self._distrusted and self.next > max(self.heard, self.tail)

    # --- what comes in ------------------------------------------------------------------------------------------

    def events(self, first: int, events: tuple[KvEvent, ...]) -> None:
        """Events `first`, `first` + 1, …, live or replayed."""
        self.confirmed = self.confirmed or first == 1
        for number, event in enumerate(events, first):
            self.heard = max(self.heard, number)
            if number < self.next:
                self.counts["duplicate"] += 1
            elif number == self.next:
                self._apply(event)
            elif len(self.early) < EARLY_LIMIT:
                self.early[number] = event
        self._drain_early()

    def told(self, tail: int, digest: int | None = None) -> None:
        """A beat's tail. It is believed at once by a link that knows nothing, else once the next beat confirms it.

        `digest` is the xor of all the worker holds at that number: another one here means we diverged unnoticed.
        """
        if not self.confirmed or self.tail >= self.next:
            self.heard = max(self.heard, self.tail if self.confirmed else tail)
        self.confirmed = True
        self.tail = tail
        if digest is not None and self.known and self.next == tail + 1 and self.holder.digest != digest:
            self.counts["diverged"] += 1
            self._distrusted = True

    def answered(self, query: KvReplay | SnapshotQuery, answer: KvEvents | SnapshotPage | None, now: float) -> None:
        """The worker's answer to `query`; None when none came."""
        if query != self._asked:
            return
        self._asked = None
        before = self.next
        if isinstance(answer, SnapshotPage):
            self._page(answer)
        elif isinstance(answer, KvEvents):
            self.events(answer.first, answer.events)
        if self.next > before or (self._snapshot is not None and self._snapshot.page):
            self._futile = 0
            return
        self._futile += 1
        self._drop_snapshot()
        if isinstance(query, KvReplay) and self._futile > 1:
            self._distrusted = True
        self._not_before = now + min(BACKOFF_MOST_S, BACKOFF_S * 2 ** min(self._futile, 8))

    def wants(self, now: float) -> KvReplay | SnapshotQuery | None:
        """What to ask the worker now; the caller sends it and comes back with `answered`."""
        if self._asked is not None and now - self._asked_at > ANSWER_S:
            self.counts["timeout"] += 1
            self.answered(self._asked, None, now)
        if self._asked is not None or now < self._not_before:
            return None
        if self._snapshot is not None:
            self._asked = SnapshotQuery(rank=self.rank, page=self._snapshot.page, as_of=self._snapshot.as_of)
        elif self._distrusted:
            self._asked = SnapshotQuery(rank=self.rank)
        elif self.heard >= self.next:
            self._asked = KvReplay(rank=self.rank, first=self.next)
        self._asked_at = now
        return self._asked

    def close(self) -> None:
        """The worker is gone, or has begun anew."""
        self._drop_snapshot()
        self.index.give_up(self.holder)

    # --- how it is applied --------------------------------------------------------------------------------------

    def _drain_early(self) -> None:
        while self.early and (event := self.early.pop(self.next, None)) is not None:
            self._apply(event)

    def _page(self, page: SnapshotPage) -> None:
        if page.page == 0:
            self._drop_snapshot()
            self._snapshot = Snapshot(page.as_of, self.index.open(""))
        under_way = self._snapshot
        if under_way is None or (page.page, page.as_of) != (under_way.page, under_way.as_of):
            self._drop_snapshot()
            return
        if not all(self._store(event, under_way.holder, under_way.apart) for event in page.events):
            self._drop_snapshot()
            return
        under_way.page += 1
        if page.last:
            self._take(under_way)

    def _take(self, snapshot: Snapshot) -> None:
        """The snapshot becomes what is held; events after it follow, or are asked for."""
        self.index.give_up(self.holder)
        self.holder, self.apart, self._snapshot = snapshot.holder, snapshot.apart, None
        self.holder.owner = self.worker
        self.next = snapshot.as_of + 1
        self.heard = max(self.heard, snapshot.as_of)
        self.early = {number: event for number, event in self.early.items() if number >= self.next}
        self.confirmed = True
        self._distrusted = False
        self.counts["snapshot"] += 1
        self._drain_early()

    def _drop_snapshot(self) -> None:
        if self._snapshot is not None:
            self.index.give_up(self._snapshot.holder)
            self._snapshot = None

    def _apply(self, event: KvEvent) -> None:
        """The event whose turn it is."""
        self.next += 1
        self.counts["applied"] += 1
        if isinstance(event, KvStored):
            if not self._store(event, self.holder, self.apart) or self.apart.pushed_out:
                self._distrusted = True
        elif isinstance(event, KvRemoved):
            hashes = self._hashes(event.hashes)
            if hashes is None:
                self._distrusted = True
                return
            self.index.remove(self.holder, hashes, TIERS[event.tier])
            if len(self.apart):
                self.apart.remove(hashes)
        else:
            self.index.give_up(self.holder)
            self.holder = self.index.open(self.worker)
            self.apart.clear()

    def _store(self, event: KvStored, holder: Holder, apart: Apart) -> bool:
        """False when the event makes no sense."""
        hashes = self._hashes(event.hashes)
        if hashes is None:
            return False
        tier = TIERS[event.tier]
        if event.parent is not None and not self.index.holds(holder, event.parent):
            self.counts["parent_unknown"] += len(hashes)
            apart.put(event.parent, hashes, tier)
            return True
        self.index.store(holder, hashes, tier)
        if len(apart):
            apart.remove(hashes)
            for child, tiers in apart.adopt(hashes):
                for one in (DEVICE, HOST, DISK):
                    if tiers & one:
                        self.index.store(holder, (child,), one)
        return True

    def _hashes(self, data: bytes) -> memoryview | None:
        """The hashes in a message; None for bytes that are none."""
        if len(data) % HASH_BYTES:
            self.counts["malformed"] += 1
            return None
        return memoryview(data).cast("Q")
