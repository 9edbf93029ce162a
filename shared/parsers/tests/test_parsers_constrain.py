from __future__ import annotations

from typing import Any

import pytest
from catenary_parsers import (
    FORMATS,
    Call,
    ReasoningDelta,
    ToolCallComplete,
    ToolSpec,
    UnknownTool,
    detect,
    open_parser,
    structural_tag,
)

TOOLS = [
    ToolSpec("tide", {"type": "object", "properties": {"port": {"type": "string"}}}),
    ToolSpec("ping", {"type": "object", "properties": {}}),
]
JSON_ARGUMENTS = [name for name, fmt in FORMATS.items() if fmt.writing.schema_style == "json" and name != "pythonic"]


def _write(node: Any, arguments: str) -> str:
    """The shortest text that a structural tag lets through, with `arguments` in the place of a schema."""
    match node["type"]:
        case "structural_tag":
            return _write(node["format"], arguments)
        case "triggered_tags" | "tags_with_separator":
            return _write(node["tags"][0], arguments)
        case "tag":
            return str(node["begin"]) + _write(node["content"], arguments) + str(node["end"])
        case "sequence":
            return "".join(_write(element, arguments) for element in node["elements"])
        case "const_string":
            return str(node["value"])
        case "regex":
            return "0"
        case "json_schema":
            return arguments
        case other:
            raise AssertionError(other)


@pytest.mark.parametrize("name", JSON_ARGUMENTS)
def test_what_a_grammar_lets_through_is_what_the_parser_reads(name: str) -> None:
    written = _write(structural_tag(name, TOOLS, "tide"), '{"port": "Ayr"}')
    parser = open_parser(name, tools=TOOLS)
    events = parser.feed(written) + parser.close("stop")
    assert [(e.name, e.value) for e in events if isinstance(e, ToolCallComplete)] == [("tide", {"port": "Ayr"})]


@pytest.mark.parametrize("name", sorted(FORMATS))
@pytest.mark.parametrize("choice", ["auto", "required", "ping"])
def test_every_tag_has_one_trigger(name: str, choice: str) -> None:
    node: Any = structural_tag(name, TOOLS, choice)["format"]
    assert node["type"] == "triggered_tags"
    assert node["at_least_one"] == (choice != "auto")
    for tag in node["tags"]:
        assert [trigger for trigger in node["triggers"] if trigger and tag["begin"].startswith(trigger)]
    assert ("tide" in str(node)) == (choice != "ping")


def test_strict_asks_for_the_schema_and_else_for_an_object() -> None:
    assert "port" in str(structural_tag("hermes", TOOLS, "tide", strict=True))
    assert "port" not in str(structural_tag("hermes", TOOLS, "tide", strict=False))


def test_no_calls_means_text_without_markers() -> None:
    assert structural_tag("hermes", TOOLS, "none")["format"] == {"type": "any_text", "excludes": ["<tool_call>"]}


def test_thinking_comes_first_where_the_template_opened_it() -> None:
    node: Any = structural_tag("qwen3_coder", TOOLS, "required", thinking="open")["format"]
    thought, calls = node["elements"]
    assert (thought["begin"], thought["end"]) == ("", "</think>")
    assert calls["type"] == "triggered_tags"
    optional: Any = structural_tag("qwen3_coder", TOOLS, "required", thinking="none")["format"]
    assert optional["elements"][0]["type"] == "optional"


def test_thinking_that_is_a_message_is_followed_by_the_next_messages_beginning() -> None:
    node: Any = structural_tag("harmony", TOOLS, "tide", thinking="none")["format"]
    thought, beginning = node["elements"][0]["content"]["elements"]
    assert (thought["begin"], thought["end"]) == ("<|channel|>analysis<|message|>", "<|end|>")
    written = thought["begin"] + "hm" + thought["end"] + beginning["value"] + _write(node["elements"][1], "{}")
    parser = open_parser("harmony", tools=TOOLS)
    events = parser.feed(written) + parser.close("stop")
    assert events[0] == ReasoningDelta("hm")
    assert isinstance(events[-1], ToolCallComplete)


def test_a_tool_that_is_not_declared_cannot_be_required() -> None:
    with pytest.raises(UnknownTool, match="'dig'") as caught:
        structural_tag("hermes", TOOLS, "dig")
    assert caught.value.name == "dig"


@pytest.mark.parametrize(
    ("template", "tokens", "found"),
    [
        ('<tool_call>\n{"name": <name>, "arguments": <object>}\n</tool_call>', (), ("hermes", "none")),
        ('<tool_call>{"name": 1, "arguments": 2} <think>', (), ("hermes", "basic")),
        ("<tool_call>\n<function=f>\n<parameter=p>", ("<think>",), ("qwen3_coder", "basic")),
        ("<tool_call>f\n<arg_key>k</arg_key><arg_value>v</arg_value></think>", (), ("glm45", "basic")),
        ("{{ x }}", ("<|python_tag|>",), ("llama3_json", "none")),
        ("<|channel|>analysis<|message|>", (), ("harmony", "gpt_oss")),
        ("<｜tool▁calls▁begin｜> ```json <think>", (), ("deepseek_v3", "deepseek_r1")),
        ("<|tool_calls_section_begin|>", (), ("kimi_k2", "none")),
        ("{{ x }}<think>", (), ("default", "basic")),
        ("{{ x }}", (), None),
    ],
)
def test_a_template_tells_format_and_style(
    template: str, tokens: tuple[str, ...], found: tuple[str, str] | None
) -> None:
    assert detect(template, tokens) == found


@pytest.mark.parametrize("name", [name for name, fmt in FORMATS.items() if fmt.signs])
def test_the_signs_of_a_format_name_it(name: str) -> None:
    found = detect(" ".join(FORMATS[name].signs))
    assert found
    assert found[0] == name


def test_calls_can_be_written_in_every_format() -> None:
    from catenary_parsers import render_call

    assert all("tide" in render_call(name, Call("tide", {"port": "Ayr"})) for name in FORMATS)
