"""What one turn was like, without a word of its content: for the log line, the span, the metrics and observers."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import structlog
from catenary_protocols.bus.tool_plane import TurnFact
from catenary_protocols.turn_events import (
    Accepted,
    CallComplete,
    Failed,
    Finished,
    Queued,
    Started,
    TurnEvent,
    Usage,
)
from catenary_runtime import semconv, telemetry

from catenary_frontend.auth import Lease
from catenary_frontend.metrics import DURATION, FIRST_TOKEN, INFLIGHT, REQUESTS

log = structlog.get_logger()
_BEFORE_TOKENS = (Accepted, Queued, Started)


@dataclass(slots=True)
class Account:
    """Kept by the exchange of a turn. Durations in seconds, from the request's last byte.

    Attributes:
        began: when the last byte had come, as `time.perf_counter` tells it.
        tell: publishes a fact for observers.
        why: why it runs where it does, as JSON, if the client asked.
        diverged: where and why its prompt left its session's last one, likewise.
        passed_over: paths of what in the request nobody here knows.
        lease: its place on a key's account; ends with it.
        pieces: of the answer that came: at least as many tokens were generated.
    """

    turn_id: str
    api: str
    model: str
    session: str
    stream: bool
    request_id: str
    began: float
    span: telemetry.Span
    tell: Callable[[TurnFact], None]
    passed_over: Sequence[str] = ()
    lease: Lease | None = None
    accepted_s: float = 0.0
    first_s: float = 0.0
    prompt_tokens: int = 0
    usage: Usage = field(default_factory=Usage)
    worker: str = ""
    why: str = ""
    diverged: str = ""
    calls: int = 0
    pieces: int = 0
    reason: str = ""
    code: str = "ok"
    settled: bool = False

    def __post_init__(self) -> None:
        INFLIGHT.labels(api=self.api).inc()

    def note(self, events: Sequence[TurnEvent]) -> None:
        """Look at what is about to be delivered."""
        for event in events:
            match event:
                case Accepted():
                    self.accepted_s = self._passed()
                    self.prompt_tokens, self.diverged = event.prompt_tokens, event.diverged
                    self._fact("accepted")
                case Started():
                    self.worker, self.why = event.worker, event.why
                    self.usage = Usage(prompt_tokens=self.prompt_tokens, cached_tokens=event.cached_tokens)
                    self._fact("started")
                case CallComplete():
                    self.calls += 1
                case Finished():
                    self.reason, self.usage = event.reason, event.usage
                    self.code = "cancelled" if event.reason == "cancelled" else "ok"
                case Failed():
                    self.code = event.error.code
                case _:
                    self.pieces += 1
        if not self.first_s and self.code == "ok" and not isinstance(events[-1], _BEFORE_TOKENS):
            self.first_s = self._passed()
            FIRST_TOKEN.labels(api=self.api, model=self.model).observe(self.first_s)

    def settle(self, code: str = "") -> None:
        """The turn is over; `code` overrides the outcome. Only the first call counts."""
        if self.settled:
            return
        self.settled = True
        self.code = code or self.code
        if self.lease is not None:
            self.lease.end(self.prompt_tokens + max(self.usage.completion_tokens, self.pieces))
        total = self._passed()
        INFLIGHT.labels(api=self.api).dec()
        REQUESTS.labels(api=self.api, model=self.model, code=self.code).inc()
        DURATION.labels(api=self.api, model=self.model).observe(total)
        self._fact("finished" if self.code == "ok" else "cancelled" if self.code == "cancelled" else "failed")
        self._end_span()
        log.info(
            "turn.done",
            turn=self.turn_id,
            request=self.request_id,
            api=self.api,
            model=self.model,
            session=self.session,
            stream=self.stream,
            code=self.code,
            reason=self.reason,
            worker=self.worker,
            prompt_tokens=self.usage.prompt_tokens,
            cached_tokens=self.usage.cached_tokens,
            completion_tokens=self.usage.completion_tokens,
            reasoning_tokens=self.usage.reasoning_tokens,
            calls=self.calls,
            first_token_ms=round(self.first_s * 1e3, 1),
            total_ms=round(total * 1e3, 1),
        )

    def server_timing(self) -> str:
        """The `server-timing` header."""
        steps = {"accept": self.accepted_s, "ttft": self.first_s, "total": self._passed()}
        return ", ".join(f"{name};dur={passed * 1e3:.1f}" for name, passed in steps.items() if passed)

    def _passed(self) -> float:
        return time.perf_counter() - self.began

    def _fact(self, what: str) -> None:
        self.tell(
            TurnFact(
                what=what,
                turn_id=self.turn_id,
                at=time.time(),
                model=self.model,
                session=self.session,
                worker=self.worker,
                prompt_tokens=self.prompt_tokens,
                cached_tokens=self.usage.cached_tokens,
                completion_tokens=self.usage.completion_tokens,
                reason=self.reason,
                code=self.code,
            )
        )

    def _end_span(self) -> None:
        self.span.set_attributes(
            {
                semconv.INPUT_TOKENS: self.usage.prompt_tokens,
                semconv.OUTPUT_TOKENS: self.usage.completion_tokens,
                semconv.CACHED_TOKENS: self.usage.cached_tokens,
                semconv.REASONING_TOKENS: self.usage.reasoning_tokens,
                semconv.TIME_TO_FIRST_CHUNK: self.first_s,
                semconv.FINISH_REASONS: [self.reason] if self.reason else [],
                semconv.WORKER: self.worker,
            }
        )
        if self.code != "ok":
            telemetry.fail(self.span, self.code)
        self.span.end()
