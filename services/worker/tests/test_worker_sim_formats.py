"""What the simulator says in a model's format is what that format's parser reads."""

import asyncio
from array import array
from typing import Any

import pytest
from catenary_parsers import (
    FORMATS,
    Malformed,
    ReasoningDelta,
    TextDelta,
    ToolCallComplete,
    ToolCallCut,
    ToolSpec,
    open_parser,
)
from catenary_tokenizers import embedded_path, load, pack, unpack
from catenary_worker.engines.base import EngineTurn
from catenary_worker.engines.sim.engine import SimEngine
from catenary_worker.engines.sim.settings import SimSettings
from catenary_worker.engines.sim.writing import render_for

MODEL = load(embedded_path())
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "port": {"type": "string"},
        "days": {"type": "integer"},
        "levels": {"type": "array", "items": {"type": "number"}},
        "where": {"type": "object", "properties": {"exact": {"type": "boolean"}}, "required": ["exact"]},
    },
    "required": ["port", "days", "levels", "where"],
}
TOOL = {
    "type": "function",
    "function": {"name": "tide_table", "description": "High and low water.", "parameters": SCHEMA},
}


async def said(parser: str, asked: "array[int]") -> str:
    settings = SimSettings.read({"time_scale": 0})
    engine = SimEngine(MODEL, render_for(parser, "auto"), settings, 4096)
    engine.submit(EngineTurn("a", asked))
    ids = array("I")
    async for step in engine.steps():
        ids.extend(step.deltas[0].tokens)
        if step.deltas[0].finish:
            break
    return MODEL.decode(pack(ids)).removesuffix("<|im_end|>")


@pytest.mark.parametrize("parser", sorted(FORMATS))
def test_a_call_and_what_is_around_it_come_through(parser: str) -> None:
    question = [{"role": "user", "content": "Low water at `Port Ellen` in the next 3 days?"}]
    asked = unpack(MODEL.encode_prompt(MODEL.render(question, [TOOL])))
    text = asyncio.run(said(parser, asked))
    reader = open_parser(parser, tools=[ToolSpec("tide_table", SCHEMA)])
    events = [*reader.feed(text), *reader.close("stop")]
    calls = [(event.name, event.value) for event in events if isinstance(event, ToolCallComplete)]
    wanted = {"port": "Port Ellen", "days": 3, "levels": [1], "where": {"exact": True}}
    assert calls == [("tide_table", wanted)]
    assert not [event for event in events if isinstance(event, Malformed | ToolCallCut)]
    thought = "".join(event.text for event in events if isinstance(event, ReasoningDelta))
    after = "".join(event.text for event in events if isinstance(event, TextDelta))
    assert thought.startswith("The words fit the tool tide_table.")
    assert 40 <= len(unpack(MODEL.encode(after.strip(), special=False))) <= 80
