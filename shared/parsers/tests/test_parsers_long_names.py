"""Names without end, of the model's making or of a caller's: no call, or no help in reading one, and never an error."""

from __future__ import annotations

import json

import pytest
from catenary_parsers import Malformed, ToolCallComplete, ToolSpec, open_parser
from catenary_parsers.tags import LONGEST_KEY

MARK = "]<]minimax[>["
LENGTHS = [LONGEST_KEY - 1, LONGEST_KEY, LONGEST_KEY + 1, 600, 5000]


@pytest.mark.parametrize("length", LENGTHS)
def test_a_parameter_whose_tag_ends_in_its_name(length: int) -> None:
    name = "n" * length
    call = f'{MARK}<invoke name="f">{MARK}<{name}>x{MARK}</{name}>{MARK}</invoke>'
    text = f"{MARK}<tool_call>\n{call}\n{MARK}</tool_call>"
    parser = open_parser("minimax_m3", tools=[ToolSpec("f", {"type": "object"})])
    events = [*parser.feed(text), *parser.close("stop")]
    if length <= LONGEST_KEY:
        (complete,) = [event for event in events if isinstance(event, ToolCallComplete)]
        assert complete.arguments == f'{{"{name}": "x"}}'
    else:
        (malformed,) = [event for event in events if isinstance(event, Malformed)]
        assert "longer than" in malformed.reason
        assert name in malformed.raw


@pytest.mark.parametrize("length", LENGTHS)
def test_a_closing_tag_that_was_forgotten_before_a_declared_parameter(length: int) -> None:
    name = "n" * length
    schema = {"type": "object", "properties": {"a": {"type": "string"}, name: {"type": "string"}}}
    text = (
        f"<tool_call>\n<function=f>\n<parameter=a>\nx\n<parameter={name}>\ny\n</parameter>\n</function>\n</tool_call>"
    )
    parser = open_parser("qwen3_coder", tools=[ToolSpec("f", schema)])
    events = [*parser.feed(text), *parser.close("stop")]
    (call,) = [event for event in events if isinstance(event, ToolCallComplete)]
    assert list(json.loads(call.arguments)) == (["a", name] if length <= LONGEST_KEY else ["a"])
