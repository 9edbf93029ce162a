from __future__ import annotations

from importlib.metadata import EntryPoint
from inspect import ismodule
from pathlib import Path
from typing import TYPE_CHECKING

import catenary_parsers
import pytest
from catenary_parsers import (
    FORMATS,
    ArgumentsDelta,
    Malformed,
    Reasoning,
    ReasoningDelta,
    TextDelta,
    ToolCallBegun,
    ToolCallComplete,
    ToolCallCut,
    ToolSpec,
    UnknownFormat,
    format_named,
    markers_of,
    open_parser,
    reasoning_named,
    registry,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

TIDE = ToolSpec("tide", {"type": "object", "properties": {"port": {"type": "string"}, "day": {"type": "integer"}}})


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


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_a_whole_call_is_complete_in_the_feed_that_ends_it(name: str) -> None:
    """Nothing that the block's end marker does not bring has to come before the call is out."""
    written = catenary_parsers.render_turn(name, calls=[catenary_parsers.Call("tide", {"port": "Ayr", "day": 3})])
    parser = open_parser(name, tools=[TIDE])
    events = [event for char in written for event in parser.feed(char)]
    assert isinstance(events[-1], ToolCallComplete)
    assert events[-1].value == {"port": "Ayr", "day": 3}
    assert not events[-1].decided_at_close
    assert parser.close("stop") == []


def test_a_control_token_is_a_marker_and_its_text_is_not() -> None:
    parser = open_parser("hermes", special={"<tool_call>", "</tool_call>"})
    assert parser.feed("write <tool_call> so") == [TextDelta("write <tool_call> so")]
    assert parser.special(7, "<tool_call>") == []
    assert [type(event) for event in parser.feed('{"name": "f"}')] == [ToolCallBegun, ArgumentsDelta, ToolCallComplete]


def test_a_marker_that_special_does_not_name_is_one_whichever_way_it_comes() -> None:
    parser = open_parser("hermes")
    parser.special(7, "<tool_call>")
    assert [type(event) for event in parser.feed('{"name": "f"}')] == [ToolCallBegun, ArgumentsDelta, ToolCallComplete]


def test_a_control_token_inside_a_string_is_data() -> None:
    parser = open_parser("hermes", special=markers_of("hermes"))
    parser.special(7, "<tool_call>")
    events = parser.feed('{"name": "f", "arguments": {"doc": "a ')
    events += parser.special(8, "</tool_call>")
    events += parser.feed(' b"}}')
    (complete,) = [event for event in events if isinstance(event, ToolCallComplete)]
    assert complete.value == {"doc": "a </tool_call> b"}


def test_a_control_token_that_is_no_marker_is_dropped_and_joins_nothing() -> None:
    parser = open_parser("hermes")
    assert parser.feed("a <tool") == [TextDelta("a")]
    events = parser.special(2, "<|im_end|>") + parser.feed("_call> b") + parser.close("stop")
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == " <tool_call> b"


def test_text_that_holds_surrogates_comes_out_whole() -> None:
    parser = open_parser("hermes")
    (delta,) = parser.feed("a \ud83c z")
    assert delta == TextDelta("a \ufffd z")


def test_a_draft_that_thinking_never_ends_is_a_call_marked_as_decided_at_close() -> None:
    parser = open_parser("hermes", thinking="open")
    assert parser.feed('Hm <tool_call>{"name": "f", "arguments": {}}</tool_call>') == [ReasoningDelta("Hm")]
    assert ToolCallComplete(0, "", "f", "{}", {}, decided_at_close=True) in parser.close("stop")


def test_thinking_is_not_held_by_a_marker_that_no_call_follows() -> None:
    parser = open_parser("hermes", thinking="open")
    assert parser.feed("I write <tool_call>") == [ReasoningDelta("I write")]
    assert parser.feed(" no") == [ReasoningDelta(" <tool_call> no")]


def test_a_style_without_an_end_is_text_even_if_the_template_opened_thinking() -> None:
    parser = open_parser("hermes", reasoning="none", thinking="open")
    assert parser.feed("All of it.") == [TextDelta("All of it.")]


def test_what_does_not_convert_stays_a_string_and_says_so() -> None:
    parser = open_parser("glm45", tools=[TIDE])
    events = parser.feed("<tool_call>tide\n<arg_key>day</arg_key><arg_value>soon</arg_value></tool_call>")
    assert events[-1] == ToolCallComplete(0, "", "tide", '{"day": "soon"}', {"day": "soon"}, unconverted=("day",))


def test_a_call_that_breaks_is_cut_and_its_text_kept() -> None:
    parser = open_parser("hermes")
    events = parser.feed('<tool_call>{"name": "f", "arguments": {"a": }}</tool_call>')
    assert ToolCallCut(0, '{"a": ') in events
    (malformed,) = [event for event in events if isinstance(event, Malformed)]
    assert malformed.raw == '{"name": "f", "arguments": {"a": '
    assert "}" in malformed.reason


def test_nothing_is_read_after_close() -> None:
    parser = open_parser("hermes")
    parser.close("stop")
    with pytest.raises(ValueError, match="feed after close"):
        parser.feed("x")
    with pytest.raises(ValueError, match="special after close"):
        parser.special(1, "x")
    with pytest.raises(ValueError, match="close after close"):
        parser.close("stop")


def test_an_unknown_name_says_what_is_known() -> None:
    with pytest.raises(UnknownFormat, match="hermes") as caught:
        open_parser("hermez")
    assert caught.value.name == "hermez"
    assert "qwen25" in caught.value.known
    with pytest.raises(UnknownFormat, match="style of thinking"):
        open_parser("hermes", reasoning="loud")


def test_every_alias_is_the_format_it_names() -> None:
    for fmt in FORMATS.values():
        assert all(format_named(alias) is fmt for alias in fmt.aliases)
        assert reasoning_named(fmt.reasoning)


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[EntryPoint]]:
    entries: list[EntryPoint] = []
    caches = (registry._added, registry._formats, registry._styles)
    monkeypatch.setattr(registry, "entry_points", lambda group: entries if group == registry.GROUP else [])
    for cached in caches:
        cached.cache_clear()
    yield entries
    for cached in caches:
        cached.cache_clear()


def test_another_distribution_adds_a_format(added: list[EntryPoint]) -> None:
    added.append(EntryPoint("mine", "catenary_parsers.formats.glm:GLM45", registry.GROUP))
    added.append(EntryPoint("loud", "catenary_parsers.formats.thinking:STYLES", registry.GROUP))
    assert format_named("glm45").name == "glm45"
    assert isinstance(reasoning_named("kimi"), Reasoning)


def test_an_entry_point_that_names_no_format_is_an_error(added: list[EntryPoint]) -> None:
    added.append(EntryPoint("wrong", "json:dumps", registry.GROUP))
    with pytest.raises(TypeError, match="'wrong'"):
        format_named("hermes")


def test_the_public_face_is_what_all_says() -> None:
    public = {
        name for name, value in vars(catenary_parsers).items() if not name.startswith("_") and not ismodule(value)
    }
    assert public - {"annotations"} == set(catenary_parsers.__all__)


def test_files_are_as_short_as_they_should_be() -> None:
    package = Path(catenary_parsers.__file__).parent
    lengths = {path.relative_to(package): len(path.read_text().splitlines()) for path in package.rglob("*.py")}
    too_long = {
        str(path): length for path, length in lengths.items() if length > (120 if path.parts[0] == "formats" else 400)
    }
    assert not too_long
