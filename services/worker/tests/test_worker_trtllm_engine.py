"""What TensorRT-LLM does to those who trust it, one trap a test, on stand-ins of its versions."""

import asyncio
import gc
import time
import weakref
from array import array
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from catenary_protocols.errors import CapacityError, EngineError, RequestError
from catenary_worker.engines.base import EngineTurn
from catenary_worker.engines.contract import Observed
from catenary_worker.engines.trtllm import TrtEngine, TrtSettings, polling
from catenary_worker.engines.trtllm import standin as trt
from catenary_worker.engines.trtllm.standin import StandIn, Version, standin

EOS = (2, 3)
VERSIONS: list[Version] = ["1.1", "1.2", "1.4"]


@pytest.fixture(params=VERSIONS)
def gpu(request: pytest.FixtureRequest) -> Iterator[StandIn]:
    with standin(request.param) as one:
        yield one


@pytest.fixture
def newer() -> Iterator[StandIn]:
    with standin("1.4") as one:
        yield one


@pytest.fixture
def older() -> Iterator[StandIn]:
    with standin("1.1") as one:
        yield one


def engine(context: int = 2048, **settings: Any) -> TrtEngine:
    return TrtEngine(Path("model"), TrtSettings(**settings), eos=EOS, context=context, on_phase=lambda _: None)


@asynccontextmanager
async def running(one: TrtEngine) -> AsyncIterator[Observed]:
    seen = Observed(one, await one.start())
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(seen.read())
        try:
            yield seen
        finally:
            await one.stop()


def ids(length: int = 40, seed: int = 0) -> "array[int]":
    return array("I", [100 + (seed * 7919 + at * 31) % 900 for at in range(length)])


def turn(name: str = "a", prompt: "array[int] | None" = None, **rest: Any) -> EngineTurn:
    rest = {"max_tokens": 8, "temperature": 0.0, **rest}
    return EngineTurn(name, ids() if prompt is None else prompt, **rest)


# --- what it would fill in by itself ------------------------------------------------------------------------------


async def test_a_turn_without_a_limit_gets_the_whole_context_not_32_tokens(gpu: StandIn) -> None:
    async with running(engine(context=200)) as seen:
        key = seen.submit(turn(max_tokens=None))
        assert (await seen.until_end(key)).finish == "length"
        assert len(seen.tokens[key]) == 160


async def test_a_turn_that_says_nothing_of_temperature_is_sampled_each_with_its_own_seed(gpu: StandIn) -> None:
    async with running(engine()) as seen:
        keys = [seen.submit(turn(name, temperature=None)) for name in ("a", "b")]
        for key in keys:
            await seen.until_end(key)
        assert seen.tokens[keys[0]] != seen.tokens[keys[1]]
        moved = seen.submit(turn("a", attempt=1, temperature=None))
        await seen.until_end(moved)
        assert seen.tokens[moved] == seen.tokens[keys[0]]


async def test_a_prompt_longer_than_a_step_is_computed_in_chunks(gpu: StandIn) -> None:
    async with running(engine(max_batched_tokens=64)) as seen:
        assert (await seen.until_end(seen.submit(turn(prompt=ids(300))))).finish == "length"


async def test_a_guide_needs_the_tokenizer_inside_and_without_one_it_is_left_out(gpu: StandIn) -> None:
    async with running(engine()):
        assert not gpu.llm.arguments["skip_tokenizer_init"]
    async with running(engine(guide="none")) as seen:
        assert gpu.llm.arguments["skip_tokenizer_init"]
        assert "guide" not in seen.info.features
        assert not gpu.llm.calls[0]["sampling_params"].detokenize


# --- ends ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", [*EOS, 77])
async def test_the_token_that_ended_a_turn_is_the_last_of_its_tokens(gpu: StandIn, stop: int) -> None:
    gpu.speak = lambda so_far, _: stop if len(so_far) == 43 else 500
    async with running(engine()) as seen:
        key = seen.submit(turn(stop_token_ids=(77,)))
        last = await seen.until_end(key)
        assert (last.finish, last.stop_token) == ("stop", True)
        assert seen.tokens[key] == [500, 500, 500, stop]


async def test_end_of_sequence_is_ignored_when_asked_but_stop_tokens_are_not(gpu: StandIn) -> None:
    gpu.speak = lambda so_far, _: {41: 2, 42: 3, 43: 77}.get(len(so_far), 500)
    async with running(engine()) as seen:
        key = seen.submit(turn(stop_token_ids=(77,), ignore_eos=True))
        await seen.until_end(key)
        assert seen.tokens[key] == [500, 2, 3, 77]


