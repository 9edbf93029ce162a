"""What every engine must keep, as a test class; sub-class it beside your engine and let pytest collect it.

    class TestMine(EngineContract):
        def make(self) -> Engine: ...          # a fresh engine, not started
        def prompt(self, length, seed=0): ...  # ids the engine can run

Needs no pytest itself, only a runner that awaits `async def test_…` methods.
"""
# ruff: noqa: S101, D102, PT017 - these are tests without pytest: they assert, and their names say what

import asyncio
from abc import ABC, abstractmethod
from array import array
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace

from catenary_protocols.conversation import TokenLogprob
from catenary_protocols.errors import CapacityError, RequestError
from catenary_protocols.ids import TurnKey
from catenary_tokenizers.blocks import block_hashes

from catenary_worker.engines.base import (
    Cleared,
    Delta,
    Engine,
    EngineInfo,
    EngineTurn,
    KvEvent,
    Removed,
    Retaining,
    Retention,
    Stored,
)

PATIENCE_S = 30.0
_FAR_FUTURE = 1e12
SCHEMA = {
    "type": "object",
    "properties": {"port": {"enum": ["Oslo", "Bergen"]}, "boats": {"enum": [3, 5]}},
    "required": ["port", "boats"],
    "additionalProperties": False,
}


class KvTable:
    """The blocks an engine says it holds: what its KV events add up to. Asserts that they can be added up."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.parents: dict[int, int | None] = {}

    def apply(self, events: Iterable[KvEvent]) -> None:
        """One step's events."""
        for event in events:
            match event:
                case Stored():
                    self._store(event)
                case Removed(hashes):
                    for name in hashes:
                        assert name in self.parents, "removed a block that was not held"
                        del self.parents[name]
                case Cleared():
                    self.parents.clear()
        held = set(self.parents)
        assert all(parent is None or parent in held for parent in self.parents.values()), "a block outlived its parent"

    def _store(self, event: Stored) -> None:
        assert len(event.tokens) == len(event.hashes) * self.block_size, "not the tokens of full blocks"
        assert event.parent is None or event.parent in self.parents, "stored under an unknown parent"
        parent = event.parent
        for name in event.hashes:
            assert name not in self.parents, "stored a block twice"
            self.parents[name] = parent
            parent = name


class Observed:
    """Reads an engine's steps and keeps what each turn got; asserts the rules of `base` as it goes."""

    def __init__(self, engine: Engine, info: EngineInfo) -> None:
        self.engine = engine
        self.info = info
        self.turns: dict[TurnKey, EngineTurn] = {}
        self.tokens: dict[TurnKey, list[int]] = {}
        self.logprobs: dict[TurnKey, list[TokenLogprob | None]] = {}
        self.cached: dict[TurnKey, int] = {}
        self.last: dict[TurnKey, Delta] = {}
        self.stored: list[Stored] = []
        self.table = KvTable(info.block_size)
        self._changed = asyncio.Condition()

    def submit(self, turn: EngineTurn) -> TurnKey:
        self.engine.submit(turn)
        self.turns[turn.key] = turn
        return turn.key

    async def read(self) -> None:
        """Until the steps end."""
        async for step in self.engine.steps():
            keys = [(delta.turn_id, delta.attempt) for delta in step.deltas]
            assert len(keys) == len(set(keys)), "a turn has two deltas in one step"
            if self.info.ranks == 1:
                self.table.apply(step.kv)
            self.stored += [event for event in step.kv if isinstance(event, Stored)]
            async with self._changed:
                for delta in step.deltas:
                    self._note(delta)
                self._changed.notify_all()

    def _note(self, delta: Delta) -> None:
        key = TurnKey(turn_id=delta.turn_id, attempt=delta.attempt)
        turn = self.turns[key]
        assert key not in self.last, "a delta after the last one"
        first = key not in self.tokens
        got = self.tokens.setdefault(key, [])
        assert delta.offset == len(turn.generated) + len(got), "a hole in the offsets"
        ran = delta.started is not None
        assert ran == first or (first and delta.finish in {"cancelled", "error"}), "`started` not exactly at the start"
        if delta.started is not None:
            assert 0 <= delta.started.cached_tokens < len(turn.prompt)
            self.cached[key] = delta.started.cached_tokens
        got += delta.tokens
        asked = turn.options.get("logprobs") is not None
        assert len(delta.logprobs) == (len(delta.tokens) if asked else 0), "likelihoods not of its tokens"
        self.logprobs.setdefault(key, []).extend(delta.logprobs)
        if delta.finish is not None:
            self.last[key] = delta

    async def until_tokens(self, key: TurnKey, count: int) -> None:
        """The turn has got that many tokens, or ended."""
        await self._until(lambda: len(self.tokens.get(key, ())) >= count or key in self.last)

    async def until_stored(self, tokens: int) -> None:
        """Blocks of so many tokens were told of; events may be later than the turn's end."""
        await self._until(lambda: sum(len(event.tokens) for event in self.stored) >= tokens)

    async def until_end(self, key: TurnKey) -> Delta:
        """The turn's last delta."""
        await self._until(lambda: key in self.last)
        return self.last[key]

    async def _until(self, ready: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S), self._changed:
            await self._changed.wait_for(ready)


