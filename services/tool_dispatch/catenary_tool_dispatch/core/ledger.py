"""What became of each mesh call, by its key. The rule this file keeps: a call that is closed never opens again.

| state         | see  | start   | finish | expire  | cancel    | release |
| ------------- | ---- | ------- | ------ | ------- | --------- | ------- |
| (unknown)     | seen | running | done   | expired | cancelled |         |
| seen          |      | running | done   | expired | cancelled |         |
| running       |      |         | done   | expired | cancelled | seen    |
| done, expired, cancelled |  |  |        |         |           |         |

An empty field: nothing changes. Two instances that see the same stream hold the same closed calls; only `running` is
an instance's own. Both halves are bounded: the oldest closed call is forgotten, and the oldest that nobody runs here.
"""

from dataclasses import dataclass
from enum import Enum
from heapq import heapify, heappop, heappush


class State(Enum):
    """Where a call stands."""

    SEEN = "seen"
    RUNNING = "running"
    DONE = "done"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


class Event(Enum):
    """What can happen to a call."""

    SEE = "see"
    START = "start"
    FINISH = "finish"
    EXPIRE = "expire"
    CANCEL = "cancel"
    RELEASE = "release"


OPEN = frozenset({State.SEEN, State.RUNNING})
_CLOSING = {Event.FINISH: State.DONE, Event.EXPIRE: State.EXPIRED, Event.CANCEL: State.CANCELLED}
TRANSITIONS: dict[tuple[State | None, Event], State] = {
    (None, Event.SEE): State.SEEN,
    (None, Event.START): State.RUNNING,
    (State.SEEN, Event.START): State.RUNNING,
    (State.RUNNING, Event.RELEASE): State.SEEN,
    **{(state, event): to for state in (None, *OPEN) for event, to in _CLOSING.items()},
}


@dataclass(slots=True)
class OpenCall:
    """A call without a result.

    Attributes:
        deadline: Unix seconds; 0 means none.
    """

    key: str
    tool: str
    deadline: float
    state: State


class Ledger:
    """See the module. `limit` bounds the open and the closed calls, each."""

    def __init__(self, limit: int = 50_000) -> None:
        self._limit = limit
        self._open: dict[str, OpenCall] = {}
        self._closed: dict[str, State] = {}
        self._deadlines: list[tuple[float, str]] = []

    def state(self, key: str) -> State | None:
        """Where a call stands; None when it is unknown or forgotten."""
        call = self._open.get(key)
        return call.state if call else self._closed.get(key)

    def move(self, event: Event, key: str, *, tool: str = "", deadline: float = 0.0) -> bool:
        """Apply an event; says whether it changed anything. `tool` and `deadline` count when the call is new."""
        to = TRANSITIONS.get((self.state(key), event))
        if to is None:
            return False
        if to not in OPEN:
            self._open.pop(key, None)
            self._closed[key] = to
            if len(self._closed) > self._limit:
                del self._closed[next(iter(self._closed))]
            return True
        call = self._open.get(key)
        if call is None:
            self._make_room()
            call = self._open[key] = OpenCall(key, tool, deadline, to)
        call.state = to
        if to is State.SEEN and call.deadline:
            heappush(self._deadlines, (call.deadline, key))
        return True

    def due(self, now: float) -> list[OpenCall]:
        """The calls that nobody here runs and whose deadline has come; they are expired from now on."""
        calls = []
        while (deadline := self.next_deadline()) is not None and deadline <= now:
            _, key = heappop(self._deadlines)
            calls.append(self._open[key])
            self.move(Event.EXPIRE, key)
        return calls

    def next_deadline(self) -> float | None:
        """Unix seconds at which `due` will have something."""
        while self._deadlines:
            deadline, key = self._deadlines[0]
            if self.state(key) is State.SEEN:
                return deadline
            heappop(self._deadlines)
        return None

    def __len__(self) -> int:
        """How many calls are remembered."""
        return len(self._open) + len(self._closed)

    def _make_room(self) -> None:
        if len(self._open) >= self._limit:
            oldest = next((key for key, call in self._open.items() if call.state is State.SEEN), None)
            if oldest is not None:
                del self._open[oldest]
        if len(self._deadlines) > 2 * self._limit:
            self._deadlines = [one for one in self._deadlines if self.state(one[1]) is State.SEEN]
            heapify(self._deadlines)
