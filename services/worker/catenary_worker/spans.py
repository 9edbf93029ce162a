"""Spans of a turn at its worker: `queue`, `prefill`, `decode`, recorded when each is over."""

import time
from dataclasses import dataclass

from catenary_protocols.ids import TurnKey
from catenary_runtime import semconv, telemetry
from opentelemetry.context import Context

from catenary_worker.core.turns import Turn

Facts = dict[str, str | int | float | bool]


@dataclass(slots=True)
class _Stage:
    parent: Context
    prompt_tokens: int
    since: float


class Spans:
    """Open stages of traced turns; a turn without a trace costs one look-up."""

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._open: dict[TurnKey, _Stage] = {}

    def admitted(self, key: TurnKey, parent: Context | None, prompt_tokens: int) -> None:
        """The engine took it."""
        if parent is not None:
            self._open[key] = _Stage(parent, prompt_tokens, time.time())

    def started(self, turn: Turn) -> None:
        """It left the engine's queue."""
        if (stage := self._open.get(turn.key)) is not None:
            self._record("queue", turn, stage, min(stage.since + turn.queued_s, time.time()))

    def prefilled(self, turn: Turn) -> None:
        """Its first token is there."""
        if (stage := self._open.get(turn.key)) is not None:
            facts: Facts = {semconv.INPUT_TOKENS: stage.prompt_tokens, semconv.CACHED_TOKENS: turn.cached or 0}
            self._record("prefill", turn, stage, time.time(), facts)

    def ended(self, turn: Turn) -> None:
        """It is over, whatever the reason."""
        if (stage := self._open.pop(turn.key, None)) is not None:
            name = "decode" if turn.ids else "queue" if turn.cached is None else "prefill"
            facts: Facts = {
                semconv.OUTPUT_TOKENS: turn.offset - turn.base,
                semconv.FINISH_REASONS: turn.finish or "cancelled",
            }
            if turn.error is not None:
                facts[semconv.ERROR_TYPE] = turn.error.code
            self._record(name, turn, stage, time.time(), facts)

    def _record(self, name: str, turn: Turn, stage: _Stage, until: float, facts: Facts | None = None) -> None:
        attributes = {
            semconv.TURN_ID: turn.turn_id,
            semconv.ATTEMPT: turn.attempt,
            semconv.WORKER: self._worker,
            **(facts or {}),
        }
        telemetry.record(name, stage.parent, stage.since, until, attributes)
        stage.since = until
