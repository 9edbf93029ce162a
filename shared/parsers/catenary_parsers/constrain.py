"""Grammars for engines that constrain decoding: what a model may write, in the structural tags of xgrammar.

They are made of the same templates by which calls are rendered, so that what an engine lets through is what the parser
reads.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeAlias

from catenary_parsers.registry import format_named, reasoning_named
from catenary_parsers.render import fill
from catenary_parsers.values import PYTHON

if TYPE_CHECKING:
    from collections.abc import Sequence

    from catenary_parsers.engine import Thinking
    from catenary_parsers.grammar import Format, Reasoning, ToolSpec

Node: TypeAlias = dict[str, object]
ToolChoice: TypeAlias = str
"""`auto`, `required` or `none`: whether the model may, must or must not call; any other text names the tool to call."""

_HOLES = re.compile(r"(\{(?:number|count|arguments|parameters)\})")
_PROMPT_END = "<|start|>assistant"
"""What templates of message formats have written already when the model begins."""


class UnknownTool(LookupError):  # noqa: N818 - it names what is wrong, as LookupError does
    """The tool that must be called is not among the declared ones.

    Attributes:
        name: the tool asked for.
    """

    def __init__(self, name: str) -> None:
        self.name: str = name
        super().__init__(f"tool_choice names {name!r}, which is not declared")


def structural_tag(
    format: str,  # noqa: A002 - as in open_parser
    tools: Sequence[ToolSpec],
    tool_choice: ToolChoice = "auto",
    strict: bool = True,
    *,
    parallel: bool = True,
    reasoning: str = "auto",
    thinking: Thinking = "closed",
) -> Node:
    """What a model may write, as a structural tag of xgrammar.

    Args:
        format: a format's name or alias.
        tools: the declared tools.
        tool_choice: whether the model may, must or must not call, or the name of the tool it must call.
        strict: whether arguments must fit the tools' schemas, or only be an object.
        parallel: whether there may be more than one call.
        reasoning: a style of thinking; `auto` is the format's own.
        thinking: what the prompt's template left behind: with `open` thinking comes first and must end, with `none`
            it may come first, with `closed` it may not.

    Raises:
        UnknownFormat: there is no such format or style of thinking.
        UnknownTool: `tool_choice` names a tool that is not declared.
    """
    fmt = format_named(format)
    if tool_choice not in {"auto", "required", "none"}:
        tools = [tool for tool in tools if tool.name == tool_choice]
        if not tools:
            raise UnknownTool(tool_choice)
        parallel = False
    node = _text(fmt) if tool_choice == "none" or not tools else _calls(fmt, tools, tool_choice, strict, parallel)
    style = reasoning_named(fmt.reasoning if reasoning == "auto" else reasoning)
    if style.writing and thinking != "closed":
        thought = _thought(style, opened=thinking == "open")
        first = thought if thinking == "open" else {"type": "optional", "content": thought}
        node = {"type": "sequence", "elements": [first, node]}
    return {"type": "structural_tag", "format": node}


def _thought(style: Reasoning, *, opened: bool) -> Node:
    """Thinking up to its end; where it is a message, also the beginning of the next."""
    begin, _, end = style.writing.partition("{text}")
    tag = _tag("" if opened else begin.removeprefix(_PROMPT_END).rstrip(), {"type": "any_text"}, end.strip())
    if not begin.startswith(_PROMPT_END):
        return tag
    return {"type": "sequence", "elements": [tag, {"type": "const_string", "value": _PROMPT_END}]}


def _text(fmt: Format) -> Node:
    openers = [*fmt.open, *(literal for body in fmt.bodies for literal in body.opens)]
    return {"type": "any_text", "excludes": list(dict.fromkeys(openers))}


def _calls(fmt: Format, tools: Sequence[ToolSpec], choice: str, strict: bool, parallel: bool) -> Node:
    writing = fmt.writing
    tags = [_call(fmt, tool, strict) for tool in tools]
    before, _, behind = writing.block.partition("{calls}")
    trigger = before or writing.call.partition("{name}")[0].removeprefix(_PROMPT_END)
    if before:
        inner: Node = {
            "type": "tags_with_separator",
            "tags": tags,
            "separator": writing.between,
            "at_least_one": True,
            "stop_after_first": not parallel,
        }
        tags = [_tag(before, inner, behind)]
    return {
        "type": "triggered_tags",
        "triggers": [trigger.rstrip()],
        "tags": tags,
        "at_least_one": choice != "auto",
        "stop_after_first": bool(before) or not parallel,
    }


def _call(fmt: Format, tool: ToolSpec, strict: bool) -> Node:
    """A call as a tag: all up to the first hole, the holes and what lies between, all behind the last."""
    begin, *parts = _HOLES.split(fill(fmt.writing.call, name=tool.name).removeprefix(_PROMPT_END))
    if not parts:
        return _tag(begin, {"type": "const_string", "value": ""}, "")
    *middle, end = parts
    elements = [_part(part, fmt, tool, strict) for part in middle if part]
    return _tag(begin, elements[0] if len(elements) == 1 else {"type": "sequence", "elements": elements}, end)


def _part(part: str, fmt: Format, tool: ToolSpec, strict: bool) -> Node:
    if part in {"{number}", "{count}"}:
        return {"type": "regex", "pattern": "[0-9]+"}
    if part not in {"{arguments}", "{parameters}"}:
        return {"type": "const_string", "value": part}
    if fmt.writing.dialect is PYTHON:
        return {"type": "any_text"}  # grammar compilers know no Python calls
    schema = dict(tool.parameters) if strict else {"type": "object"}
    return {"type": "json_schema", "json_schema": schema, "style": fmt.writing.schema_style}


def _tag(begin: str, content: Node, end: str) -> Node:
    return {"type": "tag", "begin": begin, "content": content, "end": end}
