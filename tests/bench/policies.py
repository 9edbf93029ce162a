"""How routing policies compare, on a virtual clock: the router's and kv-indexer's cores over simulated engines.

No bus and no sleep: minutes of traffic take seconds. The two workloads are those of `load.py routing`: closed-loop
sessions over a few shared system prompts, with ample cache and with far too little.
"""

from __future__ import annotations

import random
import statistics
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Any

from catenary_kv_indexer.core.indexer import Indexer
from catenary_protocols.bus.messages import LiveTurn, Overlap, OverlapQuery, Placement, PlaceTurn, WorkerLoad
from catenary_protocols.ids import TurnKey
from catenary_router.core.cost import Weights
from catenary_router.core.desk import Desk, Outcome
from catenary_router.core.placement import POLICIES
from catenary_router.core.room import Limits
from catenary_tokenizers import block_hashes
from catenary_worker.core.pace import Pace
from catenary_worker.engines.base import EngineLoad, EngineTurn
from catenary_worker.engines.sim.settings import SimSettings
from catenary_worker.engines.sim.virtual import VirtualEngine
from catenary_worker.kv_journal import KvJournal

BLOCK = 16
BEAT_S = 0.25
EARLIEST_BEAT_S = 0.05
BUS_S = 0.001
"""One way over the bus, callbacks included."""
CONTEXT = 131_072


@dataclass(frozen=True)
class Workload:
    """Sessions that take turns; `concurrency` of them are alive at a time."""

    sessions: int
    groups: int
    system: int
    history: int
    turn: int
    turns: int
    concurrency: int
    output: int
    think_s: float = 0.2


WORKLOADS = {
    "shared_prompts": Workload(64, 4, 8000, 1000, 500, 8, 32, 32),
    "kv_pressure": Workload(48, 4, 8000, 8000, 800, 8, 24, 64),
}


def measure() -> dict[str, Any]:
    """By workload and policy."""
    return {
        name: {policy: summary([simulate(workload, policy, seed) for seed in range(3)]) for policy in POLICIES}
        for name, workload in WORKLOADS.items()
    }


@dataclass
class Asked:
    """One request: when, how long until its first token, how much was cached."""

    session: int
    at: float
    prompt: int
    first_token: float = 0.0
    cached: int = 0