async def test_a_turn_of_no_tokens_only_computes_its_prompt(gpu: StandIn) -> None:
    async with running(engine()) as seen:
        key = seen.submit(turn(prompt=ids(64), max_tokens=0))
        assert (await seen.until_end(key)).finish == "length"
        assert seen.tokens[key] == []
        await seen.until_stored(64)


async def test_a_deadline_cancels(gpu: StandIn) -> None:
    async with running(engine()) as seen:
        last = await seen.until_end(seen.submit(turn(max_tokens=None, deadline=time.time() - 1)))
        assert last.finish == "cancelled"
        assert last.error is not None
        assert last.error.code == "deadline_exceeded"


# --- errors -------------------------------------------------------------------------------------------------------


async def test_an_error_of_one_request_ends_that_turn_alone(gpu: StandIn) -> None:
    gpu.refuse[2] = trt.RequestError("no")
    async with running(engine()) as seen:
        bad, good = seen.submit(turn("bad")), seen.submit(turn("good"))
        last = await seen.until_end(bad)
        assert last.finish == "error"
        assert last.error is not None
        assert last.error.code == "engine_failed"
        assert (await seen.until_end(good)).finish == "length"


@pytest.mark.parametrize("error", [trt.CppExecutorError("dead"), ValueError("odd")])
async def test_any_other_error_means_that_the_engine_is_broken(gpu: StandIn, error: Exception) -> None:
    gpu.refuse[2] = error
    one = engine()
    await one.start()
    one.submit(turn())
    with pytest.raises(EngineError, match="broke while it ran a turn"):
        async for _ in one.steps():
            pass
    await one.stop()


async def test_a_result_of_another_shape_breaks_the_engine_and_hangs_nobody(newer: StandIn) -> None:
    one = engine()
    await one.start()
    one.submit(turn())
    newer.llm.results["2"].outputs[0].request_perf_metrics = "none of ours"
    with pytest.raises(EngineError, match="nobody understands"):
        async for _ in one.steps():
            pass
    await one.stop()


async def test_what_it_refuses_at_the_door_ends_the_turn_as_the_requests_fault(gpu: StandIn) -> None:
    async with running(engine(llm={"guided_decoding_backend": None})) as seen:
        last = await seen.until_end(seen.submit(turn(options={"json_schema": {"type": "object"}})))
        assert last.error is not None
        assert last.error.code == "invalid_value"
        assert (await seen.until_end(seen.submit(turn("b")))).finish == "length"


async def test_a_shut_down_engine_is_broken_not_full(gpu: StandIn) -> None:
    one = engine()
    await one.start()
    gpu.llm.down = True
    one.submit(turn())
    with pytest.raises(EngineError, match="shutting down"):
        async for _ in one.steps():
            pass
    await one.stop()


# --- cancelling ---------------------------------------------------------------------------------------------------


async def test_a_cancel_aborts_and_frees_the_blocks(gpu: StandIn) -> None:
    async with running(engine()) as seen:
        key = seen.submit(turn(max_tokens=None))
        await seen.until_tokens(key, 2)
        seen.engine.cancel(key)
        await seen.until_end(key)
        await gpu.llm.idle()
        assert gpu.llm.results["2"].aborts == 1


async def test_a_decoding_half_aborts_only_what_has_begun(gpu: StandIn) -> None:
    async with running(engine(role="decode")) as seen:
        key = seen.submit(turn(max_tokens=None))
        seen.engine.cancel(key)
        assert gpu.llm.results["2"].aborts == 0
        await seen.until_end(key)
        await gpu.llm.idle()
        assert gpu.llm.results["2"].aborts == 1


async def test_a_prefilling_half_never_aborts_and_a_cancelled_turn_keeps_its_place(gpu: StandIn) -> None:
    async with running(engine(role="prefill")) as seen:
        assert "cancel" not in seen.info.features
        key = seen.submit(turn(max_tokens=50))
        seen.engine.cancel(key)
        await seen.until_end(key)
        assert gpu.llm.core.live
        await gpu.llm.idle()
        assert gpu.llm.results["2"].aborts == 0


