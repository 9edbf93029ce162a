"""One turn as its owner holds it. Its phase only moves forward, but for a move, which goes back to placing."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

import msgspec
from catenary_protocols.bus.messages import Placement, Retention, TurnRequest
from catenary_protocols.conversation import Sampling
from catenary_protocols.ids import TurnKey
from catenary_protocols.turn_events import Usage

from catenary_tokenizer_service.core.calls import CallPolicy
from catenary_tokenizer_service.core.generated import Generated
from catenary_tokenizer_service.core.log import EventLog
from catenary_tokenizer_service.core.overdue import Watch
from catenary_tokenizer_service.egress.stream import AnswerStream
from catenary_tokenizer_service.ingress.prompts import Prompt


class Phase(Enum):
    """Where a turn is."""

    PREPARING = "preparing"
    PLACING = "placing"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(slots=True, eq=False)
class Turn:
    """See the module.

    Attributes:
        trace: headers that carry the request's trace context on.
        frontend: who gets the events now.
        card, prompt, stream: set once prepared; the card is its model's content hash.
        retention: what its worker is told with it.
        handoff: with which the decode half begins, once another worker has computed the prompt.
        worker: where it runs; not_on: workers that failed it.
        placing_since, running_since, ended_at: loop times.
        open_calls: keys of `mesh` calls without a result yet, with their tools.
        orphaned_at: loop time at which its frontend died; only a resumable turn outlives that.
        confirmed: last event the frontend has said it has.
        diverged: how its prompt left its session's last one, as JSON, if that was to be explained.
        published: whether any call reached the bus: then nobody may run the turn again from its start.
    """

    request: TurnRequest
    trace: dict[str, str]
    frontend: str
    policy: CallPolicy
    generated: Generated
    retention: Retention
    log: EventLog = field(default_factory=EventLog)
    phase: Phase = Phase.PREPARING
    card: str = ""
    prompt: Prompt | None = None
    stream: AnswerStream | None = None
    worker: str = ""
    placement: Placement | None = None
    handoff: bytes = b""
    not_on: tuple[str, ...] = ()
    moves: int = 0
    accepted: bool = False
    started: bool = False
    admitted: bool = False
    placing_since: float = 0.0
    running_since: float = 0.0
    ended_at: float = 0.0
    cached_tokens: int = 0
    watch: Watch = field(default_factory=Watch)
    open_calls: dict[str, str] = field(default_factory=dict)
    published: bool = False
    orphaned_at: float = 0.0
    confirmed: int = 0
    diverged: str = ""

    @property
    def turn_id(self) -> str:
        """Its id."""
        return self.request.turn.turn_id

    @property
    def key(self) -> TurnKey:
        """The current attempt's key."""
        return TurnKey(turn_id=self.turn_id, attempt=self.generated.attempt)

    @property
    def sampling(self) -> Sampling:
        """The request's, with the limit of tokens that the context leaves."""
        limit = self.prompt.max_tokens if self.prompt else self.request.sampling.max_tokens
        return msgspec.structs.replace(self.request.sampling, max_tokens=limit)

    def usage(self) -> Usage:
        """Counts so far."""
        return Usage(
            prompt_tokens=self.prompt.tokens if self.prompt else 0,
            completion_tokens=self.stream.counted(self.generated.count) if self.stream else 0,
            cached_tokens=self.cached_tokens,
            reasoning_tokens=self.stream.reasoning_tokens if self.stream else 0,
        )

    @property
    def half(self) -> Literal["whole", "prefill", "decode"]:
        """What of it the current attempt does."""
        if self.handoff:
            return "decode"
        return "prefill" if self.placement is not None and self.placement.decode else "whole"

    def hand_over(self, placement: Placement, handoff: bytes) -> None:
        """Its prompt is computed: the decode half is the next attempt."""
        self.generated.attempt += 1
        self.handoff = handoff
        self.worker = placement.decode
        self.admitted = False
        self.watch = Watch()

    def next_attempt(self, failed_on: str) -> None:
        """It goes on elsewhere: with the same tokens, under a new attempt."""
        self.moves += 1
        self.generated.attempt += 1
        if failed_on:
            self.not_on = (*self.not_on, failed_on)[-4:]
        self.worker = ""
        self.handoff = b""
        self.admitted = False
        self.watch = Watch()
        self.phase = Phase.PLACING
