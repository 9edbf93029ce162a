"""Turns that wait for room.

The rule: strict priority first; then fair over sessions (start-time fair queueing): time here is the seconds of a
worker's work that each waiting session has been given on average, a session's turn begins when what it asked for before
has been given, and one that comes anew begins now. So a session that floods gets what others leave and no more. Each
level of priority begins some seconds earlier; since time goes on with every turn served, the highest is served first
but the lowest is never starved. The queue is bounded, and every turn in it has a last moment.
"""

from bisect import bisect_left, insort
from collections import Counter
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
    session: str
    rank: Rank
    expires: float
    charge_s: float


class FairQueue:
    """See the module."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._ranks: list[tuple[Rank, str]] = []
        self._tickets: dict[str, Ticket] = {}
        self._time = 0.0
        self._given_until: dict[str, float] = {}
        self._waiting: Counter[str] = Counter()
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
    def last(self) -> str:
        """Who would be served last of those that wait now."""
        return self._ranks[-1][1]

    @property
    def charge_s(self) -> float:
        """Seconds of one worker's work that wait here."""
        return sum(ticket.charge_s for ticket in self._tickets.values())

    def put(
        self,
        turn_id: str,
        session: str,
        *,
        waited_s: float,
        charge_s: float,
        expires: float,
        priority: int = 0,
        strict_priority: int = 0,
    ) -> None:
        """Wait. `charge_s`: seconds of a worker's time the turn will take; `waited_s`: it waited elsewhere before."""
        if not self._ranks:
            self._given_until.clear()
            self._time = 0.0
        begins = max(self._time, self._given_until.get(session, 0.0))
        self._given_until[session] = begins + charge_s
        self._waiting[session] += 1
        self._count += 1
        head_start = PRIORITY_S * max(-PRIORITY_MOST, min(PRIORITY_MOST, priority)) + waited_s
        rank = (-strict_priority, begins - head_start, self._count)
        self._tickets[turn_id] = Ticket(turn_id, session, rank, expires, charge_s)
        insort(self._ranks, (rank, turn_id))

    def served(self, turn_id: str) -> bool:
        """It was placed; False when it was not here."""
        sessions = len(self._waiting)
        ticket = self._leave(turn_id)
        if ticket is None:
            return False
        self._time += ticket.charge_s / sessions
        return True

    def remove(self, turn_id: str) -> bool:
        """It was cancelled or has expired, and costs its session nothing; False when it was not here."""
        ticket = self._leave(turn_id)
        if ticket is None:
            return False
        self._given_until[ticket.session] -= ticket.charge_s
        return True

    def _leave(self, turn_id: str) -> Ticket | None:
        ticket = self._tickets.pop(turn_id, None)
        if ticket is not None:
            del self._ranks[bisect_left(self._ranks, (ticket.rank, turn_id))]
            self._waiting[ticket.session] -= 1
            if not self._waiting[ticket.session]:
                del self._waiting[ticket.session]
        return ticket

    def position(self, turn_id: str) -> int:
        """From 1."""
        return bisect_left(self._ranks, (self._tickets[turn_id].rank, turn_id)) + 1

    def expired(self, now: float) -> list[str]:
        """Turns whose last moment has passed."""
        return [ticket.turn_id for ticket in self._tickets.values() if ticket.expires <= now]
