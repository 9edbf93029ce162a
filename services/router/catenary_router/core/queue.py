"""Turns that wait for room.

The rule: strict priority first; then by the time a turn counts as arrived: a session's waiting turn counts as arrived
after its earlier ones were served, so that one session cannot crowd out others, and each level of priority counts as
having come some seconds earlier, so that the highest priority is served first but the lowest is never starved. The
queue is bounded, and every turn in it has a last moment.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass

PRIORITY_S = 5.0
"""Head start of one level of priority."""
PRIORITY_MOST = 10
Rank = tuple[int, float, int]


@dataclass(slots=True)
class Ticket:
    """One waiting turn's place in the queue."""

    turn_id: str
    rank: Rank
    expires: float
    charge_s: float


class FairQueue:
    """See the module."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._ranks: list[tuple[Rank, str]] = []
        self._tickets: dict[str, Ticket] = {}
        self._served_until: dict[str, float] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._tickets)

    def __contains__(self, turn_id: str) -> bool:
        return turn_id in self._tickets

    def __iter__(self) -> Iterator[str]:
        """Turn ids in order; the queue may change meanwhile."""
        return iter([turn_id for _, turn_id in self._ranks])

    @property
    def full(self) -> bool:
        """No one more may come in."""
        return len(self._tickets) >= self.limit

    @property
    def charge_s(self) -> float:
        """Seconds of one worker's work that wait here."""
        return sum(ticket.charge_s for ticket in self._tickets.values())

    def put(
        self,
        turn_id: str,
        session: str,
        *,
        arrived_at: float,
        charge_s: float,
        expires: float,
        priority: int = 0,
        strict_priority: int = 0,
    ) -> None:
        """Wait. `charge_s`: seconds of a worker's time the turn will take; it is what its session is charged."""
        begins = max(arrived_at, self._served_until.get(session, 0.0))
        self._served_until[session] = begins + charge_s
        self._count += 1
        head_start = PRIORITY_S * max(-PRIORITY_MOST, min(PRIORITY_MOST, priority))
        rank = (-strict_priority, begins - head_start, self._count)
        self._tickets[turn_id] = Ticket(turn_id, rank, expires, charge_s)
        insort(self._ranks, (rank, turn_id))

    def remove(self, turn_id: str) -> bool:
        """It was placed, cancelled or has expired; False when it was not here."""
        ticket = self._tickets.pop(turn_id, None)
        if ticket is None:
            return False
        del self._ranks[bisect_left(self._ranks, (ticket.rank, turn_id))]
        if not self._ranks:
            self._served_until.clear()
        return True

    def position(self, turn_id: str) -> int:
        """From 1."""
        return bisect_left(self._ranks, (self._tickets[turn_id].rank, turn_id)) + 1

    def expired(self, now: float) -> list[str]:
        """Turns whose last moment has passed."""
        return [ticket.turn_id for ticket in self._tickets.values() if ticket.expires <= now]
