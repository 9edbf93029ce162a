"""All links and all indexes: who is known, who overlaps, whom to ask.

The rule: a worker is `known` when every rank of its present incarnation is; events of an incarnation that is over, or
of a worker that was buried, change nothing. A higher incarnation begins empty and unknown.
"""

from collections import Counter
from dataclasses import dataclass, field

from catenary_protocols.bus.messages import (
    KvEvents,
    KvReplay,
    Overlap,
    OverlapQuery,
    SnapshotPage,
    SnapshotQuery,
    WorkerLoad,
    WorkerOverlap,
)

from catenary_kv_indexer.core.dump import IndexDump, LinkDump
from catenary_kv_indexer.core.index import BlockIndex
from catenary_kv_indexer.core.resync import HASH_BYTES, Link

SILENT_S = 5.0
"""A worker that holds blocks for running turns this long and never sent an event is blind to us: an alarm."""
FIRST_BEATS_S = 0.6
"""In so much time every live worker has been heard of."""
COLD_S = 5.0
"""After so much time an indexer answers even if some worker does not tell what it holds."""
BURIED_LIMIT = 4096


@dataclass(frozen=True, slots=True)
class Question:
    """What to ask a worker; see `Indexer.answered`."""

    worker: str
    incarnation: int
    query: KvReplay | SnapshotQuery


@dataclass(slots=True)
class Mirrored:
    """One worker as we know it.

    Attributes:
        ranks: how many its beat tells of; 0 before the first.
        truthful: its engine tells of its blocks at all.
        mute_since: when it was first seen to use blocks without a single event; 0 while it was not.
    """

    worker: str
    incarnation: int
    model: str
    block_size: int
    links: dict[int, Link] = field(default_factory=dict)
    ranks: int = 0
    truthful: bool = True
    mute_since: float = 0.0

    @property
    def known(self) -> bool:
        """Every rank is."""
        return (
            self.truthful and len(self.links) >= max(1, self.ranks) and all(link.known for link in self.links.values())
        )


