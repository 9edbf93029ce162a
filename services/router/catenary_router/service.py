"""The router on the bus: turns and beats in, placements out."""

import asyncio
import random
import time
from dataclasses import dataclass
from typing import Any

import structlog
from catenary_protocols.bus.codec import Decoder, encode
from catenary_protocols.bus.messages import Beat, CancelPlace, Placement, PlaceTurn, Refused, WorkerLoad
from catenary_runtime import semconv, telemetry
from catenary_runtime.presence import Listener, Peer
from catenary_runtime.service import Service
from nats.aio.msg import Msg

from catenary_router.admin import with_placements
from catenary_router.core.cost import Weights
from catenary_router.core.desk import Decided, Desk, Outcome
from catenary_router.core.room import Entry, Limits
from catenary_router.metrics import DECISIONS, PREDICTED_HIT, QUEUE_DEPTH, REFUSALS, WAITED
from catenary_router.overlaps import Overlaps
from catenary_router.policies import policy_named
from catenary_router.settings import RouterSettings

log = structlog.get_logger()
_decode: Decoder[PlaceTurn | CancelPlace] = Decoder(PlaceTurn | CancelPlace)  # type: ignore[arg-type]
TICK_S = 0.1


@dataclass(slots=True)
class Asker:
    """Where a turn's answers go, and the span they end."""

    subject: str
    span: telemetry.Span


class Router(Service[RouterSettings]):
    """Places each turn on the worker where it finishes first."""

    name = "router"
    section = "router"
    package = "catenary-router"
    watches = ("worker", "tokenizer")

    async def start(self) -> None:
        """Listen to beats and turns."""
        s = self.settings
        weights = Weights(harm=s.harm, decode=s.decode, crowding=s.crowding)
        self._desk = Desk(
            router=self.instance,
            policy=policy_named(s.policy, weights, random.Random(self.incarnation)),  # noqa: S311  # no secret
            weights=weights,
            limits=Limits(queue=s.queue_limit, wait_s=s.queue_wait_s, backlog_s=s.backlog_s),
            now=time.time(),
        )
        self._desk.renew(self.incarnation)
        self.presence.on_renewed = lambda _: self._desk.renew(self.incarnation)
        self._overlaps = Overlaps(self.bus, s.overlap_timeout_s)
        self.presence.listen(Listener(on_beat=self._on_beat, on_down=self._on_down))
        await self.bus.subscribe(self.subjects.to("place", router=self.instance), self._on_place)
        self.spawn(self._ticks(), "ticks")

    def app(self) -> Any:
        """The admin port tells of placements too."""
        return with_placements(super().app(), self._desk.history.of)

    # --- in -----------------------------------------------------------------------------------------------------

    def _on_place(self, msg: Msg) -> None:
        command = _decode(msg.data)
        if isinstance(command, CancelPlace):
            self._desk.cancel(command.turn)
            self._pump()
            return
        attributes: telemetry.Attributes = {
            semconv.TURN_ID: command.turn.turn_id,
            semconv.ATTEMPT: command.turn.attempt,
        }
        span = telemetry.start("place", telemetry.extract(msg.headers), attributes, kind=telemetry.SpanKind.SERVER)
        self._act(self._desk.arrive(command, Asker(msg.reply, span), time.time()))

    def _on_beat(self, peer: Peer) -> None:
        if isinstance(peer.beat, WorkerLoad):
            self._desk.fleet.heard(peer.beat, time.time())
            self._pump()

    def _on_down(self, peer: Peer) -> None:
        if isinstance(peer.beat, WorkerLoad):
            self._desk.worker_gone(peer.instance, peer.incarnation)
        elif isinstance(peer.beat, Beat) and peer.service == "tokenizer":
            self._desk.owner_gone(peer.instance, peer.incarnation)

    # --- out ----------------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        if len(self._desk.queue):
            self._act(self._desk.pump(time.time()))

    def _act(self, outcome: Outcome) -> None:
        for decided in outcome.answers:
            asker = decided.entry.reply
            if isinstance(asker, Asker):
                self.bus.publish(asker.subject, encode(decided.answer))
                self._note(decided, asker.span)
        for entry in outcome.ask:
            self._ask_overlap(entry)
        if outcome.answers:
            asyncio.get_running_loop().call_soon(self._desk.settle)  # after the bus has sent them
        QUEUE_DEPTH.set(len(self._desk.queue))

    def _ask_overlap(self, entry: Entry) -> None:
        turn, asker = entry.place.turn, entry.reply
        headers = telemetry.headers_of(asker.span) if isinstance(asker, Asker) else {}
        self._overlaps.ask(
            entry.place, lambda overlap: self._act(self._desk.overlap(turn, overlap, time.time())), headers or None
        )

    def _note(self, decided: Decided, span: telemetry.Span) -> None:
        answer, decision = decided.answer, decided.decision
        if isinstance(answer, Refused):
            REFUSALS.labels(code=answer.error.code).inc()
            telemetry.fail(span, answer.error.code)
            span.end()
        elif isinstance(answer, Placement):
            if decision is not None:
                DECISIONS.labels(policy=answer.policy, reason=decision.reason).inc()
                PREDICTED_HIT.observe(decided.hit)
                WAITED.observe(decided.waited_s)
                span.set_attribute(semconv.ROUTE_REASON, decision.reason)
                span.set_attribute(semconv.ROUTE_CANDIDATES, [one.told() for one in decision.considered])
            span.set_attribute(semconv.WORKER, answer.worker)
            span.set_attribute(semconv.POLICY, answer.policy)
            span.set_attribute(semconv.OVERLAP_BLOCKS, answer.overlap)
            span.end()

    async def _ticks(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._act(Outcome(self._desk.tick(time.time())))
            self._pump()
