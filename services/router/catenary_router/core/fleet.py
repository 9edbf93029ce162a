"""The workers and how busy they are: what their beats tell, and what this router did since.

The rule: a placement counts on its worker at once, and until the worker's own numbers surely hold the turn: its beat
says that it ended or moved on, or has named it for as long as a step takes (numbers are as of the last step), or does
not name it though it had time to. From then on the beat alone is the truth. So no load is forgotten or kept for ever,
and another router that hears the same beats sees the same fleet. Between two beats prefill goes on at the pace that the
worker reports: what was queued a moment ago is less now.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from catenary_protocols.bus.messages import PlaceTurn, WorkerLoad
from catenary_protocols.ids import TurnKey

from catenary_router.core.marks import Mark
from catenary_router.core.running import Running

SETTLE_S = 0.75
"""A turn that three beats did not name is not there: it ended between two of them, or never came."""
STEP_S = 0.3
"""A turn that was named so long ago has been in a step's numbers."""
STEPS_BEFORE = 1.5
"""Decode steps until new prefill shows: half of the one that runs, on average, and the one it shares."""
ROOM_UNKNOWN = 256
"""Turns a worker may have while it has not said how many."""


@dataclass(slots=True)
class Placed:
    """A turn placed here that the worker's numbers may not hold yet.

    Attributes:
        named_at, offset: when a beat first named it, and the offset it began with; 0: not yet.
    """

    turn: TurnKey
    new_tokens: int
    new_blocks: int
    at: float
    named_at: float = 0.0
    offset: int = 0

    def counted(self, offset: int | None, now: float) -> bool:
        """Whether a beat that names the turn with this offset (None: does not name it) has it in its numbers."""
        if offset is None:
            return bool(self.named_at) or now - self.at > SETTLE_S
        if not self.named_at:
            self.named_at = now
            self.offset = offset if self.turn.attempt else 0
        return offset > self.offset or now - self.named_at > STEP_S


@dataclass(slots=True)
class Worker:
    """One worker: its last beat, and what was placed on it since.

    Attributes:
        computed: prompt tokens it has probably computed since that beat, as of `computed_at`.
    """

    name: str
    incarnation: int
    beat: WorkerLoad
    placed: dict[str, Placed] = field(default_factory=dict)
    placed_tokens: int = 0
    placed_blocks: int = 0
    running: Running = field(default_factory=Running)
    computed: float = 0.0
    computed_at: float = 0.0

    @property
    def turns(self) -> int:
        """Turns running, waiting and on their way."""
        return self.beat.running + self.beat.waiting + len(self.placed)

    @property
    def slots(self) -> int:
        """Turns it may have in all."""
        return self.beat.max_batch or ROOM_UNKNOWN

    @property
    def queued_tokens(self) -> float:
        """Prompt tokens to compute before a new turn's, as of `computed_at`."""
        return self.beat.waiting_prefill + self.placed_tokens - self.computed

    @property
    def used_blocks(self) -> int:
        """KV blocks that turns hold or will."""
        return self.beat.kv_used + self.placed_blocks

    @property
    def _queue(self) -> int:
        return self.beat.waiting_prefill + self.placed_tokens

    def work(self, now: float) -> None:
        """Prefill went on until now."""
        passed = now - self.computed_at
        if passed > 0.0:
            if queue := self._queue:
                self.computed = min(queue, self.computed + passed * self.beat.prefill_tokens_per_s)
            self.computed_at = now

    def take(self, placed: Placed, marks: Sequence[Mark]) -> None:
        """Count a placement."""
        self.release(placed.turn.turn_id)
        self.work(placed.at)
        if not self.queued_tokens:
            self.computed_at = placed.at + STEPS_BEFORE * self.beat.decode_ms / 1000
        self.running.placed(placed.turn.turn_id, marks, placed.at)
        self.placed[placed.turn.turn_id] = placed
        self.placed_tokens += placed.new_tokens
        self.placed_blocks += placed.new_blocks

    def release(self, turn_id: str) -> None:
        """It is not there; a second time does nothing."""
        self.running.release(turn_id)
        self._settle(turn_id)

    def heard(self, beat: WorkerLoad, now: float) -> None:
        """A new beat; placements that are in its numbers need not be counted apart any more."""
        self.beat, self.computed, self.computed_at = beat, 0.0, now
        offsets = {live.turn_id: live.offset for live in beat.turns}
        for key in beat.ended:
            self.release(key.turn_id)
        self.running.heard(offsets, before=now - SETTLE_S)
        for turn_id, placed in list(self.placed.items()):
            if placed.counted(offsets.get(turn_id), now):
                self._settle(turn_id)

    def _settle(self, turn_id: str) -> None:
        """The beat's own numbers have it."""
        placed = self.placed.pop(turn_id, None)
        if placed is not None:
            self.placed_tokens -= placed.new_tokens
            self.placed_blocks -= placed.new_blocks
            self.computed = min(self.computed, self._queue)