async def test_a_constrained_turn_begun_anew_that_says_something_else_fails_and_is_aborted(gpu: StandIn) -> None:
    async with running(engine()) as seen:
        free = seen.submit(turn("a", max_tokens=20))
        await seen.until_end(free)
        told, other = seen.tokens[free][:4], array("I", [99])
        options = {"structural_tag": "{}"}
        key = seen.submit(turn("b", max_tokens=900, generated=array("I", told) + other, options=options))
        last = await seen.until_end(key)
        assert (last.finish, last.offset, seen.tokens[key]) == ("error", 5, [])
        assert gpu.llm.calls[-1]["inputs"] == list(ids())
        await gpu.llm.idle()
        assert gpu.llm.core.live == 0


async def test_a_turn_that_waits_is_cancelled_before_the_engine_hears_of_it(older: StandIn) -> None:
    async with running(engine(max_batch=1)) as seen:
        keys = [seen.submit(turn(f"t{n}", max_tokens=100)) for n in range(12)]
        seen.engine.cancel(keys[-1])
        for key in keys[:-1]:
            await seen.until_end(key)
        assert seen.last[keys[-1]].finish == "cancelled"
        assert len(older.llm.calls) == 12


# --- order --------------------------------------------------------------------------------------------------------


async def order_of_starts(gpu: StandIn, **settings: Any) -> list[str]:
    starts: list[str] = []
    one = engine(max_batch=1, **settings)
    await one.start()
    for n in range(20):
        one.submit(turn(f"low{n}", prompt=ids(seed=n)))
    one.submit(turn("high", prompt=ids(seed=50), priority=5))
    one.submit(turn("strict", prompt=ids(seed=51), priority=1 << 20))
    async for step in one.steps():
        starts += [delta.turn_id for delta in step.deltas if delta.started is not None]
        if len(starts) == 22:
            break
    await one.stop()
    return starts


async def test_priority_holds_where_the_engine_has_it(newer: StandIn) -> None:
    starts = await order_of_starts(newer)
    assert newer.llm.arguments["scheduler_config"].waiting_queue_policy == "PRIORITY"
    assert starts.index("strict") < starts.index("high") <= 2


async def test_priority_holds_where_the_engine_has_none(older: StandIn) -> None:
    starts = await order_of_starts(older)
    assert "scheduler_config" not in older.llm.arguments
    ahead = 9  # one runs and eight are ready when the others come
    assert starts[ahead : ahead + 2] == ["strict", "high"]
    assert [name for name in starts if name.startswith("low")] == [f"low{n}" for n in range(20)]


async def test_a_full_queue_says_so(gpu: StandIn) -> None:
    async with running(engine(max_batch=1, max_waiting=2)) as seen:
        for n in range(3):
            seen.submit(turn(f"t{n}"))
        with pytest.raises(CapacityError) as full:
            seen.engine.submit(turn("late"))
        assert full.value.code == "queue_full"


# --- start and stop -----------------------------------------------------------------------------------------------


async def test_the_constructor_blocks_a_thread_and_the_phases_tell(gpu: StandIn) -> None:
    phases: list[str] = []
    gpu.gate.clear()
    one = TrtEngine(Path("m"), TrtSettings(), eos=EOS, context=512, on_phase=phases.append)
    starting = asyncio.create_task(one.start())
    await asyncio.to_thread(gpu.entered.wait)
    assert gpu.log == ["constructed in trtllm: was constructed"]
    assert phases == ["importing TensorRT-LLM", "loading weights"]
    gpu.gate.set()
    await starting
    assert phases[2:] == ["warming up"]
    await one.stop()


async def test_nothing_is_asked_for_before_the_first_request_or_after_shutdown_began(gpu: StandIn) -> None:
    async with running(engine()) as seen:
        await seen.until_end(seen.submit(turn()))
    assert gpu.log[0].startswith("constructed")
    assert gpu.log.index("shut down") == len(gpu.log) - 1
    assert "polled" in gpu.log


async def test_a_stopped_engine_holds_nothing_of_it_any_more(gpu: StandIn) -> None:
    one = engine()
    async with running(one) as seen:
        await seen.until_end(seen.submit(turn()))
    there = weakref.ref(gpu.made.pop())
    await asyncio.sleep(0)
    gc.collect()
    assert there() is None
    assert gpu.log[-1] == "shut down"


