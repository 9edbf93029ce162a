"""Many engines on one virtual clock."""

from array import array

import pytest
from catenary_worker.engines.base import EngineTurn
from catenary_worker.engines.paged import Batch
from catenary_worker.engines.sim.settings import SimSettings
from catenary_worker.engines.sim.timing import dynamo, roofline
from catenary_worker.engines.sim.virtual import VirtualEngine

PROMPT = array("I", range(500))


def test_virtual_time_is_the_sum_of_the_steps() -> None:
    engine = VirtualEngine(SimSettings(), 4096)
    engine.submit(EngineTurn("a", PROMPT, max_tokens=3), 100.0)
    times, ends = [], []
    while engine.due is not None:
        step, now = engine.advance()
        times.append(now)
        ends.append(step.deltas[0].finish)
    prefill = dynamo(Batch(131_072, prefill_tokens=500))
    decode = [dynamo(Batch(131_072, decode_rows=1, decode_tokens=tokens)) for tokens in (501, 502)]
    assert times == pytest.approx([100.0 + prefill, 100.0 + prefill + decode[0], 100.0 + prefill + sum(decode)])
    assert ends == [None, None, "length"]


def test_turns_that_come_during_a_step_join_the_next_one() -> None:
    engine = VirtualEngine(SimSettings(), 4096)
    engine.submit(EngineTurn("a", PROMPT, max_tokens=4), 0.0)
    assert engine.due is not None
    engine.submit(EngineTurn("b", PROMPT, max_tokens=1), 0.001)
    step, _ = engine.advance()
    assert [delta.turn_id for delta in step.deltas] == ["a"]
    step, _ = engine.advance()
    second = next(delta for delta in step.deltas if delta.turn_id == "b")
    assert second.started is not None
    assert second.started.cached_tokens == 496
    assert second.started.queued_s == pytest.approx(dynamo(Batch(131_072, prefill_tokens=500)) - 0.001)


def test_engines_of_one_clock_are_advanced_by_the_caller() -> None:
    engines = [VirtualEngine(SimSettings(preset=preset), 4096) for preset in ("dynamo", "roofline")]
    for number, engine in enumerate(engines):
        engine.submit(EngineTurn(f"t{number}", PROMPT, max_tokens=20), 0.1 * number)
    order = []
    while running := [engine for engine in engines if engine.due is not None]:
        step, now = min(running, key=lambda engine: engine.due or 0.0).advance()
        order.append((now, step.deltas[0].turn_id))
    assert order == sorted(order)
    assert len(order) == 40


def test_the_same_prompt_and_seed_say_the_same_anywhere() -> None:
    said = []
    for seed in (1, 1, 2):
        engine = VirtualEngine(SimSettings(), 4096)
        engine.submit(EngineTurn("a", PROMPT, max_tokens=5, seed=seed), 0.0)
        ids: list[int] = []
        while engine.due is not None:
            ids += engine.advance()[0].deltas[0].tokens
        said.append(ids)
    assert said[0] == said[1] != said[2]


def test_an_idle_engine_has_no_step() -> None:
    engine = VirtualEngine(SimSettings(), 4096)
    assert engine.due is None
    with pytest.raises(LookupError):
        engine.advance()


def test_presets_have_the_figures_of_their_sources() -> None:
    assert dynamo(Batch(1000, prefill_tokens=500)) == pytest.approx(0.0242, abs=1e-3)
    assert dynamo(Batch(1000, prefill_tokens=8000)) == pytest.approx(0.165, abs=5e-3)
    assert dynamo(Batch(1000, decode_rows=1, decode_tokens=0)) == pytest.approx(0.00574)
    assert dynamo(Batch(1000, decode_rows=9, decode_tokens=1000)) == pytest.approx(0.03401)
    assert dynamo(Batch(1000, decode_rows=9, decode_tokens=2000)) == pytest.approx(0.03401)  # shared blocks
    assert roofline(Batch(1000, decode_rows=1, decode_tokens=1000)) == pytest.approx(0.06002)


def test_jitter_is_repeatable_and_bounded() -> None:
    batch = Batch(1000, prefill_tokens=100)
    timings = [SimSettings(jitter=0.9, seed=5).timing for _ in range(2)]
    times = [[timing(batch) for _ in range(50)] for timing in timings]
    assert times[0] == times[1]
    assert len(set(times[0])) > 10
    assert all(0.29 * dynamo(batch) < seconds < 1.71 * dynamo(batch) for seconds in times[0])
