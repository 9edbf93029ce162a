"""The contract itself: the smallest engine passes it, and each broken one does not."""

import asyncio
import time
from array import array
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
import pytest
from catenary_protocols.errors import CapacityError, RequestError
from catenary_protocols.ids import TurnKey
from catenary_worker.engines.base import (
    Delta,
    Engine,
    EngineInfo,
    EngineLoad,
    EngineTurn,
    Finish,
    Started,
    Step,
    Stored,
)
from catenary_worker.engines.contract import EngineContract

CONTEXT = 400


class CountingEngine:
    """Says the numbers that follow the prompt's length, one turn after the other."""

    def __init__(self) -> None:
        self._queue: deque[EngineTurn] = deque()
        self._cancelled: set[TurnKey] = set()
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._draining = self._stopped = False

    async def start(self) -> EngineInfo:
        return EngineInfo(CONTEXT, 16, 8, 1, CONTEXT, frozenset({"cancel"}), "none")

    def submit(self, run: EngineTurn) -> None:
        if self._draining or self._stopped:
            raise CapacityError("the engine drains", code="draining")
        if not 0 < len(run.prompt) < CONTEXT:
            raise RequestError("the prompt is empty or too long", field="prompt")
        self._queue.append(run)
        self._idle.clear()
        self._work.set()

    def cancel(self, turn: TurnKey) -> None:
        self._cancelled.add(turn)

    async def steps(self) -> AsyncIterator[Step]:
        while not self._stopped or self._queue:
            if not self._queue:
                self._idle.set()
                self._work.clear()
                await self._work.wait()
                continue
            async for step in self._run(self._queue[0]):
                yield step
            self._queue.popleft()
        self._idle.set()

    async def _run(self, turn: EngineTurn) -> AsyncIterator[Step]:
        end = len(turn.prompt) + (CONTEXT if turn.max_tokens is None else turn.max_tokens)
        for at in range(len(turn.generated), CONTEXT):
            await asyncio.sleep(0)
            finish: Finish | None = "length" if len(turn.prompt) + at + 1 >= min(end, CONTEXT) else None
            if self._stopped or turn.key in self._cancelled:
                finish = "cancelled"
            started = Started(0) if at == len(turn.generated) else None
            said = () if finish == "cancelled" else (len(turn.prompt) + at,)
            yield Step([Delta(turn.turn_id, turn.attempt, at, said, started, finish)], [], EngineLoad())
            if finish:
                return

    async def drain(self, deadline: float) -> None:
        self._draining = True
        try:
            async with asyncio.timeout(max(0.0, deadline - time.time())):
                await self._idle.wait()
        except TimeoutError:
            self._cancelled.update(turn.key for turn in self._queue)
            await self._idle.wait()

    async def stop(self) -> None:
        self._stopped = True
        self._work.set()


class TestCounting(EngineContract):
    def make(self) -> Engine:
        return CountingEngine()

    def prompt(self, length: int, seed: int = 0) -> "array[int]":
        return array("I", range(seed, seed + length))


class _Broken(TestCounting):
    """The same, with every delta passed through `spoil`."""

    __test__ = False

    def __init__(self, spoil: Callable[[Delta], list[Step]]) -> None:
        self._spoil = spoil

    def make(self) -> Engine:
        spoil = self._spoil

        class Spoiled(CountingEngine):
            async def steps(self) -> AsyncIterator[Step]:
                async for step in super().steps():
                    for spoiled in spoil(step.deltas[0]):
                        yield spoiled

        return Spoiled()


def _with(**changes: object) -> Callable[[Delta], list[Step]]:
    def spoil(delta: Delta) -> list[Step]:
        return [Step([msgspec.structs.replace(delta, **changes)], [], EngineLoad())]

    return spoil


def _twice_in_a_step(delta: Delta) -> list[Step]:
    return [Step([delta, delta], [], EngineLoad())]


def _ends_twice(delta: Delta) -> list[Step]:
    return [Step([delta], [], EngineLoad())] * (2 if delta.finish else 1)


def _unknown_parent(delta: Delta) -> list[Step]:
    return [Step([delta], [Stored(99, (1,), array("I", range(16)))], EngineLoad())]


def _half_a_block(delta: Delta) -> list[Step]:
    return [Step([delta], [Stored(None, (1,), array("I", range(8)))], EngineLoad())]


@pytest.mark.parametrize(
    "spoil",
    [
        _with(offset=0),
        _with(started=None),
        _with(started=Started(40)),
        _with(tokens=()),
        _twice_in_a_step,
        _ends_twice,
        _unknown_parent,
        _half_a_block,
    ],
)
async def test_a_broken_engine_is_found_out(spoil: Callable[[Delta], list[Step]]) -> None:
    contract = _Broken(spoil)
    with pytest.raises((AssertionError, ExceptionGroup)) as found:
        await contract.test_a_turn_gets_its_tokens_and_ends_at_its_limit()
    error = found.value
    assert isinstance(error, AssertionError) or (isinstance(error, ExceptionGroup) and error.subgroup(AssertionError))


class _Greedy(TestCounting):
    """It takes every turn."""

    __test__ = False

    def make(self) -> Engine:
        class Greedy(CountingEngine):
            def submit(self, run: EngineTurn) -> None:
                self._queue.append(run)
                self._work.set()

        return Greedy()


REFUSALS: list[Callable[[EngineContract], Awaitable[None]]] = [
    EngineContract.test_a_turn_that_can_never_run_is_refused_at_once,
    EngineContract.test_drain_finishes_what_runs_and_takes_no_more,
]


@pytest.mark.parametrize("rule", REFUSALS)
async def test_an_engine_that_takes_everything_is_found_out(rule: Callable[[EngineContract], Awaitable[None]]) -> None:
    with pytest.raises((AssertionError, ExceptionGroup)):
        await rule(_Greedy())
