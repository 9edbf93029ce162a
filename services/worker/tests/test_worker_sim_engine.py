"""The simulated engine keeps the engine contract, and its own word: pace, scripts, report."""

import asyncio
import json
from array import array
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from catenary_protocols.errors import RequestError
from catenary_tokenizers import ModelTokenizer, embedded_path, load, pack, unpack
from catenary_worker.engines.base import Engine, EngineSetup, EngineTurn, engine_for
from catenary_worker.engines.contract import EngineContract, Observed
from catenary_worker.engines.sim.engine import SimEngine
from catenary_worker.engines.sim.settings import SimSettings
from catenary_worker.engines.sim.writing import render_for
from hypothesis import given, settings
from hypothesis import strategies as st

MODEL = load(embedded_path())
TIDE: dict[str, Any] = {
    "name": "tide_table",
    "description": "High and low water at a port.",
    "parameters": {
        "type": "object",
        "properties": {"port": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 5}},
        "required": ["port", "days"],
    },
}
LAMP: dict[str, Any] = {
    "name": "switch_lamp",
    "description": "Turns a lamp on or off.",
    "parameters": {
        "type": "object",
        "properties": {"room": {"type": "string"}, "state": {"enum": ["on", "off"]}},
        "required": ["room", "state"],
    },
}
TOOLS = [{"type": "function", "function": tool} for tool in (LAMP, TIDE)]


def prompt(*messages: tuple[str, str], tools: Sequence[Any] = (), **kwargs: Any) -> "array[int]":
    said = [{"role": role, "content": content} for role, content in messages]
    return unpack(MODEL.encode_prompt(MODEL.render(said, tools, **kwargs)))


def make(model: ModelTokenizer = MODEL, **options: object) -> SimEngine:
    return SimEngine(model, render_for("hermes", "auto"), SimSettings.read({"time_scale": 0, **options}), 4096)


@asynccontextmanager
async def running(engine: SimEngine) -> AsyncIterator[Observed]:
    seen = Observed(engine, await engine.start())
    async with asyncio.TaskGroup() as tasks:
        reader = tasks.create_task(seen.read())
        yield seen
        await engine.stop()
        await reader


async def answer(engine: SimEngine, *turns: EngineTurn) -> list[str]:
    async with running(engine) as seen:
        for turn in turns:
            await seen.until_end(seen.submit(turn))
        return [MODEL.decode(pack(seen.tokens[turn.key])) for turn in turns]


def call_in(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text.partition("<tool_call>")[2].partition("</tool_call>")[0])
    return found


class TestSim(EngineContract):
    def make(self) -> Engine:
        return make(blocks=512, block_size=8)

    def prompt(self, length: int, seed: int = 0) -> "array[int]":
        return array("I", [(seed * 997 + number * 31) % 8000 for number in range(length)])


class TestSimInAPoolTooSmall(TestSim):
    def make(self) -> Engine:
        return make(blocks=20, block_size=8, max_batched_tokens=48, max_batch=3)


async def test_an_agent_calls_the_tool_the_words_fit_and_goes_on_talking() -> None:
    asked = prompt(("user", "When is low water at `Ayr` in the next 3 days?"), tools=TOOLS)
    (said,) = await answer(make(), EngineTurn("a", asked))
    assert call_in(said) == {"name": "tide_table", "arguments": {"port": "Ayr", "days": 3}}
    assert said.startswith("<think>\n")
    assert said.endswith("<|im_end|>")
    after = said.partition("</tool_call>")[2].removesuffix("<|im_end|>")
    assert 40 <= len(unpack(MODEL.encode(after.strip(), special=False))) <= 80


async def test_no_text_follows_where_one_call_is_all_that_may_come() -> None:
    asked = prompt(("user", "Turn the lamp in the `hall` off"), tools=TOOLS)
    (said,) = await answer(make(), EngineTurn("a", asked, options={"parallel_calls": False}))
    assert call_in(said)["arguments"] == {"room": "hall", "state": "off"}
    assert said.endswith("</tool_call><|im_end|>")


