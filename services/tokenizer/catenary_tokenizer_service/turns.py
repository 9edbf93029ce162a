"""The owner of turns: what happens to a turn from its acceptance to the end of its log."""

import asyncio
import time
from collections.abc import Callable

import structlog
from catenary_protocols.bus.messages import Placement, TurnRequest, TurnTokens
from catenary_protocols.errors import ErrorInfo
from catenary_protocols.turn_events import (
    Accepted,
    CallComplete,
    Failed,
    Finished,
    Malformed,
    Queued,
    Started,
    TurnEvent,
)
from catenary_runtime.bus import Bus
from catenary_runtime.presence import Presence
from nats.aio.msg import Msg

from catenary_tokenizer_service.core.calls import policy_for, unmet
from catenary_tokenizer_service.core.generated import TOKEN_BYTES, Generated
from catenary_tokenizer_service.core.odd import odd
from catenary_tokenizer_service.egress.calls import CallPublisher
from catenary_tokenizer_service.egress.frames import Outbox
from catenary_tokenizer_service.egress.stream import AnswerStream, EngineFinish
from catenary_tokenizer_service.keeping import Keeping
from catenary_tokenizer_service.metrics import (
    ENDED,
    LOG_BYTES,
    MALFORMED,
    MOVED,
    ODD,
    PREDICTION_ERROR,
    TOKENS,
)
from catenary_tokenizer_service.models import ServedModel
from catenary_tokenizer_service.placing import Placer, PlacingEvents
from catenary_tokenizer_service.preparing import Preparing
from catenary_tokenizer_service.running import MOVES_ON, Runner, RunningEvents
from catenary_tokenizer_service.serving import Serving
from catenary_tokenizer_service.settings import TokenizerSettings
from catenary_tokenizer_service.speculation import Speculation
from catenary_tokenizer_service.turn import Phase, Turn

log = structlog.get_logger()
MB = 1 << 20
UNCONFIRMED_S = 10.0
"""How long an ended turn's log waits for a frontend that neither confirms nor dies."""


