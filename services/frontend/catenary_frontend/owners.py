"""A turn's way to its owner: the tokenizer that rendezvous hashing picks for its session, or the next one.

Nothing here waits: every answer, and every absence of one, is a callback or a tick.
"""

import asyncio
from collections.abc import Callable

import msgspec
import structlog
from catenary_protocols.bus.codec import Decoder, encode
from catenary_protocols.bus.messages import Attach, Attached, Message, Refused, TurnRequest, TurnTaken
from catenary_protocols.errors import ErrorInfo
from catenary_protocols.ids import RESUBMIT_STEP, TurnKey
from catenary_runtime.bus import LONGEST_MESSAGE, Bus
from catenary_runtime.presence import Presence
from catenary_runtime.rendezvous import pick
from nats.aio.msg import Msg

from catenary_frontend.core.resubmit import cut_off, may_resubmit, nobody, owner_lost
from catenary_frontend.metrics import ATTACHED, RESUBMITTED
from catenary_frontend.turn import OpenTurn

log = structlog.get_logger()
_answer: Decoder[TurnTaken | Refused | Attached] = Decoder(TurnTaken | Refused | Attached)  # type: ignore[arg-type]  # a union

PATIENCE_S = 5.0
"""How long a turn waits for an owner while there is none, or for its owner's first word."""
OUTAGE_S = 30.0
"""How long turns that run wait for a broker that is away."""
ASK_AGAIN_S = 1.0
"""A request or `Attach` without an answer is sent again after this long."""
FIND_S = 0.5
"""How long owners have to say that a turn is theirs; the others say nothing."""
ASK_ANOTHER = frozenset({"draining", "model_not_ready"})
"""Refusals that speak of one owner only."""


