"""Runs `routing` cases on the router's core: the state and the requests are played, the checks are fields with names.

A request or check that has a field nobody here knows fails the case.
"""

from __future__ import annotations

from collections import Counter
from itertools import count
from typing import Any

from catenary_kv_indexer.core.indexer import SILENT_S, Indexer
from catenary_protocols.bus.messages import WorkerLoad
from catenary_protocols.ids import TurnKey
from catenary_router.testing import BLOCK, Stage, prompt

STATE = {"workers", "kv_events", "replicas"}
WORKER = {"worker", "load", "overlap", "queue_tokens", "alive"}
REQUEST = {"blocks", "times", "within_ms", "same_prompt", "distinct_prompts", "conversation_turns", "end", "through"}
CHECK = {"say", "worker", "worker_in", "max_share", "share_between", "active_load", "sticky"}
WARM = 1
ENDS = ("finished", "client aborted before prefill", "worker error", "finished, free sent twice")


def run(case: dict[str, Any]) -> None:
    """Run one case.

    Raises:
        AssertionError: a turn went where the case does not want it, or the case has a field nobody here knows.
    """
    _only(case["state"], STATE)
    scene = _Scene(case["state"])
    for request in case["requests"]:
        _only(request, REQUEST)
        scene.play(request)
    for check in case["expect"]["checks"]:
        _only(check, CHECK)
        scene.check(check)


def _only(fields: dict[str, Any], known: set[str]) -> None:
    assert not set(fields) - known, f"unknown: {sorted(set(fields) - known)}"


class _Scene:
    """One router, or several that hear the same beats and know nothing of each other's placements."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.events = "kv_events" not in state
        assert state.get("kv_events", "none arrive at all") == "none arrive at all"
        self.stages = [Stage(events=self.events) for _ in range(state.get("replicas", 1))]
        self.chosen: list[str] = []
        self.sessions: list[list[str]] = []
        self.dead: set[str] = set()
        self._names = count()
        self._turn = 0
        self._live: dict[str, list[str]] = {}
        longest = prompt((WARM, 4096))
        for worker in state["workers"]:
            _only(worker, WORKER)
            name = worker["worker"]
            for stage in self.stages:
                stage.worker(name, running=worker.get("load", 0), waiting_prefill=worker.get("queue_tokens", 0))
                stage.held[name] = set(longest[: worker.get("overlap", 0)])
                if not worker.get("alive", True):
                    held = stage.held[name]
                    stage.dies(name)
                    stage.held[name] = held  # an index that has not heard of it yet
                    self.dead.add(name)

    # --- requests -----------------------------------------------------------------------------------------------

    def play(self, request: dict[str, Any]) -> None:
        if "conversation_turns" in request:
            self._converse(request["conversation_turns"])
            return
        times = request.get("times", 1)
        apart_s = request.get("within_ms", 0) / 1000.0 / times
        distinct = request.get("distinct_prompts", 1)
        for number in range(times):
            part = (WARM, request["blocks"]) if distinct == 1 else (100 + number % distinct, request["blocks"])
            stage = self.stages[number % len(self.stages)]
            turn = f"t{next(self._names)}"
            worker = stage.placed(turn, prompt(part))
            self.chosen.append(worker)
            if "end" in request:
                self._end(stage, turn, worker, request["end"])
            elif len(self.stages) > 1:
                self._report(worker, turn)
            for one in self.stages:
                one.now += apart_s

    def _converse(self, turns: int) -> None:
        """A session that grows, with think time; its turns end before the next."""
        stage, session = self.stages[0], f"s{len(self.sessions)}"
        workers: list[str] = []
        for number in range(turns):
            turn = f"t{next(self._names)}"
            workers.append(stage.placed(turn, prompt((500, 8 + number)), session=session))
            self._end(stage, turn, workers[-1], "finished")
            stage.now += 5.0
        self.sessions.append(workers)
        self.chosen += workers

    def _end(self, stage: Stage, turn: str, worker: str, how: str) -> None:
        assert how in ENDS, how
        if how == "client aborted before prefill":
            stage.cancel(turn)
        elif how == "worker error":
            stage.worker(worker, ended=(TurnKey(turn_id=turn),))
        else:
            stage.runs(worker, turn)
            stage.runs(worker)
            if "twice" in how:
                stage.worker(worker, ended=(TurnKey(turn_id=turn), TurnKey(turn_id=turn)))
                stage.cancel(turn)

    def _report(self, worker: str, turn: str) -> None:
        """The worker's beat, which every replica hears."""
        self._live.setdefault(worker, []).append(turn)
        for stage in self.stages:
            stage.runs(worker, *self._live[worker])

    # --- checks -------------------------------------------------------------------------------------------------

    def check(self, check: dict[str, Any]) -> None:
        shares = {worker: times / len(self.chosen) for worker, times in Counter(self.chosen).items()}
        if "worker" in check:
            assert set(self.chosen) == {check["worker"]}, f"went to {dict(Counter(self.chosen))}"
        if "worker_in" in check:
            assert set(self.chosen) <= set(check["worker_in"]), f"went to {dict(Counter(self.chosen))}"
        if "max_share" in check:
            assert max(shares.values()) <= check["max_share"], f"shares {shares}"
        if "share_between" in check:
            low, high = check["share_between"]
            workers = self.stages[0].desk.fleet.workers
            assert all(low <= shares.get(name, 0.0) <= high for name in workers), f"shares {shares}"
        if "active_load" in check:
            for name, load in check["active_load"].items():
                assert self.stages[0].desk.fleet.workers[name].turns == load
        if "sticky" in check:
            assert all(len(set(workers)) == 1 for workers in self.sessions) is check["sticky"], self.sessions
        if set(check) == {"say"} and not self.events:
            self._stream_is_told_dead()

    def _stream_is_told_dead(self) -> None:
        """The kv-indexer names a worker that serves but sends no events."""
        indexer = Indexer()
        load = WorkerLoad(
            worker="w0", incarnation=1, model="m", card="c", block_size=BLOCK, kv_used=9, kv_total=100, kv_last=(0,)
        )
        indexer.load(load, 1.0)
        assert not indexer.mute(1.0)
        assert indexer.mute(1.0 + SILENT_S) == ["w0"]
