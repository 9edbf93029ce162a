"""Tool calls onto the bus, the moment they are whole; their results back into the turn.

The event frame that holds a call leaves on the connection before its `tool.call`. `Nats-Msg-Id` makes a repeat a
duplicate: for a call that is sent again since no acknowledgement came, that is all; for a turn that was submitted
again it means that someone may have run the call already, and the turn ends.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import structlog
from catenary_protocols.bus.codec import Decoder, encode_json
from catenary_protocols.bus.tool_plane import ToolCall, ToolCancel, ToolResult
from catenary_protocols.ids import RESUBMIT_STEP, turn_of_call
from catenary_protocols.turn_events import CallComplete, ToolResulted
from catenary_runtime.bus import Ask, Bus
from nats.aio.msg import Msg

from catenary_tokenizer_service.egress.frames import Outbox
from catenary_tokenizer_service.metrics import CALLS
from catenary_tokenizer_service.turn import Phase, Turn

log = structlog.get_logger()
ACK_S = 1.0
_result: Decoder[ToolResult] = Decoder(ToolResult, json=True)


class _Ack(msgspec.Struct):
    """JetStream's answer to a publish."""

    stream: str = ""
    duplicate: bool = False
    error: dict[str, msgspec.Raw] | None = None


_ack: Decoder[_Ack] = Decoder(_Ack, json=True)


@dataclass(slots=True)
class _Sent:
    turn: Turn
    call: ToolCall
    subject: str
    sent_at: float
    tries: int = 1
    ask: Ask | None = None

    def close(self) -> None:
        """What is said to it is not wanted any more."""
        if self.ask is not None:
            self.ask.close()


class CallPublisher:
    """Publishes calls until JetStream has them. `on_duplicate` ends a resubmitted turn."""

    def __init__(self, bus: Bus, outbox: Outbox, deadline_s: float, on_duplicate: Callable[[Turn], None]) -> None:
        self._bus = bus
        self._outbox = outbox
        self._deadline_s = deadline_s
        self._on_duplicate = on_duplicate
        self._unacked: dict[str, _Sent] = {}

    def publish(self, turn: Turn, call: CallComplete) -> None:
        """Put one call on the bus; `run_by` must be set."""
        self._outbox.flush()
        now = time.time()
        message = ToolCall(
            key=call.key,
            id=call.id,
            tool=call.name,
            arguments=msgspec.Raw(call.arguments.encode()),
            run_by="mesh" if call.run_by == "mesh" else "client",
            turn_id=turn.turn_id,
            index=call.index,
            choice=call.choice,
            session=turn.request.session,
            model=turn.request.model,
            deadline=now + self._deadline_s,
            remaining_ms=int(self._deadline_s * 1000),
            published_at=now,
        )
        turn.published = True
        if call.run_by == "mesh":
            turn.open_calls[call.key] = call.name
        subject = self._bus.subjects.to("tool_call", tool=call.name, run_by=message.run_by)
        sent = self._unacked[call.key] = _Sent(turn, message, subject, asyncio.get_running_loop().time())
        CALLS.labels(run_by=message.run_by).inc()
        self._send(sent)

    def _send(self, sent: _Sent) -> None:
        sent.close()
        headers = {"Nats-Msg-Id": f"call:{sent.call.key}", **sent.turn.trace}
        sent.ask = self._bus.ask(
            sent.subject,
            encode_json(sent.call),
            lambda msg: self._acked(sent, msg),
            lambda: None,  # no stream, or no JetStream just now: `tick` tries again
            headers=headers,
        )

    def _acked(self, sent: _Sent, msg: Msg) -> None:
        ack = _ack(msg.data)
        if ack.error is not None:
            return
        sent.close()
        self._unacked.pop(sent.call.key, None)
        if ack.duplicate and sent.tries == 1 and sent.turn.request.turn.attempt >= RESUBMIT_STEP:
            self._on_duplicate(sent.turn)

    def tick(self, now: float) -> None:
        """Send again what was not acknowledged, until its deadline."""
        for key, sent in list(self._unacked.items()):
            if time.time() > sent.call.deadline:
                log.error("toolcall.lost", key=key, tool=sent.call.tool)
                sent.close()
                del self._unacked[key]
            elif now - sent.sent_at > ACK_S:
                sent.sent_at = now
                sent.tries += 1
                self._send(sent)

    def cancel(self, turn: Turn, reason: str) -> None:
        """Tell executors that nobody waits for this turn's calls any more."""
        for key, tool in turn.open_calls.items():
            if (sent := self._unacked.pop(key, None)) is not None:
                sent.close()
            subject = self._bus.subjects.to("tool_cancel", tool=tool, key=key)
            self._bus.publish(
                subject,
                encode_json(ToolCancel(key=key, tool=tool, reason=reason)),
                headers={"Nats-Msg-Id": f"cancel:{key}"},
            )
        turn.open_calls.clear()

    def result(self, turns: dict[str, Turn], msg: Msg) -> ToolResult:
        """A result on the bus, read: an event of its turn while that streams."""
        result = _result(msg.data)
        turn = turns.get(turn_of_call(result.key))
        if turn is None or turn.open_calls.pop(result.key, None) is None or result.late:
            return result
        if turn.phase is not Phase.ENDED:
            failed = result.error is not None
            output = result.output or (result.error.message if result.error else "")
            event = ToolResulted(key=result.key, name=result.tool, output=output, is_error=failed)
            self._outbox.add(turn, [event])
        return result