class EngineContract(ABC):
    """The rules at the head of `base`, each as a test."""

    @abstractmethod
    def make(self) -> Engine:
        """A fresh engine that was not started."""

    @abstractmethod
    def prompt(self, length: int, seed: int = 0) -> "array[int]":
        """Ids the engine can run; another seed, other ids from the first one on."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Observed]:
        engine = self.make()
        observed = Observed(engine, await engine.start())
        async with asyncio.TaskGroup() as tasks:
            reader = tasks.create_task(observed.read())
            try:
                yield observed
            finally:
                await engine.stop()
            async with asyncio.timeout(PATIENCE_S):
                await reader

    def turn(self, name: str, prompt: "array[int]", max_tokens: int = 24) -> EngineTurn:
        return EngineTurn(name, prompt, max_tokens=max_tokens, ignore_eos=True, temperature=0.0)

    async def test_what_it_offers_makes_sense(self) -> None:
        async with self.running() as seen:
            info = seen.info
            assert min(info.model_context, info.block_size, info.total_blocks, info.max_batch, info.ranks) > 0

    async def test_a_turn_gets_its_tokens_and_ends_at_its_limit(self) -> None:
        async with self.running() as seen:
            key = seen.submit(self.turn("a", self.prompt(40), max_tokens=24))
            last = await seen.until_end(key)
            assert (last.finish, last.error) == ("length", None)
            assert len(seen.tokens[key]) == 24

    async def test_many_turns_at_once_all_end(self) -> None:
        async with self.running() as seen:
            keys = [seen.submit(self.turn(f"t{n}", self.prompt(20 + n, seed=n), max_tokens=1 + n)) for n in range(12)]
            for n, key in enumerate(keys):
                assert (await seen.until_end(key)).finish == "length"
                assert len(seen.tokens[key]) == 1 + n

    async def test_a_moved_turn_goes_on_exactly(self) -> None:
        async with self.running() as seen:
            whole = seen.submit(self.turn("a", self.prompt(40), max_tokens=24))
            await seen.until_end(whole)
            ids = seen.tokens[whole]
            moved = replace(seen.turns[whole], attempt=1, generated=array("I", ids[:9]))
            key = seen.submit(moved)
            await seen.until_end(key)
            assert seen.tokens[key] == ids[9:]

    async def test_a_constrained_turn_goes_on_exactly_where_guides_are_offered(self) -> None:
        async with self.running() as seen:
            if "guide" not in seen.info.features:
                return
            turn = replace(self.turn("a", self.prompt(40), max_tokens=48), options={"json_schema": SCHEMA})
            whole = seen.submit(replace(turn, ignore_eos=False))
            last = await seen.until_end(whole)
            ids = seen.tokens[whole]
            assert len(ids) > 3
            moved = replace(seen.turns[whole], attempt=1, generated=array("I", ids[:3]))
            key = seen.submit(moved)
            assert (await seen.until_end(key)).finish == last.finish
            assert seen.tokens[key] == ids[3:]

    async def test_likelihoods_are_told_of_every_token_where_they_are_offered(self) -> None:
        async with self.running() as seen:
            if "logprobs" not in seen.info.features:
                return
            for count in (0, 3):
                key = seen.submit(replace(self.turn(f"l{count}", self.prompt(40)), options={"logprobs": count}))
                await seen.until_end(key)
                said = zip(seen.tokens[key], seen.logprobs[key], strict=True)
                known = [(token, one) for token, one in said if one is not None]
                assert known
                for token, one in known:
                    assert one.logprob <= 0
                    assert len(one.top) == count
                    assert sorted(one.top.values(), reverse=True) == list(one.top.values())
                    assert one.top.get(token, one.logprob) == one.logprob

    async def test_limits_count_from_the_original_prompt(self) -> None:
        async with self.running() as seen:
            moved = replace(self.turn("a", self.prompt(40), max_tokens=10), generated=self.prompt(8, seed=3))
            key = seen.submit(moved)
            assert (await seen.until_end(key)).finish == "length"
            assert len(seen.tokens[key]) == 2

    async def test_cancel_ends_a_turn(self) -> None:
        async with self.running() as seen:
            key = seen.submit(self.turn("a", self.prompt(40), max_tokens=seen.info.model_context - 41))
            await seen.until_tokens(key, 3)
            seen.engine.cancel(key)
            assert (await seen.until_end(key)).finish == "cancelled"

    async def test_cancel_of_a_stranger_changes_nothing(self) -> None:
        async with self.running() as seen:
            seen.engine.cancel(TurnKey(turn_id="nobody", attempt=3))
            key = seen.submit(self.turn("a", self.prompt(40)))
            assert (await seen.until_end(key)).finish == "length"

    async def test_a_turn_that_can_never_run_is_refused_at_once(self) -> None:
        async with self.running() as seen:
            for prompt in (array("I"), self.prompt(seen.info.model_context + 1)):
                try:
                    seen.engine.submit(EngineTurn("a", prompt))
                except RequestError as error:
                    assert error.field == "prompt"
                else:
                    raise AssertionError("took a prompt it cannot run")

    async def test_a_known_prefix_is_reused_but_for_the_last_block(self) -> None:
        async with self.running() as seen:
            size = seen.info.block_size
            first, second = self.turn("a", self.prompt(4 * size)), self.turn("b", self.prompt(4 * size))
            await seen.until_end(seen.submit(first))
            await seen.until_end(seen.submit(second))
            assert seen.cached[first.key] == 0
            if seen.info.events != "none":
                assert 3 * size <= seen.cached[second.key] < 4 * size

    async def test_salt_keeps_caches_apart(self) -> None:
        async with self.running() as seen:
            if "salt" not in seen.info.features:
                return
            size = seen.info.block_size
            first, second = (replace(self.turn(salt, self.prompt(4 * size)), salt=salt) for salt in ("x", "y"))
            await seen.until_end(seen.submit(first))
            await seen.until_end(seen.submit(second))
            assert seen.cached[second.key] == 0

    async def test_kv_events_tell_prompt_and_generated_blocks(self) -> None:
        async with self.running() as seen:
            if seen.info.events == "none":
                return
            size = seen.info.block_size
            turn = self.turn("a", self.prompt(2 * size), max_tokens=2 * size + 1)
            key = seen.submit(turn)
            await seen.until_end(key)
            await seen.until_stored(4 * size)
            ids = array("I", [*turn.prompt, *seen.tokens[key]])
            told = array("I")
            for event in seen.stored:
                told.extend(event.tokens)
            assert told == ids[: 4 * size]
            if seen.info.hashes == "sequence":
                names = array("Q", block_hashes(told.tobytes(), size)).tolist()
                assert [name for event in seen.stored for name in event.hashes] == names

    async def test_hints_it_may_not_know_do_no_harm(self) -> None:
        async with self.running() as seen:
            turn = replace(self.turn("a", self.prompt(40)), priority=7, retention=Retention(priority=50, seconds=9.0))
            assert (await seen.until_end(seen.submit(turn))).finish == "length"

    async def test_a_word_on_a_sessions_blocks_does_no_harm(self) -> None:
        async with self.running() as seen:
            if not isinstance(seen.engine, Retaining):
                return
            for retention in (Retention(priority=50, seconds=9.0), Retention(), Retention(priority=-1)):
                seen.engine.retain("nobody's", retention)
                turn = replace(self.turn(f"r{retention.priority}", self.prompt(40)), session="s", retention=retention)
                assert (await seen.until_end(seen.submit(turn))).finish == "length"
                seen.engine.retain("s", retention)

    async def test_drain_finishes_what_runs_and_takes_no_more(self) -> None:
        async with self.running() as seen:
            key = seen.submit(self.turn("a", self.prompt(40)))
            async with asyncio.timeout(PATIENCE_S):
                await seen.engine.drain(_FAR_FUTURE)
            assert (await seen.until_end(key)).finish == "length"
            try:
                seen.engine.submit(self.turn("b", self.prompt(40)))
            except CapacityError as error:
                assert error.code == "draining"
            else:
                raise AssertionError("took a turn while draining")

    async def test_drain_cancels_what_is_late(self) -> None:
        async with self.running() as seen:
            key = seen.submit(self.turn("a", self.prompt(40), max_tokens=seen.info.model_context - 41))
            await seen.engine.drain(0.0)
            assert (await seen.until_end(key)).finish == "cancelled"

    async def test_stop_may_be_called_twice(self) -> None:
        async with self.running() as seen:
            await seen.engine.stop()
            await seen.engine.stop()
