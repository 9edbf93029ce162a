"""Tells workers how long a session's KV blocks are worth keeping: a guess with each run, and better after it."""

import asyncio
from collections.abc import Collection

from catenary_protocols.bus.codec import encode
from catenary_protocols.bus.messages import Retain, Retention, TurnRequest
from catenary_protocols.turn_events import FinishReason
from catenary_runtime.bus import Bus

from catenary_tokenizer_service.core.kept import ORDINARY, Kept
from catenary_tokenizer_service.metrics import RETAINED
from catenary_tokenizer_service.turn import Turn


class Keeping:
    """See the module."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._kept = Kept()

    def begun(self, request: TurnRequest) -> Retention:
        """The session is back; what to say with its run."""
        conversation = request.conversation
        tools = bool(conversation.tools) and conversation.tool_choice.mode != "none"
        return self._kept.begun(
            request.tenant, request.session, asyncio.get_running_loop().time(), tools=tools, final=request.session_final
        )

    def placed(self, turn: Turn) -> None:
        """Where the session was before, nobody comes back to."""
        session = turn.request.session
        if before := self._kept.placed(session, turn.worker):
            self._tell(before, session, ORDINARY, "moved")

    def ended(self, turn: Turn, reason: FinishReason, called: Collection[str]) -> Retention:
        """The turn ended like this; what holds now."""
        request, told = turn.request, turn.retention
        if request.session_final or reason not in {"stop", "tool_calls"}:
            return told
        wanted, why = self._kept.ended(
            request.tenant, request.session, called, asyncio.get_running_loop().time(), subagent=request.subagent
        )
        if wanted != told:
            self._tell(turn.worker, request.session, wanted, why)
        return wanted

    def _tell(self, worker: str, session: str, retention: Retention, why: str) -> None:
        RETAINED.labels(why=why).inc()
        message = Retain(session=session, retention=retention)
        self._bus.publish(self._bus.subjects.to("do", worker=worker), encode(message))
