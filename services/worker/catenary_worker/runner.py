"""Turns on the engine: commands in, frames out. Decisions are in `core`; here they are carried out."""

import asyncio
from collections.abc import Iterable

import structlog
from catenary_protocols.bus.codec import encode
from catenary_protocols.bus.messages import (
    ModelCard,
    Refused,
    ResendTokens,
    Retain,
    RunTurn,
    TokenFrame,
    TurnAdmitted,
    TurnTokens,
)
from catenary_protocols.errors import CapacityError, ErrorInfo, RequestError
from catenary_protocols.ids import TurnKey
from catenary_runtime.bus import Bus
from catenary_runtime.links import LinkSender
from catenary_runtime.presence import Presence
from opentelemetry.context import Context

from catenary_worker import metrics
from catenary_worker.core.admission import WHOLE, check_names, engine_turn
from catenary_worker.core.relay import relay
from catenary_worker.core.turns import ID_BYTES, Turn, Turns
from catenary_worker.engines.base import Engine, Retaining, Retention, Step
from catenary_worker.spans import Spans

log = structlog.get_logger()
NOT_READY = ErrorInfo(code="no_worker", message="the worker is still loading its model", retry_after=1.0)
DRAINING = ErrorInfo(code="draining", message="the worker takes no new turns", retry_after=1.0)
HANDED_BACK = ErrorInfo(code="draining", message="the worker stopped before the turn ended")
FENCED = ErrorInfo(code="cancelled", message="this attempt was cancelled, or a newer one was here")
LOST = ErrorInfo(code="worker_lost", message="the worker does not have this attempt (any more)")


