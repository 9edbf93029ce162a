"""`worker.<worker>.do`: what tokenizers and operators ask of a worker."""

import asyncio
import time

from catenary_protocols.bus.codec import Decoder, encode
from catenary_protocols.bus.messages import CancelTurn, Drain, ResendTokens, Retain, RunTurn
from catenary_runtime import telemetry
from catenary_runtime.bus import Bus
from nats.aio.msg import Msg

from catenary_worker.runner import HANDED_BACK, Runner

Command = RunTurn | CancelTurn | Retain | ResendTokens | Drain
_decode: Decoder[Command] = Decoder(Command)  # type: ignore[arg-type]  # a union of types is no type to mypy


class Commands:
    """Carries each out at once, in the order in which they come."""

    def __init__(self, bus: Bus, runner: Runner) -> None:
        self._bus = bus
        self._runner = runner
        self._cut: asyncio.TimerHandle | None = None

    def on_message(self, msg: Msg) -> None:
        """One command."""
        match _decode(msg.data):
            case RunTurn() as run:
                answer = self._runner.run(run, telemetry.extract(msg.headers))
                if msg.reply:
                    self._bus.publish(msg.reply, encode(answer))
            case CancelTurn() as cancel:
                self._runner.cancel(cancel.turn, "asked")
            case Retain() as retain:
                self._runner.retain(retain)
            case ResendTokens() as resend:
                self._runner.resend(resend)
            case Drain() as drain:
                self._drain(drain.deadline)

    def _drain(self, deadline: float) -> None:
        self._runner.draining = True
        if self._cut is not None:
            self._cut.cancel()
            self._cut = None
        if deadline:
            left = max(0.0, deadline - time.time())
            self._cut = asyncio.get_running_loop().call_later(left, self._runner.give_up, HANDED_BACK)
