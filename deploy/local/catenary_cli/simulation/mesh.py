"""Clock, engines, index and router of a simulated mesh.

The rule: decisions are made by the cores that the live services run; only the bus, which here takes a fixed time and
loses nothing, and the worker's shell are made simple. Everything happens in the order of (time, number), so a run is a
function of its seed.
"""

import random
import struct
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count

from catenary_kv_indexer.core.indexer import Indexer
from catenary_protocols.bus.messages import (
    KvCleared,
    KvEvent,
    KvEvents,
    KvRemoved,
    KvStored,
    LiveTurn,
    Overlap,
    OverlapQuery,
    Placement,
    PlaceTurn,
    Refused,
    Retention,
    WorkerLoad,
)
from catenary_protocols.conversation import Hints
from catenary_protocols.errors import CatenaryError
from catenary_protocols.ids import TurnKey
from catenary_router.core.cost import Weights
from catenary_router.core.desk import Desk, Outcome
from catenary_router.core.placement import POLICIES
from catenary_router.core.room import Limits
from catenary_tokenizer_service.core.kept import ORDINARY, Kept
from catenary_tokenizers import block_hashes
from catenary_worker.core.pace import Pace
from catenary_worker.engines import base
from catenary_worker.engines.base import EngineLoad, EngineTurn
from catenary_worker.engines.sim.settings import SimSettings
from catenary_worker.engines.sim.virtual import VirtualEngine

BEAT_S = 0.25
EARLIEST_BEAT_S = 0.05
TICK_S = 0.1
BUS_S = 0.001
"""One way over the bus, callbacks included."""
CONTEXT = 1 << 20
BEGAN = 1000.0
"""The clock's first time; what it is does not matter, but cores take 0 for "never"."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What the mesh is like: how many workers, each of them this engine; the router's policy and weights.

    Attributes:
        retention: engines are told how long a session that calls tools stays away.
    """

    workers: int = 4
    engine: SimSettings = field(default_factory=SimSettings)
    policy: str = "kv"
    weights: Weights = field(default_factory=Weights)
    limits: Limits = field(default_factory=Limits)
    retention: bool = True


@dataclass(frozen=True, slots=True)
class Asking:
    """A request.

    Attributes:
        tools: the session may call some; calls: those that its answer will end in.
        subagent: the session is over with an answer without calls.
    """

    session: str
    prompt: "array[int]"
    output: int
    priority: int = 0
    tools: bool = False
    calls: tuple[str, ...] = ()
    subagent: bool = False


@dataclass(slots=True)
class Asked:
    """One request and what became of it.

    Attributes:
        worker: "" when it was refused.
        first_token_s, ended_s: since it was asked.
        predicted, cached: prompt tokens the router expected in the worker's cache, and those that were.
    """

    session: str
    at: float
    prompt: int
    output: int
    worker: str = ""
    first_token_s: float = 0.0
    ended_s: float = 0.0
    predicted: int = 0
    cached: int = 0


Ended = Callable[["array[int]"], None]
"""Called at a request's end with what was generated; with nothing when it was refused."""


@dataclass(slots=True)
class _Open:
    asking: Asking
    asked: Asked
    hashes: bytes
    ended: Ended
    told: Retention = ORDINARY
    generated: "array[int]" = field(default_factory=base.no_ids)


@dataclass(slots=True)
class _Worker:
    """An engine with what a worker's shell does around it: paces, numbered KV events, beats."""

    name: str
    engine: VirtualEngine
    block_size: int
    pace: Pace = field(default_factory=Pace)
    live: dict[str, int] = field(default_factory=dict)
    over: list[TurnKey] = field(default_factory=list)
    load: EngineLoad = field(default_factory=EngineLoad)
    kv_last: int = 0
    told: tuple[int, int] = (-1, 0)
    told_at: float = -1.0
    beating: bool = False
    stepping: bool = False

    @property
    def quiet(self) -> bool:
        """Its next beat would say what the last one said."""
        return self.told == (0, 0) and not self.live and not self.over

    def beat(self, now: float) -> WorkerLoad:
        load, limits, self.told_at = self.load, self.engine.core.limits, now
        self.told = (load.running, load.waiting)
        over, self.over = tuple(self.over), []
        return WorkerLoad(
            worker=self.name,
            incarnation=1,
            model="m",
            card="c",
            block_size=self.block_size,
            running=load.running,
            waiting=load.waiting,
            waiting_prefill=load.waiting_prefill_tokens + load.prefilling_tokens,
            kv_used=load.used_blocks,
            kv_total=limits.blocks,
            max_batch=limits.max_batch,
            decode_ms=self.pace.decode_ms,
            prefill_tokens_per_s=self.pace.prefill_tokens_per_s,
            kv_last=(self.kv_last,),
            turns=tuple(LiveTurn(turn_id=one, at="t", offset=offset) for one, offset in self.live.items()),
            ended=over,
            sent_at=now,
        )

    def tell(self, events: Sequence[base.KvEvent]) -> KvEvents:
        """The engine's events as the mesh numbers them; it names blocks by sequence hash already."""
        told = tuple(_told(event) for event in events)
        first = self.kv_last + 1
        self.kv_last += len(told)
        return KvEvents(
            worker=self.name, incarnation=1, model="m", block_size=self.block_size, first=first, events=told
        )


