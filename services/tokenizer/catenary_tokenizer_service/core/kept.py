"""How long a session's KV blocks are worth keeping.

The rule: a session that is away in a tool comes back; its blocks are kept ahead of others for about as long as its
tools take. One whose turn ended in an answer is like any other. One that is over gives its blocks up; so does a
sub-agent that has answered.
"""

from collections import OrderedDict
from collections.abc import Collection

from catenary_protocols.bus.messages import Retention

from catenary_tokenizer_service.core.away import SESSIONS, Absences

AWAY = 20
"""Priority of a session that is away in a tool."""
ORDINARY = Retention()
GIVEN_UP = Retention(priority=-1)


class Kept:
    """What each session's worker is told. Times are seconds of one clock that the caller reads."""

    def __init__(self) -> None:
        self._absences = Absences()
        self._at: OrderedDict[str, str] = OrderedDict()

    def begun(self, tenant: str, session: str, now: float, *, tools: bool, final: bool = False) -> Retention:
        """The session is back; what to say with its run. `tools`: it may end in calls; `final`: it ends the session."""
        self._absences.back(tenant, session, now)
        if final:
            return GIVEN_UP
        if not tools:
            return ORDINARY
        return Retention(priority=AWAY, seconds=self._absences.usual(tenant, session))

    def placed(self, session: str, worker: str) -> str:
        """It runs there now; the worker where it was before and nobody comes back to, if there is one."""
        before = self._at.get(session, "")
        self._at[session] = worker
        self._at.move_to_end(session)
        if len(self._at) > SESSIONS:
            self._at.popitem(last=False)
        return before if before != worker else ""

    def ended(
        self, tenant: str, session: str, called: Collection[str], now: float, *, subagent: bool
    ) -> tuple[Retention, str]:
        """Its turn ended by itself, in these calls or in an answer; what holds now, and why."""
        if called:
            self._absences.left(session, called, now)
            return Retention(priority=AWAY, seconds=self._absences.expected(tenant, called)), "away"
        self._absences.over(session)
        return (GIVEN_UP, "over") if subagent else (ORDINARY, "answered")
