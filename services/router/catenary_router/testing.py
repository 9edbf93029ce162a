"""The router's core on a stage: a desk, workers that beat when told to, a naive index, a clock that stands still."""

import random
import struct
from collections.abc import Iterable
from typing import Any

import msgspec
from catenary_protocols.bus.messages import (
    LiveTurn,
    Overlap,
    Placement,
    PlaceQueued,
    PlaceTurn,
    Refused,
    WorkerLoad,
    WorkerOverlap,
)
from catenary_protocols.ids import TurnKey

from catenary_router.core.cost import Weights
from catenary_router.core.desk import Answer, Desk, Outcome
from catenary_router.core.placement import POLICIES
from catenary_router.core.room import Limits

BLOCK = 16
START = 1_000_000.0


def prompt(*parts: tuple[int, int]) -> list[int]:
    """Sequence hashes of a prompt made of (name, blocks) parts; equal beginnings have equal hashes."""
    hashes: list[int] = []
    past = 1
    for name, blocks in parts:
        for at in range(blocks):
            past = hash((past, name, at)) & 0xFFFF_FFFF_FFFF_FFFF
            hashes.append(past)
    return hashes


class Stage:
    """See the module.

    Attributes:
        held: blocks by worker, as the index knows them.
        events: whether workers' KV events come at all.
        index: whether the kv-indexer answers.
        answers: every answer by turn, the latest last.
    """

    def __init__(
        self, policy: str = "kv", *, limits: Limits | None = None, weights: Weights | None = None, events: bool = True
    ) -> None:
        self.now = START
        self.events = events
        self.index = True
        self.weights = weights or Weights()
        made = POLICIES[policy](self.weights, random.Random(1))  # noqa: S311  # no secret
        self.desk = Desk(router="r0", policy=made, weights=self.weights, limits=limits or Limits(), now=START - 60)
        self.beats: dict[str, WorkerLoad] = {}
        self.held: dict[str, set[int]] = {}
        self.answers: dict[str, list[Answer]] = {}

    # --- workers ------------------------------------------------------------------------------------------------

    def worker(self, name: str, **load: Any) -> None:
        """A worker's beat: the fields given, the others as in its last one."""
        beat = self.beats.get(name) or WorkerLoad(
            worker=name, incarnation=1, model="m", card="c", block_size=BLOCK, kv_total=8192, max_batch=256
        )
        self.beats[name] = beat = msgspec.structs.replace(beat, **load)
        self.held.setdefault(name, set())
        self.desk.fleet.heard(beat, self.now)
        self._collect(self.desk.pump(self.now))

    def runs(self, name: str, *turn_ids: str, **load: Any) -> None:
        """A beat that names these turns as running."""
        turns = tuple(LiveTurn(turn_id=one, at="t0") for one in turn_ids)
        self.worker(name, **({"running": len(turn_ids), "turns": turns} | load))

    def dies(self, name: str) -> None:
        """The worker is silent for too long."""
        self.desk.worker_gone(name, self.beats.pop(name).incarnation)

    # --- turns --------------------------------------------------------------------------------------------------

    def place(self, turn_id: str, hashes: Iterable[int], *, attempt: int = 0, **more: Any) -> Answer | None:
        """Ask for a place; the latest answer, if there is one."""
        blocks = tuple(hashes)
        fields: dict[str, Any] = {
            "tokenizer": "t0",
            "tokenizer_incarnation": 1,
            "model": "m",
            "card": "c",
            "block_size": BLOCK,
            "hashes": struct.pack(f"<{len(blocks)}Q", *blocks),
            "prompt_tokens": len(blocks) * BLOCK + 1,
            "session": turn_id,
            "arrived_at": self.now,
            "max_tokens": 128,
        }
        turn = PlaceTurn(turn=TurnKey(turn_id=turn_id, attempt=attempt), **(fields | more))
        self._collect(self.desk.arrive(turn, turn_id, self.now))
        return self.answers.get(turn_id, [None])[-1]

    def placed(self, turn_id: str, hashes: Iterable[int], **more: Any) -> str:
        """Ask for a place that must be there; its worker."""
        answer = self.place(turn_id, hashes, **more)
        if isinstance(answer, Placement):
            return answer.worker
        raise AssertionError(f"{turn_id} got {answer}")

    def where(self, turn_id: str) -> str:
        """Worker, `queued` or the error's code: what the turn's latest answer says."""
        match self.answers[turn_id][-1]:
            case Placement() as placement:
                return placement.worker
            case PlaceQueued():
                return "queued"
            case Refused() as refused:
                return refused.error.code

    def cancel(self, turn_id: str, attempt: int = 0) -> None:
        """The placement is not wanted any more."""
        self.desk.cancel(TurnKey(turn_id=turn_id, attempt=attempt))
        self._collect(self.desk.pump(self.now))

    def wait(self, seconds: float) -> None:
        """Time passes in ticks."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 0.1)
            self._collect(Outcome(self.desk.tick(self.now)))
            self._collect(self.desk.pump(self.now))

    # --- inside -------------------------------------------------------------------------------------------------

    def _collect(self, outcome: Outcome) -> None:
        for decided in outcome.answers:
            self.answers.setdefault(decided.entry.place.turn.turn_id, []).append(decided.answer)
        for entry in outcome.ask:
            self._collect(self.desk.overlap(entry.place.turn, self._overlap(entry.hashes), self.now))

    def _overlap(self, hashes: Iterable[int]) -> Overlap | None:
        if not self.index:
            return None
        if not self.events:
            return Overlap()
        blocks = tuple(hashes)
        found = []
        for name, held in self.held.items():
            count = next((at for at, one in enumerate(blocks) if one not in held), len(blocks))
            if count:
                found.append(WorkerOverlap(worker=name, blocks=count))
        return Overlap(workers=tuple(found), known=tuple(self.held))
