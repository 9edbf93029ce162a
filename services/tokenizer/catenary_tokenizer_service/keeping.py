"""How long a session's KV blocks are worth keeping: its worker is told a guess with each run, and better after it.

A session that is away in a tool comes back; its blocks are kept ahead of others for about as long as its tools take.
One whose turn ended in an answer is like any other. One that is over gives its blocks up.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Collection

from catenary_protocols.bus.codec import encode
from catenary_protocols.bus.messages import Retain, Retention, TurnRequest
from catenary_protocols.turn_events import FinishReason
from catenary_runtime.bus import Bus

from catenary_tokenizer_service.core.away import SESSIONS, Absences
from catenary_tokenizer_service.metrics import RETAINED
from catenary_tokenizer_service.turn import Turn

AWAY = 20
"""Priority of a session that is away in a tool."""
ORDINARY = Retention()
GIVEN_UP = Retention(priority=-1)


class Keeping:
    """See the module."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._absences = Absences()
        self._at: OrderedDict[str, str] = OrderedDict()

    def begun(self, request: TurnRequest) -> Retention:
        """The session is back; what to say with its run."""
        now = asyncio.get_running_loop().time()
        self._absences.back(request.tenant, request.session, now)
        if request.session_final:
            return GIVEN_UP
        conversation = request.conversation
        if not conversation.tools or conversation.tool_choice.mode == "none":
            return ORDINARY
        return Retention(priority=AWAY, seconds=self._absences.usual(request.tenant, request.session))

    def placed(self, turn: Turn) -> None:
        """Where the session was before, nobody comes back to."""
        session = turn.request.session
        before = self._at.get(session)
        if before is not None and before != turn.worker:
            self._tell(before, session, ORDINARY, "moved")
        self._at[session] = turn.worker
        self._at.move_to_end(session)
        if len(self._at) > SESSIONS:
            self._at.popitem(last=False)

    def ended(self, turn: Turn, reason: FinishReason, called: Collection[str]) -> Retention:
        """The turn ended like this; what holds now."""
        request, told = turn.request, turn.retention
        if request.session_final or reason not in {"stop", "tool_calls"}:
            return told
        if called:
            self._absences.left(request.session, called, asyncio.get_running_loop().time())
            seconds = self._absences.expected(request.tenant, called)
            wanted, why = Retention(priority=AWAY, seconds=seconds), "away"
        else:
            self._absences.over(request.session)
            wanted, why = (GIVEN_UP, "over") if request.subagent else (ORDINARY, "answered")
        if wanted != told:
            self._tell(turn.worker, request.session, wanted, why)
        return wanted

    def _tell(self, worker: str, session: str, retention: Retention, why: str) -> None:
        RETAINED.labels(why=why).inc()
        message = Retain(session=session, retention=retention)
        self._bus.publish(self._bus.subjects.to("do", worker=worker), encode(message))
