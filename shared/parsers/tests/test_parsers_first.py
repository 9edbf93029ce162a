from __future__ import annotations

from catenary_parsers import (
    ArgumentsDelta,
    ReasoningDelta,
    TextDelta,
    ToolCallBegun,
    ToolCallComplete,
    open_parser,
)


def test_a_turn_streams_as_reasoning_text_and_call() -> None:
    parser = open_parser("hermes")
    assert parser.feed("<think>Look it up.</thi") == [ReasoningDelta("Look it up.")]
    assert parser.feed("nk>\n\nOne moment.\n<tool") == [TextDelta("One moment.")]
    assert parser.feed('_call>{"name": "tide", "arguments": {"port": "Ay') == [
        ToolCallBegun(0, "", "tide"),
        ArgumentsDelta(0, '{"port": "Ay'),
    ]
    assert parser.feed('r"}}') == [
        ArgumentsDelta(0, 'r"}'),
        ToolCallComplete(0, "", "tide", '{"port": "Ayr"}', {"port": "Ayr"}),
    ]
    assert parser.feed("\n</tool_call>") == []
    assert parser.close("stop") == []


def test_a_marker_that_is_a_token_is_not_recognised_in_text() -> None:
    parser = open_parser("hermes", special={"<tool_call>", "</tool_call>"})
    assert parser.feed("write <tool_call> so") == [TextDelta("write <tool_call> so")]
    assert parser.special(7, "<tool_call>") == []
    events = parser.feed('{"name": "f"}')
    assert [type(event) for event in events] == [ToolCallBegun, ArgumentsDelta, ToolCallComplete]