class Turns:
    """All live turns, and ended ones whose last event is not confirmed."""

    def __init__(self, bus: Bus, presence: Presence, serving: Serving, settings: TokenizerSettings) -> None:
        self.live: dict[str, Turn] = {}
        self.outbox = Outbox(bus, presence)
        self.calls = CallPublisher(bus, self.outbox, settings.tool_deadline_s, self._called_before)
        self.placer = Placer(bus, presence, PlacingEvents(self._queued, self._placed, self.fail), settings.no_router_s)
        self.keeping = Keeping(bus)
        self.preparing = Preparing(serving, settings.prompt_watch_mb * MB, self._prepared, self.fail)
        self.ahead = Speculation(bus, presence, serving.models, self.preparing.later)
        events = RunningEvents(self._tokens, self.move, self.fail, self.ahead.tokens)
        self.runner = Runner(bus, presence, self.live, events)
        self.beat_s = settings.beat_s
        self.idle = asyncio.Event()
        """Set while no turn is live."""
        self.idle.set()
        self.on_remembered: Callable[[ServedModel, str], None] = lambda _model, _session: None
        self._models = serving.models
        self._settings = settings

    # --- in -----------------------------------------------------------------------------------------------------

    def accept(self, request: TurnRequest, trace: dict[str, str]) -> Turn:
        """Take a turn; its prompt is made when the loop gets to it and its model is loaded."""
        conversation = request.conversation
        turn = self.live[request.turn.turn_id] = Turn(
            request=request,
            trace=trace,
            frontend=request.frontend,
            policy=policy_for(
                (tool.name for tool in conversation.tools),
                request.run_tools,
                conversation.tool_choice.mode,
                choices=request.choices,
            ),
            generated=Generated(attempt=request.turn.attempt),
            retention=self.keeping.begun(request),
        )
        self.ahead.begun(turn)
        self.idle.clear()
        self.preparing.take(turn)
        return turn

    def _prepared(self, turn: Turn) -> None:
        turn.phase = Phase.PLACING
        self.placer.place(turn, self._models)

    # --- placing and moving -------------------------------------------------------------------------------------

    def _accepted(self, turn: Turn) -> list[TurnEvent]:
        if turn.accepted or turn.prompt is None:
            return []
        turn.accepted = True
        return [Accepted(prompt_tokens=turn.prompt.tokens, diverged=turn.diverged)]

    def _queued(self, turn: Turn, position: int) -> None:
        self.outbox.add(turn, [*self._accepted(turn), Queued(position=position)])

    def _placed(self, turn: Turn, placement: Placement) -> None:
        turn.placement = placement
        turn.worker = placement.worker
        self.keeping.placed(turn)
        if events := self._accepted(turn):
            self.outbox.add(turn, events)
        self.runner.run(turn, self._models)

    def move(self, turn: Turn, why: str) -> None:
        """Its worker will not go on with it: another one does, with the same tokens."""
        if turn.phase is not Phase.RUNNING:
            return
        MOVED.labels(reason=why.replace(" ", "_")).inc()
        log.warning("turn.moved", turn_id=turn.turn_id, worker=turn.worker, why=why, generated=turn.generated.count)
        if turn.moves >= self._settings.max_moves:
            error = ErrorInfo(
                code="worker_lost", message=f"the turn was lost by {turn.moves + 1} workers, the last: {why}"
            )
            self.fail(turn, error)
            return
        turn.next_attempt(turn.worker)
        self.placer.place(turn, self._models)

    # --- tokens -------------------------------------------------------------------------------------------------

    def _compare(self, turn: Turn, cached: int) -> None:
        """What the router expected in the cache with what was there."""
        model = self._models.get(turn.card)
        if turn.placement is not None and turn.prompt is not None and model is not None:
            predicted = min(turn.placement.overlap * model.card.block_size, turn.prompt.tokens - 1)
            PREDICTION_ERROR.observe(abs(predicted - cached) / turn.prompt.tokens)

    def _tokens(self, turn: Turn, item: TurnTokens, fresh: bytes) -> None:
        stream = turn.stream
        if stream is None:
            return
        events: list[TurnEvent] = []
        if item.cached is not None and not turn.started:
            turn.started = True
            turn.cached_tokens = item.cached
            self._compare(turn, item.cached)
            why = turn.placement.why if turn.placement else ""
            events.append(Started(cached_tokens=item.cached, worker=turn.worker, why=why))
        visible = fresh[:-TOKEN_BYTES] if item.stop_token and fresh else fresh
        if visible:
            events += stream.push(visible, item.logprobs[-(len(fresh) // TOKEN_BYTES) :] if item.logprobs else ())
        if stream.ended:
            self.runner.cancel(turn, stream.ended)
            self._finish(turn, events, "stop")
        elif item.finish == "error":
            self._broke(turn, item, events)
        elif item.finish == "handoff":
            self._hand_over(turn, item, events)
        elif item.finish:
            self._finish(turn, events, item.finish)
        elif events:
            self._emit(turn, events)

    def _emit(self, turn: Turn, events: list[TurnEvent]) -> None:
        self.outbox.add(turn, events)
        for event in events:
            if isinstance(event, CallComplete):
                if event.run_by:
                    self.calls.publish(turn, event)
            elif isinstance(event, Malformed):
                MALFORMED.labels(format=self._format(turn)).inc()

    def _hand_over(self, turn: Turn, item: TurnTokens, events: list[TurnEvent]) -> None:
        """Its prompt is computed; another worker goes on."""
        if events:
            self._emit(turn, events)
        if turn.placement is not None:
            turn.hand_over(turn.placement, item.handoff)
            self.runner.run(turn, self._models)

    def _broke(self, turn: Turn, item: TurnTokens, events: list[TurnEvent]) -> None:
        """The engine gave up; what it had said by then is told."""
        error = item.error or ErrorInfo(code="engine_failed", message="the engine failed")
        moves = error.code in MOVES_ON
        if turn.stream is not None and not moves:
            events += turn.stream.close("error")
        if events:
            self._emit(turn, events)
        if moves:
            self.move(turn, error.code)
        else:
            self.fail(turn, error)

    def result(self, msg: Msg) -> None:
        """A tool's result on the bus."""
        self.ahead.result(self.calls.result(self.live, msg))

    # --- the end ------------------------------------------------------------------------------------------------

    def _finish(self, turn: Turn, events: list[TurnEvent], finish: EngineFinish) -> None:
        if turn.stream is None:
            return
        stream = turn.stream
        events += stream.close(finish)
        reason = stream.reason(finish)
        self._tell_if_odd(turn, stream, reason)
        error = stream.unfit or unmet(turn.request.conversation.tool_choice, stream.called, reason)
        if error is not None:
            self._emit(turn, events)
            self.fail(turn, error)
            return
        end = Finished(reason=reason, usage=turn.usage(), stop=stream.stop, choice=turn.request.choice)
        self._emit(turn, [*events, end])
        self._remember(turn, stream)
        self.ahead.ended(turn, self.keeping.ended(turn, reason, stream.called))
        self._ended(turn, reason)

    def _tell_if_odd(self, turn: Turn, stream: AnswerStream, reason: str) -> None:
        """A call that was meant and is none is told of, else nobody finds it; its text only where that is allowed."""
        model = self._models.get(turn.card)
        if model is None or turn.request.conversation.plain or (stream.called and not stream.malformed):
            return
        raw = model.tokenizer.decode(bytes(turn.generated.ids))
        what = odd(raw, model.call_marks, called=bool(stream.called), malformed=stream.malformed)
        if what:
            ODD.labels(format=model.card.parser, what=what).inc()
            said = {"raw": raw} if self._settings.log_content else {}
            log.warning("answer.odd", turn_id=turn.turn_id, what=what, reason=reason, chars=len(raw), **said)

    def _remember(self, turn: Turn, stream: AnswerStream) -> None:
        """Keep what a later prompt may hold: the ids of what was delivered, if no stop string cut it, and thoughts."""
        model, request = self._models.get(turn.card), turn.request
        if model is None or turn.prompt is None:
            return
        if model.memory is not None and not stream.stop:
            kept = bytes(turn.generated.ids[: stream.counted(turn.generated.count) * TOKEN_BYTES])
            model.memory.remember(turn.prompt.scope, turn.prompt.ids, kept, session=request.session)
        if request.api == "chat" and request.conversation.restore and stream.called:
            model.thoughts.remember(request.tenant, request.session, turn.log.events)
        self.on_remembered(model, request.session)

    def fail(self, turn: Turn, error: ErrorInfo) -> None:
        """End in an error; one that must not be retried once a call was published."""
        if turn.phase is Phase.ENDED:
            return
        if turn.published and error.retry:
            error = ErrorInfo(code=error.code, message=error.message, field=error.field, retry=False)
        self._stop_work(turn, error.code)
        self.ahead.dropped(turn)
        self.outbox.add(turn, [Failed(error=error, usage=turn.usage())])
        self._ended(turn, error.code)

    def cancel(self, turn: Turn, reason: str, error: ErrorInfo | None = None) -> None:
        """Nobody wants it any more; `error` is for a client that may yet hear of its end."""
        if turn.phase is Phase.ENDED:
            return
        self._stop_work(turn, reason)
        self.ahead.dropped(turn)
        self.calls.cancel(turn, reason)
        end = Finished(reason="cancelled", usage=turn.usage(), choice=turn.request.choice)
        self.outbox.add(turn, [Failed(error=error, usage=turn.usage()) if error else end])
        self._ended(turn, "cancelled")

    def hand_back(self, turn: Turn) -> None:
        """We are stopping: whoever wants the turn must ask another tokenizer."""
        self.fail(turn, ErrorInfo(code="draining", message="the tokenizer was stopped", retry_after=0.5))

    def _stop_work(self, turn: Turn, reason: str) -> None:
        if turn.phase is Phase.RUNNING:
            self.runner.cancel(turn, reason)
        elif turn.phase is Phase.PLACING:
            self.placer.forget(turn)

    def _ended(self, turn: Turn, reason: str) -> None:
        model, usage = turn.request.model, turn.usage()
        turn.phase = Phase.ENDED
        turn.ended_at = asyncio.get_running_loop().time()
        turn.stream = None
        turn.prompt = None
        if all(other.phase is Phase.ENDED for other in self.live.values()):
            self.idle.set()
        ENDED.labels(model=model, reason=reason).inc()
        for kind, count in (
            ("input", usage.prompt_tokens),
            ("cached", usage.cached_tokens),
            ("output", usage.completion_tokens),
            ("reasoning", usage.reasoning_tokens),
        ):
            TOKENS.labels(model=model, kind=kind).inc(count)
        log.debug("turn.ended", turn_id=turn.turn_id, reason=reason, moves=turn.moves)

    def _called_before(self, turn: Turn) -> None:
        error = ErrorInfo(
            code="owner_lost",
            message="the turn's first owner died after it had published a tool call",
            retry=False,
        )
        self.fail(turn, error)

    def _format(self, turn: Turn) -> str:
        model = self._models.get(turn.card)
        return model.card.parser if model else ""

    # --- time ---------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Deadlines, silent neighbours, logs that nobody needs."""
        self.placer.tick(now)
        self.runner.tick(now)
        self.calls.tick(now)
        self.ahead.tick(now)
        wall = time.time()
        size = 0
        for turn in list(self.live.values()):
            if turn.phase is not Phase.ENDED:
                if 0 < turn.request.deadline < wall:
                    self.fail(turn, ErrorInfo(code="deadline_exceeded", message="the turn's deadline has passed"))
                continue
            kept = self._settings.resumable_s if turn.request.resumable else UNCONFIRMED_S
            if now - turn.ended_at > kept or (turn.confirmed >= turn.log.last and not turn.request.resumable):
                del self.live[turn.turn_id]
            else:
                size += turn.log.size
        LOG_BYTES.set(size)
        self._shed(size)

    def _shed(self, size: int) -> None:
        """Drop the oldest ended logs while they are too many bytes together."""
        ended = sorted((t for t in self.live.values() if t.phase is Phase.ENDED), key=lambda turn: turn.ended_at)
        for turn in ended:
            if size <= self._settings.log_mb * MB:
                return
            size -= turn.log.size
            del self.live[turn.turn_id]