class Owners:
    """See the module. `fail` ends a turn in an error.

    Attributes:
        cut_at: when we were last cut off from the bus, loop time.
    """

    def __init__(self, bus: Bus, presence: Presence, fail: Callable[[OpenTurn, ErrorInfo], None]) -> None:
        self._bus = bus
        self._presence = presence
        self._fail = fail
        self._now = asyncio.get_running_loop().time
        self.cut_at = -1.0

    def submit(self, turn: OpenTurn) -> None:
        """Ask the best owner there is to take it; without any, wait for one a while.

        While we are cut off nobody is asked, so that the turn is surely nobody's when we are back: `tick` submits it.
        """
        peers = {peer.instance: peer.incarnation for peer in self._presence.live("tokenizer") if peer.takes_work}
        turn.taken = False
        able = (name for name in peers if (name, peers[name]) not in turn.refused_by)
        turn.owner = "" if self._presence.cut_off else pick(turn.request.session, able) or ""
        if turn.owner:
            turn.incarnation = peers[turn.owner]
            self._ask(turn, turn.request, lambda: self._nobody_there(turn))
        elif not self._may_wait(turn):
            self._fail(turn, nobody(retry_after=1.0))

    def _submit_elsewhere(self, turn: OpenTurn) -> None:
        turn.refused_by.add((turn.owner, turn.incarnation))
        self.submit(turn)

    def remind(self, turn: OpenTurn, now: float) -> None:
        """An owner that has not said a word is asked again, then given up."""
        if now - max(turn.opened_at, self.cut_at) > PATIENCE_S:
            self._fail(turn, nobody(retry_after=1.0))
        elif now - turn.asked_at > ASK_AGAIN_S:
            self._ask(turn, turn.request, lambda: self._nobody_there(turn))

    def wait_for_bus(self, turn: OpenTurn, now: float, cut_s: float) -> None:
        """While we are cut off, turns wait: new ones a little, those that run as long as their owners may keep them."""
        if cut_s > OUTAGE_S or (not turn.taken and now - turn.opened_at > PATIENCE_S):
            self._fail(turn, cut_off(calls_published=turn.called))

    def lost(self, turn: OpenTurn) -> None:
        """Its owner is dead, or does not know it any more."""
        if not may_resubmit(last_event=turn.received.last, submitted_at=turn.opened_at, cut_at=self.cut_at):
            self._fail(turn, owner_lost(calls_published=turn.called))
            return
        RESUBMITTED.inc()
        log.warning("turn.resubmitted", turn=turn.id, lost=turn.owner)
        key = TurnKey(turn_id=turn.id, attempt=turn.key.attempt + RESUBMIT_STEP)
        turn.request = msgspec.structs.replace(turn.request, turn=key)
        self._submit_elsewhere(turn)

    def attach(self, turn: OpenTurn, why: str) -> None:
        """Ask for the events after the last one that came, unless that is asked already."""
        if turn.ask is not None and self._now() - turn.asked_at < ASK_AGAIN_S:
            return
        ATTACHED.labels(why=why).inc()
        message = Attach(
            turn_id=turn.id,
            frontend=self._presence.instance,
            frontend_incarnation=self._presence.incarnation,
            after=turn.received.last,
        )
        self._ask(turn, message, lambda: None)

    async def find(self, turn_id: str) -> Attached | None:
        """What a turn is, from the owner that has its log; None when none of those that answer has."""
        message = Attach(
            turn_id=turn_id,
            frontend=self._presence.instance,
            frontend_incarnation=self._presence.incarnation,
            look=True,
        )
        data = encode(message)
        found: asyncio.Future[Attached | None] = asyncio.get_running_loop().create_future()

        def answered(msg: Msg) -> None:
            answer = _answer(msg.data)
            if isinstance(answer, Attached) and not found.done():
                found.set_result(answer)

        asks = [
            self._bus.ask(self._bus.subjects.to("turn", tokenizer=peer.instance), data, answered, lambda: None)
            for peer in self._presence.live("tokenizer")
        ]
        try:
            async with asyncio.timeout(FIND_S):
                return await found
        except TimeoutError:
            return None
        finally:
            for ask in asks:
                ask.close()

    def send(self, owner: str, message: Message) -> None:
        """A command that needs no answer."""
        self._bus.publish(self._bus.subjects.to("turn", tokenizer=owner), encode(message))

    def _ask(self, turn: OpenTurn, message: TurnRequest | Attach, on_nobody: Callable[[], None]) -> None:
        turn.forget_ask()
        turn.asked_at = self._now()
        data = encode(message)
        if len(data) > LONGEST_MESSAGE:
            error = f"the request is {len(data)} bytes long on the bus; {LONGEST_MESSAGE} are possible"
            self._fail(turn, ErrorInfo(code="request_too_large", message=error))
            return
        turn.ask = self._bus.ask(
            self._bus.subjects.to("turn", tokenizer=turn.owner),
            data,
            lambda msg: self._answered(turn, msg),
            on_nobody,
            headers=turn.headers,
        )

    def _answered(self, turn: OpenTurn, msg: Msg) -> None:
        answer = _answer(msg.data)
        turn.forget_ask()
        if turn.ended:
            return
        if isinstance(answer, TurnTaken):
            turn.taken = True
        elif isinstance(answer, Refused):
            self._refused(turn, answer.error)

    def _refused(self, turn: OpenTurn, error: ErrorInfo) -> None:
        if error.code in ASK_ANOTHER and not turn.received.last:
            self._submit_elsewhere(turn)
        else:
            self._fail(turn, error)

    def _nobody_there(self, turn: OpenTurn) -> None:
        """Nobody listens: the owner is gone, or not back yet from the cut that we are just back from."""
        turn.forget_ask()
        if turn.ended or turn.received.last:
            return
        if self._bus.fresh:
            turn.owner = ""  # `tick` submits it again
        else:
            self._submit_elsewhere(turn)

    def _may_wait(self, turn: OpenTurn) -> bool:
        """Whether an owner may still turn up."""
        waited = self._now() - turn.opened_at
        return waited < PATIENCE_S and (self._presence.cut_off or self._bus.fresh or bool(turn.refused_by))
