"""How long a session stays away when a turn ended in tool calls.

The rule: each tool has its usual time and how far it strays from that, as TCP has for a round trip (RFC 6298). From its
calls to the session's next turn counts all that keeps the session away: the tool, its harness, the way. Of several
calls the slowest is to blame. What is expected is bounded, so that a session that never comes back keeps nothing for
long.
"""

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass

UNKNOWN_S = 30.0
LEAST_S, MOST_S = 5.0, 120.0
USUAL_SHARE, STRAY_SHARE, STRAYS = 1 / 8, 1 / 4, 4
TOOLS, SESSIONS = 4096, 8192


@dataclass(slots=True)
class _Estimate:
    usual: float
    stray: float

    def note(self, seconds: float) -> None:
        self.stray += STRAY_SHARE * (abs(seconds - self.usual) - self.stray)
        self.usual += USUAL_SHARE * (seconds - self.usual)

    @property
    def expected(self) -> float:
        return min(MOST_S, max(LEAST_S, self.usual + STRAYS * self.stray))


@dataclass(frozen=True, slots=True)
class _Away:
    tools: tuple[str, ...]
    since: float


class Absences:
    """See the module. Times are seconds of one clock that the caller reads; `tenant`s know nothing of each other."""

    def __init__(self) -> None:
        self._tools: OrderedDict[tuple[str, str], _Estimate] = OrderedDict()
        self._away: OrderedDict[str, _Away] = OrderedDict()
        self._last: OrderedDict[str, tuple[str, ...]] = OrderedDict()

    def left(self, session: str, tools: Collection[str], now: float) -> None:
        """A turn of the session ended in calls of these tools."""
        self._away[session] = _Away(tuple(tools), now)
        self._last[session] = tuple(tools)
        for known in (self._away, self._last):
            known.move_to_end(session)
            if len(known) > SESSIONS:
                known.popitem(last=False)

    def back(self, tenant: str, session: str, now: float) -> None:
        """The session's next turn is here."""
        away = self._away.pop(session, None)
        if away is None or not away.tools:
            return
        slowest = max(away.tools, key=lambda tool: self.expected(tenant, (tool,)))
        key, seconds = (tenant, slowest), min(now - away.since, MOST_S)
        estimate = self._tools.get(key)
        if estimate is None:
            self._tools[key] = _Estimate(seconds, seconds / 2)
            if len(self._tools) > TOOLS:
                self._tools.popitem(last=False)
        else:
            estimate.note(seconds)
            self._tools.move_to_end(key)

    def over(self, session: str) -> None:
        """The session does not come back, or not from a tool."""
        self._away.pop(session, None)
        self._last.pop(session, None)

    def expected(self, tenant: str, tools: Collection[str]) -> float:
        """Seconds a session will stay away with calls of these tools; a guess for those never seen."""
        found = [self._tools.get((tenant, tool)) for tool in tools]
        return max((one.expected if one else UNKNOWN_S for one in found), default=UNKNOWN_S)

    def usual(self, tenant: str, session: str) -> float:
        """Seconds the session will stay away if its next turn ends as its last one did."""
        return self.expected(tenant, self._last.get(session, ()))