async def test_a_shutdown_that_hangs_is_given_up(gpu: StandIn) -> None:
    gpu.hangs = True
    one = engine(stop_s=0.05)
    await one.start()
    gpu.gate.clear()
    with pytest.raises(EngineError, match="did not shut down"):
        await one.stop()
    gpu.gate.set()


async def test_a_model_that_cannot_reuse_blocks_is_declared_to_tell_nothing(gpu: StandIn) -> None:
    gpu.reuses = False
    async with running(engine()) as seen:
        assert seen.info.events == "none"
        assert (await seen.until_end(seen.submit(turn()))).finish == "length"


async def test_the_block_size_is_the_models_not_the_configured_one(gpu: StandIn) -> None:
    gpu.block_size = 64
    async with running(engine()) as seen:
        assert (seen.info.block_size, seen.info.total_blocks) == (64, 512)
        await seen.until_end(seen.submit(turn(prompt=ids(130))))
        await seen.until_stored(128)


async def test_the_context_is_the_engines_if_nobody_else_knows_it(gpu: StandIn) -> None:
    async with running(engine(context=0)) as seen:
        assert seen.info.model_context == 8192


async def test_statistics_that_never_come_hold_nobody_up(newer: StandIn) -> None:
    newer.stalls = True
    async with running(engine()) as seen:
        assert (await seen.until_end(seen.submit(turn()))).finish == "length"


async def test_an_engine_with_no_statistics_at_all_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "PATIENCE_S", 0.05)
    with standin("1.2") as gpu:
        gpu.stalls = True
        with pytest.raises(EngineError):
            await engine().start()
        assert gpu.log[-1] == "shut down"


async def test_statistics_tell_of_blocks_and_each_iteration_once(gpu: StandIn) -> None:
    one = engine()
    await one.start()
    gpu.pauses = 0.002
    one.submit(turn(max_tokens=None))
    loads = []
    async for step in one.steps():
        loads.append(step.load)
        if step.load.used_blocks and step.load.step_ms:
            break
    assert (loads[-1].step_ms, loads[-1].total_blocks) == (1.0, 512)
    assert one._load().step_ms == 0.0
    await one.stop()


async def test_attention_ranks_are_told(gpu: StandIn) -> None:
    async with running(engine(tensor_parallel=4, attention_dp=True)) as seen:
        assert seen.info.ranks == 4
        assert gpu.llm.arguments["tensor_parallel_size"] == 4
        assert gpu.llm.arguments["enable_attention_dp"]


# --- the shared index ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["1.2", "1.4"])
async def test_blocks_of_salted_turns_stay_out_of_the_index(version: Version) -> None:
    with standin(version):
        async with running(engine()) as seen:
            await seen.until_end(seen.submit(turn("s", prompt=ids(96), salt="tenant")))
            key = seen.submit(turn("p", prompt=ids(96, seed=5)))
            await seen.until_end(key)
            await seen.until_stored(96)
            assert seen.stored[0].tokens[:32] == ids(96, seed=5)[:32]


async def test_events_come_though_iterations_are_slow_and_no_other_request_follows(gpu: StandIn) -> None:
    async with running(engine()) as seen:
        gpu.pauses = 0.06
        await seen.until_end(seen.submit(turn(prompt=ids(62), max_tokens=4)))
        await seen.until_stored(64)


async def test_a_lost_event_clears_what_is_known(gpu: StandIn) -> None:
    async with running(engine()) as seen:
        await seen.until_end(seen.submit(turn("a", prompt=ids(96))))
        await seen.until_stored(96)
        gpu.lose = 1
        await seen.until_end(seen.submit(turn("b", prompt=ids(96, seed=4))))
        await seen.until_end(seen.submit(turn("c", prompt=ids(96, seed=6))))
        await seen.until_stored(192)
        first = seen.stored[0].hashes
        assert not set(first) & set(seen.table.parents)


# --- refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        ({"salt": "x"}, "salt"),
        ({"logit_bias": {5: 1.0}}, "logit_bias"),
        ({"options": {"lora": "french"}}, "lora"),
        ({"options": {"images": [1]}}, "images"),
        ({"options": {"structural_tag": "{}", "json_schema": {"type": "object"}}}, "guide"),
    ],
)
async def test_what_this_engine_cannot_do_is_refused_not_left_out(
    older: StandIn, wanted: dict[str, Any], field: str
) -> None:
    async with running(engine()) as seen:
        with pytest.raises(RequestError) as refused:
            seen.engine.submit(turn(**wanted))
        assert refused.value.field == field