def summary(runs: list[list[Asked]]) -> dict[str, float]:
    """Hit ratio and times to first token, ms; medians of runs."""
    rows: list[dict[str, float]] = []
    for asked in runs:
        waits = sorted(one.first_token * 1000 for one in asked)
        rows.append(
            {
                "hit_ratio": sum(one.cached for one in asked) / sum(one.prompt for one in asked),
                "ttft_mean_ms": statistics.fmean(waits),
                "ttft_p50_ms": waits[len(waits) // 2],
                "ttft_p90_ms": waits[len(waits) * 9 // 10],
                "ttft_p99_ms": waits[len(waits) * 99 // 100],
            }
        )
    return {key: round(statistics.median(row[key] for row in rows), 4) for key in rows[0]}


def simulate(
    workload: Workload, policy: str, seed: int, *, workers: int = 4, weights: Weights | None = None
) -> list[Asked]:
    """Run a workload to its end."""
    mesh = Mesh(policy, workers, seed, weights or Weights())
    rng = seeded(seed)
    groups = [array("I", [rng.randrange(2**31) for _ in range(workload.system)]) for _ in range(workload.groups)]
    todo = list(range(workload.sessions))
    rng.shuffle(todo)

    def begin() -> None:
        if todo:
            number = todo.pop(0)
            prompt = groups[number % workload.groups] + fresh(rng, workload.history)
            ask(number, prompt, 0)

    def ask(number: int, prompt: array[int], turn: int) -> None:
        def ended() -> None:
            if turn + 1 == workload.turns:
                begin()
                return
            think = rng.expovariate(1 / workload.think_s)
            mesh.at(mesh.now + think, lambda: ask(number, prompt + fresh(rng, workload.turn), turn + 1))

        mesh.ask(number, prompt, workload.output, ended)

    for _ in range(workload.concurrency):
        begin()
    mesh.run()
    return mesh.asked


def seeded(seed: int) -> random.Random:
    """The same numbers each time."""
    return random.Random(seed)  # noqa: S311  reproducible, not secret


def fresh(rng: random.Random, tokens: int) -> array[int]:
    """Tokens nobody has seen."""
    return array("I", [rng.randrange(2**31) for _ in range(tokens)])


@dataclass
class SimWorker:
    """An engine with a worker's shell around it: journal, pace, beats."""

    name: str
    engine: VirtualEngine
    journal: KvJournal
    pace: Pace = field(default_factory=Pace)
    live: dict[str, str] = field(default_factory=dict)
    ended: list[TurnKey] = field(default_factory=list)
    load: EngineLoad = field(default_factory=EngineLoad)
    told: tuple[int, int] = (0, 0)
    told_at: float = -1.0
    scheduled: bool = False

    def beat(self, now: float) -> WorkerLoad:
        load, self.told_at = self.load, now
        self.told = (load.running, load.waiting)
        ended, self.ended = tuple(self.ended), []
        return WorkerLoad(
            worker=self.name,
            incarnation=1,
            model="m",
            card="c",
            block_size=BLOCK,
            running=load.running,
            waiting=load.waiting,
            waiting_prefill=load.waiting_prefill_tokens + load.prefilling_tokens,
            kv_used=load.used_blocks,
            kv_total=load.total_blocks or self.engine.core.limits.blocks,
            max_batch=self.engine.core.limits.max_batch,
            decode_ms=self.pace.decode_ms,
            prefill_tokens_per_s=self.pace.prefill_tokens_per_s,
            kv_last=self.journal.last,
            kv_digest=self.journal.digest,
            turns=tuple(LiveTurn(turn_id=one, at="t") for one in self.live),
            ended=ended,
            sent_at=now,
        )


class Mesh:
    """Clock, engines, index and router."""

    def __init__(self, policy: str, workers: int, seed: int, weights: Weights) -> None:
        self.now = 1000.0
        self.asked: list[Asked] = []
        self._awaited = 0
        self._events: list[tuple[float, int, bool, Callable[[], None]]] = []
        self._numbers = count()
        self._open: dict[str, tuple[Asked, array[int], int, Callable[[], None]]] = {}
        self._indexer = Indexer(self.now)
        made = POLICIES[policy](weights, seeded(seed))
        self._desk = Desk(router="r", policy=made, weights=weights, limits=Limits(), now=0.0)
        settings = SimSettings()
        self._workers = {
            name: SimWorker(name, VirtualEngine(settings, CONTEXT), KvJournal(name, 1, "m", BLOCK, own_hashes=False))
            for name in (f"w{number}" for number in range(workers))
        }
        for worker in self._workers.values():
            self._beats(worker)

    def at(self, when: float, what: Callable[[], None], *, awaited: bool = True) -> None:
        """Do something then; `run` ends when nothing awaited is left."""
        self._awaited += awaited
        heappush(self._events, (when, next(self._numbers), awaited, what))

    def run(self) -> None:
        """Until every request has ended."""
        while self._awaited or self._open:
            busy = [worker for worker in self._workers.values() if worker.engine.due is not None]
            first = min(busy, key=lambda worker: worker.engine.due or 0.0, default=None)
            if first is not None and (first.engine.due or 0.0) <= self._events[0][0]:
                self._step(first)
            else:
                self.now, _, awaited, what = heappop(self._events)
                self._awaited -= awaited
                what()

    # --- turns --------------------------------------------------------------------------------------------------

    def ask(self, session: int, prompt: array[int], output: int, ended: Callable[[], None]) -> None:
        """A request; `ended` is called when its last token is there."""
        turn_id = f"t{next(self._numbers)}"
        asked = Asked(session, self.now, len(prompt))
        self.asked.append(asked)
        self._open[turn_id] = (asked, prompt, output, ended)
        hashes = block_hashes(prompt.tobytes(), BLOCK)
        place = PlaceTurn(
            turn=TurnKey(turn_id=turn_id),
            tokenizer="t",
            tokenizer_incarnation=1,
            model="m",
            card="c",
            block_size=BLOCK,
            hashes=hashes,
            prompt_tokens=len(prompt),
            session=f"s{session}",
            arrived_at=self.now,
            max_tokens=output,
        )
        self.at(self.now + BUS_S, lambda: self._act(self._desk.arrive(place, turn_id, self.now)))

    def _act(self, outcome: Outcome) -> None:
        for decided in outcome.answers:
            if isinstance(decided.answer, Placement):
                self._place(decided.answer)
        for entry in outcome.ask:
            place = entry.place
            query = OverlapQuery(model="m", block_size=BLOCK, hashes=place.hashes)
            overlap = self._indexer.overlap(query)
            self.at(self.now + BUS_S, partial(self._overlap, place.turn, overlap))

    def _overlap(self, turn: TurnKey, overlap: Overlap) -> None:
        self._act(self._desk.overlap(turn, overlap, self.now))

    def _place(self, placement: Placement) -> None:
        turn_id = placement.turn.turn_id
        _, prompt, output, _ = self._open[turn_id]
        worker = self._workers[placement.worker]

        def submit() -> None:
            worker.live[turn_id] = worker.name
            worker.engine.submit(EngineTurn(turn_id, prompt, max_tokens=output, min_tokens=output), self.now)

        self.at(self.now + 2 * BUS_S, submit)

    # --- engines ------------------------------------------------------------------------------------------------

    def _step(self, worker: SimWorker) -> None:
        step, self.now = worker.engine.advance()
        worker.load = step.load
        worker.pace.note(step.load)
        for message in worker.journal.feed(step.kv):
            self.at(self.now + BUS_S, partial(self._indexer.events, message))
        for delta in step.deltas:
            asked, _, _, ended = self._open[delta.turn_id]
            if delta.started is not None:
                asked.cached = delta.started.cached_tokens
            if delta.tokens and not asked.first_token:
                asked.first_token = self.now - asked.at
            if delta.finish is not None:
                del self._open[delta.turn_id]
                del worker.live[delta.turn_id]
                worker.ended.append(TurnKey(turn_id=delta.turn_id))
                self.at(self.now + BUS_S, ended)
        if (step.load.running, step.load.waiting) != worker.told and not worker.scheduled:
            worker.scheduled = True
            self.at(max(self.now, worker.told_at + EARLIEST_BEAT_S), lambda: self._beat(worker))

    def _beats(self, worker: SimWorker) -> None:
        """A beat each quarter of a second."""
        self._beat(worker)
        self._act(Outcome(self._desk.tick(self.now)))
        self.at(self.now + BEAT_S, lambda: self._beats(worker), awaited=False)

    def _beat(self, worker: SimWorker) -> None:
        worker.scheduled = False
        beat = worker.beat(self.now)

        def heard() -> None:
            self._indexer.load(beat, self.now)
            self._desk.fleet.heard(beat, self.now)
            self._act(self._desk.pump(self.now))

        self.at(self.now + BUS_S, heard)
