"""Which turns the engine has, and which wait for a place in it.

Rule: where the engine cannot order its queue, it gets no more turns than it can run and a few to go on with; the rest
wait here, greatest priority first, then in order of arrival.
"""

from heapq import heappop, heappush
from itertools import count

from catenary_protocols.ids import TurnKey

from catenary_worker.engines.trtllm.running import Running

AHEAD = 8
"""Turns that the engine has beyond its batch, so that no step waits for us."""


class Admission:
    """Counts and orders turns.

    Attributes:
        inside: turns in the engine, cancelled ones until it has let go of them.
    """

    def __init__(self, *, max_batch: int, max_waiting: int, orders_itself: bool) -> None:
        self.inside = 0
        self._limit = max_batch + max_waiting
        self._room = self._limit if orders_itself else max_batch + AHEAD
        self._waiting: dict[TurnKey, Running] = {}
        self._heap: list[tuple[int, int, Running]] = []
        self._arrivals = count()

    @property
    def full(self) -> bool:
        """No more turns may come."""
        return self.inside + len(self._waiting) >= self._limit

    @property
    def waiting(self) -> list[Running]:
        """Turns without a place."""
        return list(self._waiting.values())

    def add(self, turn: Running) -> None:
        """A turn came."""
        self._waiting[turn.turn.key] = turn
        heappush(self._heap, (-turn.turn.priority, next(self._arrivals), turn))

    def next(self) -> Running | None:
        """The turn that gets the next place; None if there is no place or nobody waits."""
        while self._heap and self.inside < self._room:
            turn = heappop(self._heap)[2]
            if not turn.ended:
                del self._waiting[turn.turn.key]
                self.inside += 1
                return turn
        return None

    def left(self) -> None:
        """The engine is done with a turn."""
        self.inside -= 1

    def withdraw(self, turn: Running) -> None:
        """A turn ended while it waited."""
        self._waiting.pop(turn.turn.key, None)