class Fleet:
    """All workers that are thought alive."""

    def __init__(self) -> None:
        self.workers: dict[str, Worker] = {}
        self._seen: dict[tuple[str, str], float] = {}

    def heard(self, beat: WorkerLoad, now: float) -> None:
        """A worker's beat. A higher incarnation begins with nothing placed on it."""
        worker = self.workers.get(beat.worker)
        if worker is not None and beat.incarnation < worker.incarnation:
            return
        if worker is None or beat.incarnation > worker.incarnation:
            worker = self.workers[beat.worker] = Worker(beat.worker, beat.incarnation, beat)
        worker.heard(beat, now)
        if beat.ready and not beat.draining and beat.halves != ("prefill",):
            self._seen[beat.model, beat.card] = now

    def gone(self, name: str, incarnation: int) -> None:
        """This incarnation of a worker is dead."""
        worker = self.workers.get(name)
        if worker is not None and worker.incarnation <= incarnation:
            del self.workers[name]

    def release(self, turn_id: str) -> None:
        """A placement is not wanted any more."""
        for worker in self.workers.values():
            worker.release(turn_id)

    def serving(self, turn: PlaceTurn) -> list[Worker]:
        """Workers that may begin this turn and take any; those to avoid only if there is no other.

        Where some prefill and some decode, it begins with those that prefill, or where a worker does all of it.
        """
        ready = self._ready(turn)
        kinds = {worker.beat.halves for worker in ready}
        split = {"prefill", "decode"} <= {half for kind in kinds for half in kind}
        first = [worker for worker in ready if "decode" not in worker.beat.halves] if split else []
        return first or [worker for worker in ready if "whole" in worker.beat.halves]

    def decoding(self, turn: PlaceTurn) -> Worker | None:
        """The worker with the most room that goes on after another's prefill."""
        able = [worker for worker in self._ready(turn) if "decode" in worker.beat.halves]
        return min(able, key=lambda worker: (worker.turns / worker.slots, worker.name), default=None)

    def _ready(self, turn: PlaceTurn) -> list[Worker]:
        ready = [
            worker
            for worker in self._with_card(turn)
            if worker.beat.ready
            and not worker.beat.draining
            and worker.beat.block_size == turn.block_size
            and (not turn.within.workers or worker.name in turn.within.workers)
            and (not turn.within.tags or set(turn.within.tags) <= set(worker.beat.tags))
        ]
        return [worker for worker in ready if worker.name not in turn.not_on] or ready if turn.not_on else ready

    def has_model(self, model: str) -> bool:
        """Whether any worker has this model, ready or not, whatever its card."""
        return any(worker.beat.model == model for worker in self.workers.values())

    def seen_at(self, model: str, card: str) -> float:
        """When a worker with this model and card last took turns; 0: never."""
        return self._seen.get((model, card), 0.0)

    def _with_card(self, turn: PlaceTurn) -> Iterator[Worker]:
        for worker in self.workers.values():
            if worker.beat.card == turn.card and worker.beat.model == turn.model:
                yield worker
