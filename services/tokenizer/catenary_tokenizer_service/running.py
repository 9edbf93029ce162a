"""A placed turn on its worker: sends `RunTurn`, takes token frames, asks for what is missing, notices what is gone."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import structlog
from catenary_protocols.bus.codec import Decoder, encode
from catenary_protocols.bus.messages import (
    CancelTurn,
    Refused,
    ResendTokens,
    RunTurn,
    TokenFrame,
    TurnAdmitted,
    TurnTokens,
    WorkerLoad,
)
from catenary_protocols.conversation import Sampling
from catenary_protocols.errors import ErrorInfo
from catenary_protocols.ids import TurnKey
from catenary_runtime.bus import LONGEST_MESSAGE, Ask, Bus
from catenary_runtime.links import LinkReceiver
from catenary_runtime.metrics import LINK_GAPS
from catenary_runtime.presence import Peer, Presence
from nats.aio.msg import Msg

from catenary_tokenizer_service.metrics import RESENDS
from catenary_tokenizer_service.models import Models
from catenary_tokenizer_service.turn import Phase, Turn

log = structlog.get_logger()
_frame = Decoder(TokenFrame)
_answer: Decoder[TurnAdmitted | Refused] = Decoder(TurnAdmitted | Refused)  # type: ignore[arg-type]
MOVES_ON = frozenset({"draining", "worker_lost", "overloaded", "queue_full", "no_worker", "disconnected"})
"""Errors of a worker that another worker may not have."""


@dataclass(slots=True)
class RunningEvents:
    """What comes of it."""

    on_tokens: Callable[[Turn, TurnTokens, bytes], None]
    on_lost: Callable[[Turn, str], None]
    on_failed: Callable[[Turn, ErrorInfo], None]
    on_other: Callable[[TurnTokens], None]


@dataclass(slots=True)
class _Order:
    """A `RunTurn` that is not answered yet. `again`: nobody listened just after a reconnect."""

    key: TurnKey
    subject: str
    data: bytes
    ask: Ask | None = None
    again: bool = False


class Runner:
    """Turns that run on workers."""

    def __init__(self, bus: Bus, presence: Presence, turns: dict[str, Turn], events: RunningEvents) -> None:
        self._bus = bus
        self._presence = presence
        self._turns = turns
        self._events = events
        self._orders: dict[str, _Order] = {}
        self._links = LinkReceiver()

    def run(self, turn: Turn, models: Models) -> None:
        """Send the turn's current attempt to the worker it was placed on."""
        model = models.get(turn.card)
        if turn.prompt is None or model is None:
            raise RuntimeError(f"turn {turn.turn_id} is run before it is prepared")
        request = turn.request
        turn.phase = Phase.RUNNING
        turn.running_since = asyncio.get_running_loop().time()
        message = RunTurn(
            turn=turn.key,
            tokenizer=self._presence.instance,
            tokenizer_incarnation=self._presence.incarnation,
            model=request.model,
            card=model.card.card,
            prompt=turn.prompt.ids,
            generated=bytes(turn.generated.ids),
            sampling=turn.sampling,
            stop_token_ids=_stops(turn.sampling, model.tokenizer.eos_ids),
            hints=request.hints,
            salt=turn.prompt.salt,
            images=turn.prompt.images,
            image_at=turn.prompt.image_at,
            session=request.session,
            guide=turn.prompt.guide,
            deadline=request.deadline,
            retention=turn.retention,
            half=turn.half,
            handoff=turn.handoff,
            hashes=turn.prompt.hashes,
        )
        self._close(turn)
        order = _Order(turn.key, self._bus.subjects.to("do", worker=turn.worker), encode(message))
        if len(order.data) > LONGEST_MESSAGE:
            error = f"the prompt is {len(order.data)} bytes long on the bus; {LONGEST_MESSAGE} are possible"
            self._events.on_failed(turn, ErrorInfo(code="request_too_large", message=error, field="messages"))
            return
        self._orders[turn.turn_id] = order
        self._send(turn, order)

    def _send(self, turn: Turn, order: _Order) -> None:
        order.again = False
        order.ask = self._bus.ask(
            order.subject,
            order.data,
            lambda msg: self._answered(turn, order, msg),
            lambda: self._nobody(turn, order),
            headers=turn.trace,
        )

    def cancel(self, turn: Turn, reason: str) -> None:
        """Stop the turn's current attempt on its worker."""
        self._close(turn)
        if turn.worker:
            subject = self._bus.subjects.to("do", worker=turn.worker)
            self._bus.publish(subject, encode(CancelTurn(turn=turn.key, reason=reason)))

    def frame(self, msg: Msg) -> None:
        """A `TokenFrame`."""
        frame = _frame(msg.data)
        if self._links.arrived(frame.worker, frame.incarnation, frame.number):
            LINK_GAPS.labels(link="tokens").inc()
            self._resend_all(frame.worker, "link")
        for item in frame.items:
            turn = self._turns.get(item.turn_id)
            if turn is None:
                self._events.on_other(item)
                continue
            if turn.phase is not Phase.RUNNING or turn.stream is None:
                continue
            verdict, fresh = turn.generated.take(item.attempt, item.offset, item.tokens)
            if verdict == "taken":
                turn.admitted = True
                self._events.on_tokens(turn, item, fresh)
            elif verdict == "gap":
                self._resend(turn, "offset")

    def renewed(self) -> None:
        """We were thought dead: workers may have forgotten how far their frames to us were."""
        self._links = LinkReceiver()

    def worker_beat(self, peer: Peer) -> None:
        """Compare what a worker says of our turns with what we have."""
        beat = peer.beat
        if not isinstance(beat, WorkerLoad):
            return
        mine = {(live.turn_id, live.attempt): live.offset for live in beat.turns if live.at == self._presence.instance}
        for tail in beat.tails:
            if tail.to == self._presence.instance and self._links.tail_lost(
                peer.instance, beat.incarnation, tail.number
            ):
                LINK_GAPS.labels(link="tokens").inc()
                self._resend_all(peer.instance, "tail")
        now = asyncio.get_running_loop().time()
        for turn in self._on(peer.instance):
            offset = mine.get((turn.turn_id, turn.generated.attempt))
            settled = turn.admitted and now - turn.running_since > self._bus.death_limit
            match turn.watch.beat(offset, turn.generated.count, settled=settled):
                case "resend":
                    self._resend(turn, "beat")
                case "gone":
                    self._events.on_lost(turn, "forgotten")

    def worker_down(self, peer: Peer) -> None:
        """Its turns go on elsewhere."""
        self._links.forget(peer.instance)
        for turn in self._on(peer.instance):
            self._events.on_lost(turn, "dead")

    def worker_renewed(self, _old: Peer, new: Peer) -> None:
        """It was cut off, and asks whether to go on; or it was restarted, and has nothing."""
        kept = {(live.turn_id, live.attempt) for live in new.beat.turns}
        for turn in self._on(new.instance):
            if (turn.turn_id, turn.generated.attempt) in kept:
                self._resend(turn, "renewed")
            else:
                self._events.on_lost(turn, "restarted")

    def answer_strays(self, peer: Peer) -> None:
        """Cancel attempts that a renewed worker holds for us and that are not current any more."""
        for live in peer.beat.turns:
            if live.at != self._presence.instance:
                continue
            turn = self._turns.get(live.turn_id)
            current = turn is not None and turn.phase is Phase.RUNNING and turn.worker == peer.instance
            if not current or (turn is not None and turn.generated.attempt != live.attempt):
                key = TurnKey(turn_id=live.turn_id, attempt=live.attempt)
                subject = self._bus.subjects.to("do", worker=peer.instance)
                self._bus.publish(subject, encode(CancelTurn(turn=key, reason="not current")))

    def tick(self, now: float) -> None:
        """A worker that does not answer `RunTurn` within the death limit does not get to run it."""
        if self._presence.cut_off:
            return
        for turn_id, order in list(self._orders.items()):
            turn = self._turns.get(turn_id)
            if turn is None or turn.phase is not Phase.RUNNING or turn.key != order.key:
                self._orders.pop(turn_id)
                self._release(order)
            elif not turn.admitted and now - turn.running_since > self._bus.death_limit:
                self.cancel(turn, "no answer")
                self._events.on_lost(turn, "silent")
            elif order.again:
                self._send(turn, order)

    def _on(self, worker: str) -> list[Turn]:
        return [turn for turn in self._turns.values() if turn.worker == worker and turn.phase is Phase.RUNNING]

    def _answered(self, turn: Turn, order: _Order, msg: Msg) -> None:
        answer = _answer(msg.data)
        if turn.key != order.key or turn.phase is not Phase.RUNNING:
            return
        self._close(turn)
        if isinstance(answer, TurnAdmitted):
            turn.admitted = True
        elif answer.error.code in MOVES_ON:
            self._events.on_lost(turn, answer.error.code)
        else:
            self._events.on_failed(turn, answer.error)

    def _nobody(self, turn: Turn, order: _Order) -> None:
        if turn.key != order.key or turn.phase is not Phase.RUNNING or turn.admitted:
            return
        if self._bus.fresh:  # the worker may not have subscribed again yet
            self._release(order)
            order.again = True
            return
        self._close(turn)
        self._events.on_lost(turn, "not there")

    def _close(self, turn: Turn) -> None:
        order = self._orders.pop(turn.turn_id, None)
        if order is not None:
            self._release(order)

    @staticmethod
    def _release(order: _Order) -> None:
        if order.ask is not None:
            order.ask.close()
            order.ask = None

    def _resend_all(self, worker: str, reason: str) -> None:
        for turn in self._on(worker):
            self._resend(turn, reason)

    def _resend(self, turn: Turn, reason: str) -> None:
        RESENDS.labels(reason=reason).inc()
        message = ResendTokens(turn=turn.key, tokenizer=self._presence.instance, offset=turn.generated.count)
        self._bus.publish(self._bus.subjects.to("do", worker=turn.worker), encode(message))


def _stops(sampling: Sampling, eos: frozenset[int]) -> tuple[int, ...]:
    """Ids that end the turn: the client's, and the model's own unless they are to be ignored."""
    return tuple(sorted({*sampling.stop_token_ids, *(() if sampling.ignore_eos else eos)}))
