"""Which workers have room for a turn, and how each of them looks to it.

The rule: room is a free slot, KV space, and prefill that will be through soon. A turn that finds most of its prompt on
a worker does not mind the prefill queued there: what it waits for is its own prefix, or it adds next to nothing.
"""

from dataclasses import dataclass, field

from catenary_protocols.bus.messages import PlaceTurn

from catenary_router.core.cost import Seen, Weights, backlog_s
from catenary_router.core.fleet import Fleet
from catenary_router.core.homes import Homes
from catenary_router.core.popular import Popular
from catenary_router.core.sharing import Sharing

Pool = tuple[str, str]
"""Model and card: the workers that can run the same turns."""


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

    @property
    def pool(self) -> Pool:
        """Whose workers can run it."""
        return self.place.model, self.place.card

    @property
    def hashes(self) -> memoryview:
        """Sequence hashes of the prompt's blocks."""
        data = self.place.hashes
        return memoryview(data)[: len(data) // 8 * 8].cast("Q")


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

    def candidates(self, entry: Entry, now: float) -> list[Seen]:
        """Workers that have room for this turn, as it sees them."""
        place, hashes = entry.place, entry.hashes
        serving = self._fleet.serving(place)
        mean = sum(worker.turns for worker in serving) / max(1, len(serving))
        popular, price = self._popular.shared(hashes, now)
        candidates = []
        for worker in serving:
            worker.work(now)
            held = min(entry.overlap.get(worker.name, 0), len(hashes))
            overlap = self._sharing.overlap(worker.name, hashes, held, now, known=worker.name in entry.known)
            new_tokens = max(1, place.prompt_tokens - overlap * place.block_size)
            saved = (1.0 - price) * max(0, popular - overlap) * place.block_size
            seen = Seen(worker, overlap, new_tokens, new_tokens - saved, self._homes.tokens(worker.name), mean)
            if self._has_room(seen, place, held, overlap - held):
                candidates.append(seen)
        return candidates

    def _has_room(self, seen: Seen, place: PlaceTurn, held: int, coming: int) -> bool:
        """A free slot, KV space, and no long wait; but who finds most of its prompt there waits for that prefill.

        `coming` blocks of the prompt are just being computed there, so they are among the used ones already. Those
        that are `held` are used already if others share them, else they will be: half of them is the guess.
        """
        worker = seen.worker
        if worker.turns >= worker.slots:
            return False
        if not worker.turns:
            return True
        if 2 * seen.new_tokens > place.prompt_tokens and backlog_s(worker, self._weights) > self._limits.backlog_s:
            return False
        blocks = -(-place.prompt_tokens // place.block_size) - coming - held // 2
        return not worker.beat.kv_total or worker.used_blocks + blocks <= worker.beat.kv_total
