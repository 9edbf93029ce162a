"""Runs `kv_index` cases on the worker's mirror and the kv-indexer's core, composed as the mesh composes them.

A case numbers the events of a worker from 0; the mesh numbers what its mirror publishes from 1. Events that the case
shows only in a replay are fed to the mirror when their turn comes: the worker had them, the wire lost them.
"""

from __future__ import annotations

import struct
import time
import tracemalloc
from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from catenary_kv_indexer.core.indexer import Indexer, Question
from catenary_kv_indexer.core.resync import ANSWER_S, BACKOFF_MOST_S
from catenary_protocols.bus.messages import KvEvent, KvEvents, KvRemoved, KvReplay, OverlapQuery, SnapshotPage
from catenary_tokenizers import block_hashes
from catenary_worker.engines.base import Cleared, Removed, Stored
from catenary_worker.engines.base import KvEvent as EngineEvent
from catenary_worker.mirror import Mirror

MODEL = "m"
REMOVAL_STEP = 1000
TIDY_STEPS = 4096
RESPONSIVE_MS = 50.0
Op = dict[str, Any]
EVENT_OPS = {"stored", "stored_raw", "removed", "cleared", "transfer_in"}


def run(case: dict[str, Any]) -> None:
    """Run one case.

    Raises:
        AssertionError: an answer is not what the case expects.
    """
    world = _World(case)
    for at, op in enumerate(case["ops"]):
        also = case.get("also_ok", {}).get(str(at))
        world.play(op, also)


@dataclass
class _Rank:
    """One rank of one incarnation of a worker: its mirror, and what each of its events became on the wire."""

    mirror: Mirror
    script: dict[int, Op] = field(default_factory=dict)
    told: dict[int, tuple[int, tuple[KvEvent, ...]]] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)
    tokens: dict[str, list[int]] = field(default_factory=dict)
    fed: int = 0
    last: int = 0

    def name(self, label: str) -> int:
        return self.names.setdefault(label, len(self.names) + 1)

    def upto(self, seq: int) -> tuple[int, tuple[KvEvent, ...]]:
        """Let the worker live up to this event; its number on the wire, and what was published."""
        while self.fed <= seq:
            op = self.script.get(self.fed)
            published: tuple[KvEvent, ...] = (KvRemoved(hashes=b""),)  # the case does not tell what this one was
            if op is not None:
                published = tuple(self.mirror.apply(self.event(op)))
            self.told[self.fed] = (self.last + 1, published)
            self.last += len(published)
            self.fed += 1
        return self.told[seq]

    def event(self, op: Op) -> EngineEvent:
        """What the engine says."""
        if op["op"] == "stored_raw":
            raw = op["event"]
            if raw["type"] == "BlockRemoved":
                return Removed(tuple(map(self.name, raw["block_hashes"])))
            if raw["type"] == "AllBlocksCleared":
                return Cleared()
            parent = raw["parent_block_hash"]
            return Stored(
                parent=None if parent is None else self.name(parent),
                hashes=tuple(map(self.name, raw["block_hashes"])),
                tokens=array("I", raw["token_ids"]),
            )
        if op["op"] == "removed":
            return Removed(tuple(map(self.name, op["hashes"])))
        if op["op"] == "cleared":
            return Cleared()
        blocks = op["blocks"]
        self.tokens.update((block["h"], block["tokens"]) for block in blocks)
        return Stored(
            parent=None if op.get("parent") is None else self.name(op["parent"]),
            hashes=tuple(self.name(block["h"]) for block in blocks),
            tokens=array("I", [token for block in blocks for token in block["tokens"]]),
            salt=op.get("salt") or "",
            lora=op.get("lora") or "",
            images=tuple(tuple(images) for images in op.get("mm") or ()),
        )


