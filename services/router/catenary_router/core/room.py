"""Which workers have room for a turn, and how each of them looks to it.

The rule: room is a free slot, KV space, and prefill that will be through soon. A turn that finds most of its prompt on
a worker does not mind the prefill queued there: what it waits for is its own prefix, or it adds next to nothing.
"""

from dataclasses import dataclass, field

from catenary_protocols.bus.messages import PlaceTurn
from catenary_protocols.conversation import Within

from catenary_router.core.cost import Seen, Weights, backlog_s
from catenary_router.core.fleet import Fleet, Worker
from catenary_router.core.homes import Homes
from catenary_router.core.marks import Mark, marks_of
from catenary_router.core.popular import Popular
from catenary_router.core.sharing import Sharing

OUTPUT_GUESS = 256
SPARE = 0.01
"""Share of the cache that engines keep free for what is being generated."""
Pool = tuple[str, str, Within]
"""Model, card, and where a turn may run: the workers that can run the same turns."""


@dataclass(frozen=True, slots=True)
class Limits:
    """When a worker has room, and how many turns may wait how long.

    Attributes:
        queue: turns that may wait.
        wait_s: seconds one of them waits at most.
        backlog_s: seconds of queued prefill above which a worker that has turns has no room for more.
    """

    queue: int = 2000
    wait_s: float = 120.0
    backlog_s: float = 1.0


@dataclass(slots=True)
class Entry:
    """A turn at the desk: its overlap is being asked for, or it waits.

    Attributes:
        reply: where answers go; the asker's affair.
        overlap: blocks by worker.
        overlap_at: when that was so; 0: not asked yet.
        asking: an overlap query is out.
        told_at: when it was last told its position.
    """

    place: PlaceTurn
    reply: object
    since: float
    overlap: dict[str, int] = field(default_factory=dict)
    known: frozenset[str] = frozenset()
    overlap_at: float = 0.0
    asking: bool = False
    told_at: float = 0.0
    _marks: list[Mark] = field(default_factory=list)
    _blocks: int = 0

    @property
    def pool(self) -> Pool:
        """Whose workers can run it."""
        return self.place.model, self.place.card, self.place.within

    @property
    def hashes(self) -> memoryview:
        """Sequence hashes of the prompt's blocks."""
        data = self.place.hashes
        return memoryview(data)[: len(data) // 8 * 8].cast("Q")

    @property
    def blocks(self) -> int:
        """That it will hold when it ends."""
        if not self._blocks:
            self._blocks = -(-(self.place.prompt_tokens + output_of(self.place)) // self.place.block_size)
        return self._blocks

    @property
    def marks(self) -> list[Mark]:
        """The prompt at some lengths."""
        if not self._marks:
            self._marks = marks_of(self.hashes)
        return self._marks


class Room:
    """See the module."""

    def __init__(
        self, fleet: Fleet, sharing: Sharing, homes: Homes, popular: Popular, *, weights: Weights, limits: Limits
    ) -> None:
        self._fleet = fleet
        self._sharing = sharing
        self._homes = homes
        self._popular = popular
        self._weights = weights
        self._limits = limits

    def look(self, entry: Entry, now: float) -> list[Seen]:
        """The workers that have room, as this turn sees them."""
        place, hashes = entry.place, entry.hashes
        serving = self._fleet.serving(place)
        turns = [worker.turns for worker in serving]
        mean = sum(turns) / max(1, len(turns))
        popular, price = self._popular.shared(entry.marks, now)
        roomy: list[Seen] = []
        for worker, there in zip(serving, turns, strict=True):
            worker.work(now)
            held = min(entry.overlap.get(worker.name, 0), len(hashes))
            overlap = self._sharing.overlap(worker.name, hashes, held, now, known=worker.name in entry.known)
            new_tokens = max(1, place.prompt_tokens - overlap * place.block_size)
            saved = (1.0 - price) * max(0, popular - overlap) * place.block_size
            seen = Seen(
                worker,
                overlap,
                new_tokens,
                new_tokens - saved,
                there,
                worker.queued_tokens,
                self._homes.tokens(worker.name),
                mean,
            )
            if self._has_room(seen, entry):
                roomy.append(seen)
        return roomy

    def _has_room(self, seen: Seen, entry: Entry) -> bool:
        """A free slot, KV space, and no long wait; but who finds most of its prompt there waits for that prefill."""
        worker = seen.worker
        if seen.turns >= worker.slots:
            return False
        if not seen.turns:
            return True
        if (
            seen.queued_tokens
            and 2 * seen.new_tokens > entry.place.prompt_tokens
            and backlog_s(seen, self._weights) > self._limits.backlog_s
        ):
            return False
        total = worker.beat.kv_total
        free = total * (1.0 - SPARE) - worker.used_blocks
        return not total or entry.blocks <= free or new_blocks(entry, worker) <= free


def new_blocks(entry: Entry, worker: Worker) -> int:
    """Blocks it would hold there that no other turn does."""
    return entry.blocks - worker.running.held(entry.marks)


def output_of(place: PlaceTurn) -> int:
    """Tokens it will probably generate."""
    return place.hints.osl or min(place.max_tokens or OUTPUT_GUESS, OUTPUT_GUESS)