def _told(event: base.KvEvent) -> KvEvent:
    match event:
        case base.Stored():
            return KvStored(hashes=_packed(event.hashes), parent=event.parent)
        case base.Removed():
            return KvRemoved(hashes=_packed(event.hashes))
        case base.Cleared():
            return KvCleared()


def _packed(hashes: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(hashes)}Q", *hashes)


def _for_engine(retention: Retention) -> base.Retention:
    return base.Retention(retention.priority, retention.seconds)


class VirtualMesh:
    """See the module."""

    def __init__(self, shape: Shape, seed: int) -> None:
        self.now = BEGAN
        self.asked: list[Asked] = []
        self.names = tuple(f"w{number}" for number in range(shape.workers))
        self._awaited = 0
        self._events: list[tuple[float, int, bool, Callable[[], None]]] = []
        self._numbers = count()
        self._open: dict[str, _Open] = {}
        self._indexer = Indexer(self.now)
        rng = random.Random(seed)  # noqa: S311  reproducible, not secret
        self._block_size = shape.engine.block_size
        policy = POLICIES[shape.policy](shape.weights, rng)
        self._retention = shape.retention
        self._kept = Kept()
        self._desk = Desk(router="r", policy=policy, weights=shape.weights, limits=shape.limits, now=0.0)
        self._workers = {
            name: _Worker(name, VirtualEngine(shape.engine, CONTEXT), self._block_size) for name in self.names
        }
        for worker in self._workers.values():
            self._beat(worker)
            self.at(self.now + rng.uniform(0.0, BEAT_S), partial(self._beats, worker), awaited=False)
        self.at(self.now, self._ticks, awaited=False)

    def at(self, when: float, what: Callable[[], None], *, awaited: bool = True) -> None:
        """Do something then; `run` ends when nothing awaited is left."""
        self._awaited += awaited
        heappush(self._events, (when, next(self._numbers), awaited, what))

    def run(self) -> None:
        """Until every request has ended."""
        events = self._events
        while self._awaited or self._open:
            self.now, _, awaited, what = heappop(events)
            self._awaited -= awaited
            what()

    # --- turns --------------------------------------------------------------------------------------------------

    def ask(self, asking: Asking, ended: Ended) -> None:
        """A request."""
        turn_id, prompt, session = f"t{next(self._numbers)}", asking.prompt, asking.session
        asked = Asked(session, self.now, len(prompt), asking.output)
        self.asked.append(asked)
        told = self._kept.begun("", session, self.now, tools=asking.tools) if self._retention else ORDINARY
        hashes = block_hashes(prompt.tobytes(), self._block_size)
        self._open[turn_id] = _Open(asking, asked, hashes, ended, told)
        place = PlaceTurn(
            turn=TurnKey(turn_id=turn_id),
            tokenizer="t",
            tokenizer_incarnation=1,
            model="m",
            card="c",
            block_size=self._block_size,
            hashes=hashes,
            prompt_tokens=len(prompt),
            session=session,
            arrived_at=self.now,
            max_tokens=asking.output,
            hints=Hints(priority=asking.priority),
        )
        self.at(self.now + BUS_S, lambda: self._act(self._desk.arrive(place, turn_id, self.now)))

    def _act(self, outcome: Outcome) -> None:
        for decided in outcome.answers:
            answer = decided.answer
            if isinstance(answer, Placement):
                self.at(self.now + 2 * BUS_S, partial(self._submit, answer))
            elif isinstance(answer, Refused):
                self.at(self.now + BUS_S, partial(self._end, answer.turn.turn_id))
        for entry in outcome.ask:
            query = OverlapQuery(model="m", block_size=self._block_size, hashes=entry.place.hashes)
            overlap = self._indexer.overlap(query)
            self.at(self.now + BUS_S, partial(self._overlap, entry.place.turn, overlap))

    def _overlap(self, turn: TurnKey, overlap: Overlap) -> None:
        self._act(self._desk.overlap(turn, overlap, self.now))

    def _submit(self, placement: Placement) -> None:
        turn_id = placement.turn.turn_id
        turn, worker = self._open[turn_id], self._workers[placement.worker]
        asking = turn.asking
        run = EngineTurn(
            turn_id,
            asking.prompt,
            max_tokens=asking.output,
            min_tokens=asking.output,
            priority=asking.priority,
            session=asking.session,
            retention=_for_engine(turn.told),
            hashes=turn.hashes,
        )
        try:
            worker.engine.submit(run, self.now)
        except CatenaryError:
            worker.over.append(placement.turn)
            self._end(turn_id)
            return
        turn.asked.worker = worker.name
        if self._retention and (before := self._kept.placed(asking.session, worker.name)):
            self._retain(before, asking.session, ORDINARY)
        turn.asked.predicted = placement.overlap * self._block_size
        worker.live[turn_id] = 0
        self._awake(worker)

    def _end(self, turn_id: str) -> None:
        turn = self._open.pop(turn_id)
        turn.asked.ended_s = self.now - turn.asked.at
        if self._retention and turn.asked.worker:
            self._keep(turn)
        turn.ended(turn.generated)

    def _keep(self, turn: _Open) -> None:
        """The turn's worker is told how long its session stays away."""
        asking = turn.asking
        wanted, _ = self._kept.ended("", asking.session, asking.calls, self.now, subagent=asking.subagent)
        if wanted != turn.told:
            self._retain(turn.asked.worker, asking.session, wanted)

    def _retain(self, worker: str, session: str, retention: Retention) -> None:
        core = self._workers[worker].engine.core
        self.at(self.now + BUS_S, lambda: core.retain(session, _for_engine(retention), self.now), awaited=False)

    # --- engines ------------------------------------------------------------------------------------------------

    def _awake(self, worker: _Worker) -> None:
        """Its next step begins now, with all that comes at this very moment."""
        if not worker.stepping and worker.engine.core.live:
            worker.stepping = True
            self.at(self.now, partial(self._begin, worker), awaited=False)

    def _begin(self, worker: _Worker) -> None:
        due = worker.engine.due
        self.at(self.now if due is None else due, partial(self._step, worker), awaited=False)

    def _step(self, worker: _Worker) -> None:
        worker.stepping = False
        step, _ = worker.engine.advance()
        worker.load = step.load
        worker.pace.note(step.load)
        if step.kv:
            self.at(self.now + BUS_S, partial(self._indexer.events, worker.tell(step.kv)))
        for delta in step.deltas:
            turn_id = delta.turn_id
            turn = self._open[turn_id]
            if delta.started is not None:
                turn.asked.cached = delta.started.cached_tokens
            if delta.tokens:
                turn.asked.first_token_s = turn.asked.first_token_s or self.now - turn.asked.at
                turn.generated.extend(delta.tokens)
                worker.live[turn_id] = delta.offset + len(delta.tokens)
            if delta.finish is not None:
                del worker.live[turn_id]
                worker.over.append(TurnKey(turn_id=turn_id))
                self.at(self.now + BUS_S, partial(self._end, turn_id))
        if (step.load.running, step.load.waiting) != worker.told and not worker.beating:
            worker.beating = True
            self.at(max(self.now, worker.told_at + EARLIEST_BEAT_S), partial(self._beat, worker), awaited=False)
        self._awake(worker)

    def _beats(self, worker: _Worker) -> None:
        """A beat each quarter of a second while it has something to say."""
        if not worker.quiet:
            self._beat(worker)
        self.at(self.now + BEAT_S, partial(self._beats, worker), awaited=False)

    def _beat(self, worker: _Worker) -> None:
        worker.beating = False
        self.at(self.now + BUS_S, partial(self._heard, worker.beat(self.now)), awaited=False)

    def _heard(self, beat: WorkerLoad) -> None:
        self._indexer.load(beat, self.now)
        self._desk.fleet.heard(beat, self.now)
        self._pump()

    def _ticks(self) -> None:
        self._act(Outcome(self._desk.tick(self.now)))
        self._pump()
        self.at(self.now + TICK_S, self._ticks, awaited=False)

    def _pump(self) -> None:
        if len(self._desk.queue):
            self._act(self._desk.pump(self.now))