async def test_results_that_came_last_are_in_the_answer_as_text() -> None:
    result = 'low water 04:12, "spring" <tool_call> é'
    asked = prompt(("user", "Low water at Ayr?"), ("tool", result), tools=TOOLS)
    turn = EngineTurn("a", asked)
    async with running(make()) as seen:
        await seen.until_end(seen.submit(turn))
        assert result in MODEL.decode(pack(seen.tokens[turn.key]))
        assert MODEL.control_tokens["<tool_call>"] not in seen.tokens[turn.key]


async def test_without_tools_it_answers() -> None:
    (said,) = await answer(make(), EngineTurn("a", prompt(("user", "Good morning"))))
    assert "Good morning" in said
    assert "<tool_call>" not in said


@pytest.mark.parametrize(
    ("choice", "called"),
    [("none", None), ("switch_lamp", "switch_lamp"), ("required", "tide_table"), ("auto", "tide_table")],
)
async def test_a_tool_choice_is_obeyed(choice: str, called: str | None) -> None:
    asked = prompt(("user", "Low water at the port `Ayr`?"), tools=TOOLS)
    (said,) = await answer(make(), EngineTurn("a", asked, options={"tool_choice": choice}))
    assert (call_in(said)["name"] if "<tool_call>" in said else None) == called


async def test_a_guide_can_demand_a_call_where_the_prompt_would_not() -> None:
    tag = {"begin": '<tool_call>\n{"name": "switch_lamp", "arguments": ', "end": "}\n</tool_call>"}
    guide = {"format": {"type": "triggered_tags", "tags": [tag], "at_least_one": True, "stop_after_first": True}}
    asked = prompt(("user", "Low water at Ayr?"), ("tool", "04:12"), tools=TOOLS)
    (said,) = await answer(make(), EngineTurn("a", asked, options={"structural_tag": json.dumps(guide)}))
    assert call_in(said)["name"] == "switch_lamp"
    assert said.endswith("</tool_call><|im_end|>")
    with pytest.raises(RequestError, match="guide"):
        make().submit(EngineTurn("a", asked, options={"structural_tag": "{"}))


def test_an_adapter_is_refused_not_left_out() -> None:
    with pytest.raises(RequestError) as refused:
        make().submit(EngineTurn("a", prompt(("user", "hi")), options={"lora": "french"}))
    assert refused.value.field == "lora"


async def test_a_schema_constrains_all_that_is_said() -> None:
    (said,) = await answer(
        make(), EngineTurn("a", prompt(("user", "Tide at `Ayr`")), options={"json_schema": TIDE["parameters"]})
    )
    assert json.loads(said.removesuffix("<|im_end|>")) == {"port": "Ayr", "days": 1}


async def test_thinking_that_the_template_closed_stays_closed() -> None:
    (said,) = await answer(make(), EngineTurn("a", prompt(("user", "Hello"), enable_thinking=False)))
    assert "<think>" not in said


async def test_thinking_that_the_prompt_opened_is_not_opened_again() -> None:
    asked = prompt(("user", "Hello"))
    asked.extend(unpack(MODEL.encode("<think>\n", special=True)))
    (said,) = await answer(make(), EngineTurn("a", asked))
    assert "<think>" not in said
    assert "</think>" in said
    (said,) = await answer(make(), EngineTurn("a", asked, options={"json_schema": {"const": 3}}))
    assert said.split() == ["</think>", "3<|im_end|>"]


async def test_min_tokens_and_ignored_ends_give_text_up_to_the_limit() -> None:
    asked = prompt(("user", "Hello"))
    async with running(make()) as seen:
        least = seen.submit(EngineTurn("least", asked, min_tokens=300))
        most = seen.submit(EngineTurn("most", asked, max_tokens=500, ignore_eos=True))
        assert (await seen.until_end(least)).stop_token
        assert len(seen.tokens[least]) == 301
        assert (await seen.until_end(most)).finish == "length"
        assert len(seen.tokens[most]) == 500
        assert seen.tokens[least][:300] == seen.tokens[most][:300]