class Indexer:
    """See the module.

    Attributes:
        counts: events by what became of them: applied, duplicate, stale, parent_unknown, malformed, block_size,
            timeout, snapshot, diverged.
    """

    def __init__(self, now: float = 0.0) -> None:
        self.began = now
        self.counts: Counter[str] = Counter()
        self.workers: dict[str, Mirrored] = {}
        self.indexes: dict[tuple[str, int], BlockIndex] = {}
        self._buried: dict[str, int] = {}

    # --- what comes in ------------------------------------------------------------------------------------------

    def events(self, message: KvEvents) -> None:
        """A live message of a worker."""
        worker = self.workers.get(message.worker)
        if message.incarnation <= self._buried.get(message.worker, -1) or (
            worker is not None and message.incarnation < worker.incarnation
        ):
            self.counts["stale"] += len(message.events)
            return
        worker = self._worker(message.worker, message.incarnation, message.model, message.block_size)
        if (message.model, message.block_size) != (worker.model, worker.block_size):
            self.counts["block_size"] += len(message.events)
            return
        self._link(worker, message.rank).events(message.first, message.events)

    def load(self, beat: WorkerLoad, now: float) -> None:
        """A worker's beat: it is alive, in this incarnation, and has sent so many events."""
        if not beat.block_size:
            return  # its engine has not said yet what a block is; there is nothing to mirror
        known = self.workers.get(beat.worker)
        if known is not None and beat.incarnation < known.incarnation:
            return
        if self._buried.get(beat.worker, -1) <= beat.incarnation:
            self._buried.pop(beat.worker, None)  # it beats, so it lives
        worker = self._worker(beat.worker, beat.incarnation, beat.model, beat.block_size)
        worker.ranks = len(beat.kv_last)
        worker.truthful = beat.kv_events != "none"
        for rank, tail in enumerate(beat.kv_last):
            self._link(worker, rank).told(tail, beat.kv_digest[rank] if rank < len(beat.kv_digest) else None)
        if beat.kv_used and worker.truthful and not any(beat.kv_last):
            worker.mute_since = worker.mute_since or now
        else:
            worker.mute_since = 0.0

    def answered(self, question: Question, answer: KvEvents | SnapshotPage | None, now: float) -> None:
        """A worker's answer; None when none came. One from another incarnation is none."""
        worker = self.workers.get(question.worker)
        if worker is None or worker.incarnation != question.incarnation:
            return
        if answer is not None and answer.incarnation != worker.incarnation:
            answer = None
        link = self._link(worker, question.query.rank)
        link.answered(question.query, answer, now)

    def gone(self, name: str, incarnation: int) -> None:
        """The worker is dead, or this incarnation of it is."""
        worker = self.workers.get(name)
        if worker is not None and worker.incarnation <= incarnation:
            self._drop(worker)
        self._buried.pop(name, None)
        self._buried[name] = incarnation
        if len(self._buried) > BURIED_LIMIT:
            del self._buried[next(iter(self._buried))]

    # --- what goes out ------------------------------------------------------------------------------------------

    def questions(self, now: float, of: str | None = None) -> list[Question]:
        """What to ask (of one worker), and whom; each is to be sent and its answer brought back."""
        workers = self.workers.values() if of is None else filter(None, (self.workers.get(of),))
        return [
            Question(worker.worker, worker.incarnation, query)
            for worker in workers
            for link in worker.links.values()
            if (query := link.wants(now)) is not None
        ]

    def warm(self, now: float) -> bool:
        """Whether to begin to answer: every worker heard of is known, or has had its time."""
        waited = now - self.began
        return waited > COLD_S or (
            waited > FIRST_BEATS_S
            and all(one.known or not one.truthful or not one.ranks for one in self.workers.values())
        )

    def forget_unheard(self) -> None:
        """Every live worker has beaten by now: those that only a dump tells of are gone, and nobody will bury them."""
        for worker in [one for one in self.workers.values() if not one.ranks]:
            self._drop(worker)

    def overlap(self, query: OverlapQuery) -> Overlap:
        """Leading blocks per worker (its best rank), and who is known."""
        key = (query.model, query.block_size)
        best: dict[str, int] = {}
        if (index := self.indexes.get(key)) is not None:
            whole = len(query.hashes) // HASH_BYTES * HASH_BYTES
            for holder, blocks in index.overlap(memoryview(query.hashes)[:whole].cast("Q")):
                if holder.owner:
                    best[holder.owner] = max(best.get(holder.owner, 0), blocks)
        return Overlap(
            workers=tuple(WorkerOverlap(worker=worker, blocks=blocks) for worker, blocks in best.items()),
            known=tuple(
                one.worker for one in self.workers.values() if (one.model, one.block_size) == key and one.known
            ),
        )

    def tidy(self, steps: int) -> bool:
        """Take `steps` small steps of cleaning in every index; True while there is more to wipe."""
        more = False
        for index in self.indexes.values():
            for _ in range(steps):
                more_here = index.tidy()
            more = more or more_here
        return more

    def mute(self, now: float) -> list[str]:
        """Workers that serve but send no events."""
        return [one.worker for one in self.workers.values() if one.mute_since and now - one.mute_since >= SILENT_S]

    # --- dump and load ------------------------------------------------------------------------------------------

    def dump(self) -> IndexDump:
        """All that is held and how far it goes."""
        return IndexDump(
            links=tuple(
                LinkDump.of(worker.worker, worker.incarnation, worker.model, worker.block_size, link)
                for worker in self.workers.values()
                for link in worker.links.values()
            )
        )

    def restore(self, dump: IndexDump) -> None:
        """Begin from a dump; nothing is known before beats confirm it."""
        for one in dump.links:
            worker = self._worker(one.worker, one.incarnation, one.model, one.block_size)
            one.into(self._link(worker, one.rank))

    # --- inside -------------------------------------------------------------------------------------------------

    def _worker(self, name: str, incarnation: int, model: str, block_size: int) -> Mirrored:
        worker = self.workers.get(name)
        if worker is not None and incarnation > worker.incarnation:
            self._drop(worker)
            worker = None
        if worker is None:
            worker = self.workers[name] = Mirrored(name, incarnation, model, block_size)
        return worker

    def _link(self, worker: Mirrored, rank: int) -> Link:
        link = worker.links.get(rank)
        if link is None:
            index = self.indexes.setdefault((worker.model, worker.block_size), BlockIndex())
            link = worker.links[rank] = Link(index, worker.worker, rank, self.counts)
        return link

    def _drop(self, worker: Mirrored) -> None:
        for link in worker.links.values():
            link.close()
        del self.workers[worker.worker]