class _World:
    """Workers, the wire and one kv-indexer."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.block_size: int = case["block_size"]
        self.indexer = Indexer()
        self.now = 0.0
        self.ranks: dict[tuple[str, int, int], _Rank] = {}
        self.incarnation_of: dict[int, int] = {}
        self.current: dict[str, int] = {}
        self.pending: list[Question] = []
        self.memory: dict[str, int] = {}
        if any(op["op"] == "assert_memory_growth" for op in case["ops"]):
            tracemalloc.start()
        self._read_ahead(case["ops"])

    def _read_ahead(self, ops: list[Op]) -> None:
        """Give each event to the incarnation whose event it is."""
        base: Counter[str] = Counter()
        for op in ops:
            if op["op"] == "worker_removed":
                base[op["worker"]] += REMOVAL_STEP
            for event in [op, *op.get("events", [])]:
                if event["op"] not in EVENT_OPS:
                    continue
                worker = event["worker"]
                current = base[worker] - (REMOVAL_STEP if event.get("late") and base[worker] else 0)
                incarnation = current + event.get("generation", 1)
                first = self._rank(worker, incarnation, event.get("rank", 0)).script.get(event.get("seq", -1))
                if event.get("seq") == 0 and first is not None and not _same(first, event) and not event.get("late"):
                    base[worker] += 1  # it began anew without saying so: a worker always says so
                    incarnation += 1
                self.incarnation_of[id(event)] = incarnation
                rank = self._rank(worker, incarnation, event.get("rank", 0))
                event.setdefault("seq", max(rank.script, default=-1) + 1)
                rank.script.setdefault(event["seq"], event)

    def play(self, op: Op, also: Any) -> None:
        kind = op["op"]
        if kind in EVENT_OPS:
            self._deliver(op)
        else:
            getattr(self, f"_{kind}")(op, also)
        self._collect()

    # --- events -------------------------------------------------------------------------------------------------

    def _deliver(self, op: Op) -> None:
        incarnation = self.incarnation_of[id(op)]
        if not op.get("late"):
            self.current[op["worker"]] = max(incarnation, self.current.get(op["worker"], 0))
        if op["op"] == "transfer_in" and "blocks" not in op:
            self._fill_transfer(op)
        rank = self._rank(op["worker"], incarnation, op.get("rank", 0))
        first, events = rank.upto(op["seq"])
        if events:
            self.indexer.events(self._message(op["worker"], incarnation, op.get("rank", 0), first, events))

    def _fill_transfer(self, op: Op) -> None:
        source = self._rank(op["from"], self.current.get(op["from"], 1), 0)
        op["blocks"] = [{"h": label, "tokens": source.tokens[label]} for label in op["hashes"]]

    def _churn(self, op: Op, _: Any) -> None:
        worker, incarnation = op["worker"], self.current.setdefault(op["worker"], 1)
        rank = self._rank(worker, incarnation, 0)
        shared = [{"h": label, "tokens": tokens} for label, tokens in op.get("shared", [])]
        parent = shared[-1]["h"] if shared else None
        if shared:
            self._live(worker, rank, {"op": "stored", "parent": None, "blocks": shared})
        for step in range(op["times"]):
            blocks: list[Op] = [
                {"h": f"churn-{step}-{at}", "tokens": [1_000_000 + step, at] + [0] * (self.block_size - 2)}
                for at in range(op.get("suffix_blocks", 1))
            ]
            self._live(worker, rank, {"op": "stored", "parent": parent, "blocks": blocks})
            if op.get("store_then_remove"):
                labels = [block["h"] for block in reversed(blocks)]
                self._live(worker, rank, {"op": "removed", "hashes": labels})
                for label in labels:
                    del rank.names[label], rank.tokens[label]
            elif op.get("link_previous"):
                parent = blocks[-1]["h"]
            if tracemalloc.is_tracing() and (step + 1) % 1000 == 0:
                self.indexer.tidy(TIDY_STEPS)
                self.memory[f"after {step + 1}"] = tracemalloc.get_traced_memory()[0]

    def _live(self, worker: str, rank: _Rank, op: Op) -> None:
        """An event too many to be kept."""
        events = tuple(rank.mirror.apply(rank.event(op)))
        first, rank.last, rank.fed = rank.last + 1, rank.last + len(events), rank.fed + 1
        self.indexer.events(self._message(worker, self.current[worker], 0, first, events))

    def _worker_removed(self, op: Op, _: Any) -> None:
        self.indexer.gone(op["worker"], self.current.get(op["worker"], 1))

    def _index_restart(self, _op: Op, _also: Any) -> None:
        self.indexer = Indexer()
        self.pending.clear()

    def _dump_and_load(self, _op: Op, _also: Any) -> None:
        dump, self.indexer = self.indexer.dump(), Indexer()
        self.indexer.restore(dump)
        self.pending.clear()

    # --- recovery -----------------------------------------------------------------------------------------------

    def _collect(self) -> None:
        self.pending += self.indexer.questions(self.now)

    def _asked(self, worker: str) -> Question | None:
        return next((one for one in self.pending if one.worker == worker), None)

    def _expect_recovery(self, op: Op, _: Any) -> None:
        question = self._asked(op["worker"])
        assert question is not None, f"{op['worker']} was not asked"
        if isinstance(question.query, KvReplay) and "from_seq" in op:
            rank = self._rank(op["worker"], question.incarnation, question.query.rank)
            want, _ = rank.upto(op["from_seq"])
            assert question.query.first == want, f"asked from {question.query.first}, not {want}"

    def _expect_no_recovery(self, op: Op, _: Any) -> None:
        assert self._asked(op["worker"]) is None

    def _recovery_times_out(self, op: Op, _: Any) -> None:
        self.pending = [one for one in self.pending if one.worker != op["worker"]]
        self.now += ANSWER_S + 0.1
        self._collect()
        self.now += BACKOFF_MOST_S

    def _replay(self, op: Op, _: Any) -> None:
        for worker in {event["worker"] for event in op["events"]}:
            events = sorted((one for one in op["events"] if one["worker"] == worker), key=lambda one: int(one["seq"]))
            incarnation = self.incarnation_of[id(events[0])]
            rank = self._rank(worker, incarnation, events[0].get("rank", 0))
            told = [rank.upto(event["seq"]) for event in events]
            message = self._message(
                worker,
                incarnation,
                events[0].get("rank", 0),
                told[0][0],
                tuple(one for _, many in told for one in many),
            )
            self._answer(worker, message)

    def _snapshot(self, op: Op, _: Any) -> None:
        worker = op["worker"]
        incarnation = self.current.setdefault(worker, 1)
        rank = self._rank(worker, incarnation, op.get("rank", 0))
        if "last_seq" in op:
            rank.upto(op["last_seq"])
        picture = Mirror(self.block_size)
        for block in op["blocks"]:
            event = rank.event(
                {"op": "stored", "parent": block.get("parent"), "blocks": [block], **_identity(block, op)}
            )
            picture.apply(event)
            rank.mirror.apply(event)
        page = SnapshotPage(
            worker=worker,
            incarnation=incarnation,
            model=MODEL,
            block_size=self.block_size,
            as_of=rank.last,
            page=0,
            events=tuple(picture.chains()),
            last=True,
            rank=op.get("rank", 0),
        )
        self._answer(worker, page)

    def _answer(self, worker: str, answer: KvEvents | SnapshotPage) -> None:
        question = self._asked(worker)
        assert question is not None, f"{worker} was not asked"
        self.pending.remove(question)
        self.indexer.answered(question, answer, self.now)

    # --- questions ----------------------------------------------------------------------------------------------

    def _query(self, op: Op, also: Any) -> None:
        found = self._overlap(op["tokens"], op)
        assert found in [op["expect"], also], f"{found}, not {op['expect']}"

    def _overlap(self, tokens: list[int], op: Op) -> dict[str, int]:
        hashes = block_hashes(
            struct.pack(f"<{len(tokens)}I", *tokens),
            self.block_size,
            salt=op.get("salt") or "",
            lora=op.get("lora") or "",
            images=op.get("mm") or (),
        )
        answer = self.indexer.overlap(OverlapQuery(model=MODEL, block_size=self.block_size, hashes=hashes))
        return {one.worker: one.blocks for one in answer.workers}

    def _assert_size(self, op: Op, _: Any) -> None:
        self.indexer.tidy(TIDY_STEPS)
        size = sum(len(index) for index in self.indexer.indexes.values())
        assert size <= op["max_blocks"], f"{size} blocks"

    def _assert_memory_growth(self, op: Op, _: Any) -> None:
        before, after = (self.memory[moment] for moment in op["between"])
        tracemalloc.stop()
        assert after <= before * op["max_ratio"], f"{before} bytes, then {after}"

    def _assert_counter(self, op: Op, _: Any) -> None:
        counts = Counter(self.indexer.counts)
        for rank in self.ranks.values():
            counts.update(rank.mirror.refused)
        named = [counts[reason] for reason in counts if reason in op["name"]]
        assert sum(named) >= op.get("min", 0), f"{op['name']} is {sum(named)} in {dict(counts)}"
        assert sum(named) <= op.get("max", sum(named)), f"{op['name']} is {sum(named)} in {dict(counts)}"

    def _assert_responsive(self, op: Op, _: Any) -> None:
        tokens = [token for rank in self.ranks.values() for tokens in rank.tokens.values() for token in tokens]
        began = time.perf_counter()
        self._overlap(tokens, op)
        took_ms = (time.perf_counter() - began) * 1e3
        assert took_ms <= op.get("max_ms", RESPONSIVE_MS), f"{took_ms:.1f} ms"

    # --- inside -------------------------------------------------------------------------------------------------

    def _rank(self, worker: str, incarnation: int, rank: int) -> _Rank:
        key = (worker, incarnation, rank)
        if key not in self.ranks:
            self.ranks[key] = _Rank(Mirror(self.block_size))
        return self.ranks[key]

    def _message(self, worker: str, incarnation: int, rank: int, first: int, events: tuple[KvEvent, ...]) -> KvEvents:
        return KvEvents(
            worker=worker,
            incarnation=incarnation,
            model=MODEL,
            block_size=self.block_size,
            first=first,
            events=events,
            rank=rank,
        )


def _same(one: Op, other: Op) -> bool:
    return all(one.get(key) == other.get(key) for key in ("op", "blocks", "hashes", "parent", "event"))


def _identity(block: Op, op: Op) -> Op:
    return {key: block.get(key, op.get(key)) for key in ("salt", "lora", "mm")}