async def test_another_seed_says_it_otherwise() -> None:
    asked = prompt(("user", "Hello"))
    turns = [EngineTurn(f"t{seed}", asked, seed=seed) for seed in (1, 1, 2)]
    first, again, other = await answer(make(), turns[0], replace(turns[1], attempt=1), turns[2])
    assert first == again != other


@settings(max_examples=12, deadline=None)
@given(cut=st.integers(0, 80), seed=st.integers(0, 3))
def test_a_turn_moved_at_any_position_goes_on_exactly(cut: int, seed: int) -> None:
    asked = prompt(("user", "Low water at `Ayr`?"), tools=TOOLS)
    turn = EngineTurn("a", asked, seed=seed)

    async def move() -> None:
        async with running(make()) as seen:
            await seen.until_end(seen.submit(turn))
            ids = seen.tokens[turn.key]
        async with running(make()) as elsewhere:
            moved = replace(turn, attempt=1, generated=array("I", ids[:cut]))
            await elsewhere.until_end(elsewhere.submit(moved))
            assert ids[:cut] + elsewhere.tokens[moved.key] == ids

    asyncio.run(move())


async def test_steps_take_the_time_of_the_preset() -> None:
    loop = asyncio.get_running_loop()
    async with running(make(time_scale=1.0)) as seen:
        began = loop.time()
        await seen.until_end(seen.submit(EngineTurn("a", prompt(("user", "Hi")), max_tokens=11, ignore_eos=True)))
        took = loop.time() - began
    assert 0.0165 + 10 * 0.00574 <= took < 0.5


async def test_a_fast_engine_lets_others_run() -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    task = asyncio.ensure_future(other())
    await answer(make(), EngineTurn("a", prompt(("user", "Hi")), max_tokens=200, ignore_eos=True))
    task.cancel()
    assert turns >= 200


IMAGE = "data:image/png;base64," + "A" * 100


async def test_a_script_is_said_to_the_letter_and_reported() -> None:
    engine = make(scripts=True)
    text = 'Looking.\n<tool_call>\n{"name": "x", "arguments": {}}\n</tool_call>'
    assert engine.script({"id": "s", "match": "Ayr", "texts": [text], "cached_tokens": 5}) == "s"
    asked = prompt(("user", "Tide at Ayr?"))
    turn = EngineTurn("a", asked, temperature=0.5, options={"images": (IMAGE, IMAGE)})
    async with running(engine) as seen:
        await seen.until_end(seen.submit(turn))
        ids = seen.tokens[turn.key]
        assert MODEL.decode(pack(ids)) == f"{text}<|im_end|>"
        assert MODEL.control_tokens["<tool_call>"] in ids
        assert seen.cached[turn.key] == 5
        report = engine.report()
        assert report["prompt"] == MODEL.decode(pack(asked))
        assert (report["calls"], report["aborted"], report["images"]) == (1, 0, [IMAGE[:64]] * 2)
        assert (report["prompt_tokens"], report["tokens"], report["cached_tokens"]) == (len(asked), len(ids), 5)
        assert isinstance(report["sampling"], dict)
        assert report["sampling"]["temperature"] == 0.5
        parents = {f"{name:016x}": parent and f"{parent:016x}" for name, parent in seen.table.parents.items()}
        assert report["blocks"] == parents
        assert len(parents) == (len(asked) + len(ids) - 1) // 16


@pytest.mark.parametrize("characters", [1, 3, 400])
async def test_pieces_come_one_a_step_and_never_cut_a_control_token(characters: int) -> None:
    engine = make(scripts=True)
    text = "Ärger <think>été</think>, <tool_call>"
    engine.script({"id": "s", "texts": [text], "pieces": characters, "finish": "length"})
    engine.submit(EngineTurn("a", prompt(("user", "x"))))
    pieces = []
    async for step in engine.steps():
        pieces += [MODEL.decode(pack(delta.tokens)) for delta in step.deltas]
        if step.deltas[-1].finish:
            assert step.deltas[-1].finish == "length"
            break
    assert "".join(pieces) == text
    assert {"<think>", "</think>", "<tool_call>"} <= set(pieces)
    assert max(len(piece) for piece in pieces if not piece.startswith("<")) <= characters