class Runner:
    """The turns of one engine.

    Attributes:
        engine, card: None and empty until the model is served.
        halves: what of a turn the engine takes.
        draining: no new turns.
    """

    def __init__(self, bus: Bus, presence: Presence, turns: Turns, links: LinkSender) -> None:
        self.engine: Engine | None = None
        self.card: ModelCard | None = None
        self.halves = WHOLE
        self.draining = False
        self.turns = turns
        self._bus = bus
        self._presence = presence
        self._links = links
        self._loop = asyncio.get_running_loop()
        self._spans = Spans(presence.instance)
        self._idle = asyncio.Event()
        self._generated = metrics.TOKENS.labels("generated")

    # --- commands -----------------------------------------------------------------------------------------------

    def run(self, run: RunTurn, trace: Context | None) -> TurnAdmitted | Refused:
        """Admit a turn; a repeat is answered as the first time."""
        try:
            check_names(run)
            refusal = self._judge(run, trace)
        except (RequestError, CapacityError) as error:
            refusal = error.info
        if refusal is not None:
            metrics.REFUSED.labels(refusal.code).inc()
            return Refused(turn=run.turn, error=refusal)
        return TurnAdmitted(turn=run.turn, worker=self._presence.instance, incarnation=self._presence.incarnation)

    def _judge(self, run: RunTurn, trace: Context | None) -> ErrorInfo | None:
        now = self._loop.time()
        match self.turns.judge(run.turn, now):
            case "new":
                return self._admit(run, trace, now)
            case "fenced":
                return FENCED
            case "known":
                return None

    def _admit(self, run: RunTurn, trace: Context | None, now: float) -> ErrorInfo | None:
        older = self.turns.here.get(run.turn.turn_id)
        if older is not None:
            self.cancel(older.key, "overtaken")
        owner = self._presence.get("tokenizer", run.tokenizer)
        if owner is not None and owner.incarnation > run.tokenizer_incarnation:
            return LOST
        if self.engine is None or self.card is None:
            return NOT_READY
        if self.draining:
            return DRAINING
        self.engine.submit(engine_turn(run, model=self.card.model, card=self.card.card, halves=self.halves))
        turn_id, attempt = run.turn.turn_id, run.turn.attempt
        base = len(run.generated) // ID_BYTES
        self.turns.add(Turn(turn_id, attempt, run.tokenizer, run.tokenizer_incarnation, base, admitted_at=now))
        self._idle.clear()
        self._spans.admitted(run.turn, trace, len(run.prompt) // ID_BYTES)
        metrics.TOKENS.labels("prompt").inc(len(run.prompt) // ID_BYTES)
        return None

    def cancel(self, key: TurnKey, reason: str) -> None:
        """End an attempt and any older one; they leave a tombstone."""
        turn = self.turns.cancel(key, self._loop.time())
        if turn is not None:
            self.dropped([turn], reason)

    def dropped(self, turns: Iterable[Turn], reason: str) -> None:
        """Turns that were taken off the books: the engine is to stop those that run."""
        for turn in turns:
            if not turn.finish:
                metrics.CANCELLED.labels(reason).inc()
                log.info("turn.dropped", turn_id=turn.turn_id, attempt=turn.attempt, tokens=turn.offset, reason=reason)
                self._spans.ended(turn)
                if self.engine is not None:
                    self.engine.cancel(turn.key)
        self._note_idle()

    def retain(self, wanted: Retain) -> None:
        """A session is away, or will not be back."""
        if self.engine is not None and isinstance(self.engine, Retaining):
            self.engine.retain(wanted.session, Retention(wanted.retention.priority, wanted.retention.seconds))

    def resend(self, asked: ResendTokens) -> None:
        """Send an attempt's tokens again; for a turn that was held, this is the word to go on."""
        if not asked.tokenizer:
            return
        turn = self.turns.here.get(asked.turn.turn_id)
        if turn is not None and turn.attempt == asked.turn.attempt:
            turn.held_since = 0.0
            for item in turn.parts_from(asked.offset):
                self._send(asked.tokenizer, [item])
        else:
            key = asked.turn
            item = TurnTokens(turn_id=key.turn_id, attempt=key.attempt, offset=asked.offset, finish="error", error=LOST)
            self._send(asked.tokenizer, [item])

    # --- steps --------------------------------------------------------------------------------------------------

    def step(self, step: Step) -> bool:
        """Pass on what one step brought; whether a turn started or ended in it."""
        now = self._loop.time()
        out = relay(step.deltas, self.turns.here, now)
        for owner, items in out.frames.items():
            self._send(owner, items)
        self._generated.inc(out.tokens)
        for turn in out.started:
            metrics.TOKENS.labels("cached").inc(turn.cached or 0)
            self._spans.started(turn)
        for turn in out.prefilled:
            self._spans.prefilled(turn)
        for turn in out.ended:
            self._ended(turn, now)
        return bool(out.started or out.ended)

    def _send(self, owner: str, items: list[TurnTokens]) -> None:
        frame = TokenFrame(
            worker=self._presence.instance,
            incarnation=self._presence.incarnation,
            number=self._links.next(owner),
            items=tuple(items),
        )
        self._bus.publish(self._bus.subjects.to("tokens", tokenizer=owner), encode(frame))

    def _ended(self, turn: Turn, now: float) -> None:
        metrics.ENDED.labels(turn.finish).inc()
        self._spans.ended(turn)
        self.turns.end(turn, now)
        self._note_idle()

    # --- the end ------------------------------------------------------------------------------------------------

    async def idle(self) -> None:
        """Return when no turn runs."""
        self._note_idle()
        await self._idle.wait()

    def give_up(self, error: ErrorInfo) -> None:
        """End every running turn with this error, so that its owner moves it."""
        now = self._loop.time()
        running = [turn for turn in self.turns.here.values() if not turn.finish]
        if running:
            log.warning("turns.handed_back", turns=len(running), code=error.code, why=error.message)
        for turn in running:
            turn.finish, turn.error = "error", error
            if not turn.held_since:
                self._send(turn.owner, [turn.tokens_from(turn.offset)])
            self._ended(turn, now)
            if self.engine is not None:
                self.engine.cancel(turn.key)

    def _note_idle(self) -> None:
        if not self.turns.running:
            self._idle.set()