async def test_a_scripted_fault_ends_the_turn_after_its_pieces() -> None:
    engine = make(scripts=True)
    engine.script({"id": "s", "texts": ["abcdefgh"], "pieces": 3, "fault": {"after": 2, "error": "boom"}})
    async with running(engine) as seen:
        key = seen.submit(EngineTurn("a", prompt(("user", "x"))))
        last = await seen.until_end(key)
        assert last.finish == "error"
        assert last.error is not None
        assert last.error.message == "boom"
        assert MODEL.decode(pack(seen.tokens[key])) == "abcdef"


async def test_texts_take_turns_and_a_script_ends_after_its_times() -> None:
    engine = make(scripts=True)
    engine.script({"id": "s", "texts": ["one", "two"], "times": 3})
    turns = [EngineTurn(f"t{number}", prompt(("user", "x"))) for number in range(4)]
    first, second, third, fourth = await answer(engine, *turns)
    assert [first, second, third] == ["one<|im_end|>", "two<|im_end|>", "one<|im_end|>"]
    assert fourth.startswith("<think>")
    assert not engine.unscript("s")


async def test_a_moved_turn_keeps_its_text_in_the_middle_of_a_piece() -> None:
    engine = make(scripts=True)
    engine.script({"id": "s", "texts": ["sea salt and sand", "no"], "pieces": 40})
    turn = EngineTurn("a", prompt(("user", "x")))
    async with running(engine) as seen:
        await seen.until_end(seen.submit(turn))
        ids = seen.tokens[turn.key]
        moved = replace(turn, attempt=1, generated=array("I", ids[:2]))
        await seen.until_end(seen.submit(moved))
        assert ids[:2] + seen.tokens[moved.key] == ids


async def test_a_cancelled_turn_counts_as_one_abort() -> None:
    engine = make(scripts=True)
    async with running(engine) as seen:
        key = seen.submit(EngineTurn("a", prompt(("user", "x")), ignore_eos=True))
        await seen.until_tokens(key, 2)
        engine.cancel(key)
        engine.cancel(key)
        await seen.until_end(key)
        engine.cancel(key)
        assert engine.report()["aborted"] == 1


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"texts": ["a"]}, "script"),
        ({"id": "s", "texts": []}, "texts"),
        ({"id": "s", "texts": ["a"], "pieces": 0}, "pieces"),
        ({"id": "s", "texts": ["a"], "fault": {"after": -1}}, "fault.after"),
        ({"id": "s", "texts": ["a"], "extra": 1}, "script"),
    ],
)
def test_a_wrong_script_is_refused_by_field(spec: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestError) as refused:
        make(scripts=True).script(spec)
    assert refused.value.field == field


def test_no_scripts_unless_asked_for() -> None:
    with pytest.raises(RequestError, match="no scripts"):
        make().script({"id": "s", "texts": ["a"]})


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"blocks": 0}, "sim.blocks"),
        ({"preset": "x"}, "sim.preset"),
        ({"speed": 2}, "sim"),
        ({"time_scale": "1"}, "sim.time_scale"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(options: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestError) as refused:
        SimSettings.read(options)
    assert refused.value.field == field


async def test_the_entry_point_gives_the_simulator() -> None:
    engine = engine_for("sim")(EngineSetup(embedded_path(), options={"blocks": 100_000}))
    info = await engine.start()
    assert (info.model_context, info.hashes, info.events) == (131_072, "sequence", "exact")


def test_an_unknown_engine_is_refused_with_the_known_ones() -> None:
    with pytest.raises(RequestError, match=r"installed: .*sim"):
        engine_for("steam")


@pytest.mark.parametrize(
    ("setup", "field"),
    [
        (EngineSetup(embedded_path(), parser="nobody's"), "parser"),
        (EngineSetup(embedded_path() / "nowhere"), "path"),
        (EngineSetup(embedded_path(), options={"speed": 1}), "sim"),
    ],
)
def test_a_wrong_setup_is_refused_by_field(setup: EngineSetup, field: str) -> None:
    with pytest.raises(RequestError) as refused:
        engine_for("sim")(setup)
    assert refused.value.field == field
