"""Writes a page per format from the format's data: `python -m catenary_parsers.docs DIRECTORY`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from catenary_parsers.calls import HeaderCalls, JsonCalls, PythonCalls
from catenary_parsers.registry import FORMATS, REASONING, reasoning_named
from catenary_parsers.render import Call, render_turn
from catenary_parsers.tags import TagCalls

if TYPE_CHECKING:
    from catenary_parsers.grammar import Body, Format

_EXAMPLE = (Call("lookup_tide", {"port": "Leith", "day": 3}), Call("ping_relay", {}))


_POLICIES = (
    "A call to a tool that was not declared is a call.",
    "Output cut by the token limit is never repaired: a call that is not whole ends as `ToolCallCut`.",
    "A call whose end marker is missing is a call if the model stopped by itself and the call's body is whole.",
    "A call inside thinking is text if thinking ends later, else a call; a marker that is a control token ends it.",
    "Closing markers without a call are dropped, and so is white space around calls.",
    "Types follow the tool's JSON Schema; what does not convert stays a string, and a string is never converted.",
    "In formats without escaping a closing tag counts only if what follows it fits the grammar.",
    "In formats made of messages the recipient makes a call, not the channel.",
    "No arguments are an empty object.",
    "Arguments given as a string that holds a JSON object become that object.",
)


@dataclass(frozen=True, slots=True)
class Row:
    """A line of a grammar table."""

    what: str
    how: str


def pages() -> dict[str, str]:
    """File name to text, the index included."""
    made = {f"{name}.md": page(fmt) for name, fmt in FORMATS.items()}
    made["index.md"] = index()
    return made


def index() -> str:
    """The page that lists formats and styles of thinking."""
    lines = ["# Formats of model output", "", "| format | also named | models |", "| --- | --- | --- |"]
    lines += [
        f"| [{name}]({name}.md) | {', '.join(fmt.aliases)} | {', '.join(fmt.models)} |" for name, fmt in FORMATS.items()
    ]
    lines += ["", "## Styles of thinking", "", "| style | also named | opens | closes | opened by the template |"]
    lines.append("| --- | --- | --- | --- | --- |")
    lines += [
        f"| {name} | {', '.join(style.aliases)} | {_literals(style.open)} | {_literals(style.close)} "
        f"| {'yes' if style.forced else ''} |"
        for name, style in REASONING.items()
    ]
    lines += ["", "## Policies", "", "What holds where public systems disagree.", ""]
    lines += [f"- **P{number}** {policy}" for number, policy in enumerate(_POLICIES, 1)]
    return "\n".join(lines) + "\n"


def page(fmt: Format) -> str:
    """A format's page."""
    aliases = f", also named {', '.join(fmt.aliases)}" if fmt.aliases else ""
    lines = [f"# {fmt.name}", "", f"Written by {', '.join(fmt.models)}{aliases}.", "", "## Grammar", ""]
    lines += ["| part | form |", "| --- | --- |"]
    lines += [f"| {row.what} | {row.how} |" for row in rows(fmt) if row.how]
    lines += ["", "## Example", "", "```text", _example(fmt), "```", ""]
    lines += ["## When a call is certain", "", *(f"- {line}" for line in certain(fmt))]
    return "\n".join(lines) + "\n"


def rows(fmt: Format) -> list[Row]:
    """The grammar table."""
    style = reasoning_named(fmt.reasoning)
    made = [
        Row("begins a block of calls", _literals(fmt.open)),
        Row("ends it", _literals(fmt.close)),
        Row("may begin one, if a call follows", _literals(fmt.implicit)),
        Row("means nothing", _literals(fmt.drops)),
    ]
    if fmt.messages:
        made += [
            Row("begins a message's header", _literals((*fmt.messages.start, *fmt.messages.bare_start))),
            Row("ends the header", _literals(fmt.messages.body)),
            Row("ends the message", _literals(fmt.messages.end)),
            *(Row(f"header that leads to {route.to}", _code(route.header.pattern)) for route in fmt.messages.routes),
        ]
    for body in fmt.bodies:
        made += _body(body)
    made += [
        Row("thinking opens", _literals(style.open)),
        Row("thinking closes", _literals(style.close)),
        Row("a call inside thinking", "ends it" if fmt.ends_thinking else "is a draft until thinking ends (P4)"),
        Row("single control tokens", _literals(tuple(dict.fromkeys((*fmt.markers, *style.markers))))),
    ]
    return made


def _body(body: Body) -> list[Row]:
    match body:
        case JsonCalls():
            return [
                Row("a call", "a JSON object, several, or a list of them"),
                Row("its name", _literals(body.name_keys)),
                Row("its arguments", _literals(body.arguments_keys)),
            ]
        case HeaderCalls():
            return [
                Row("a call", f"name, then arguments in {body.dialect.name}"),
                Row("begins a call", _literals(body.opens)),
                Row("may stand before the name", _literals(body.lead)),
                Row("between name and id", _literals(body.id_separators)),
                Row("between name and arguments", _literals(body.separators)),
                Row("ends a call", _literals(body.close)),
            ]
        case PythonCalls():
            return [Row("a call", "a Python call with keyword arguments, in a list; never evaluated")]
        case TagCalls():
            return [
                Row("a call", _literals((f"{body.call.open}…{body.call.end}",)) if body.call.open else "a bare name"),
                Row("ends a call", _literals(body.call_close)),
                Row("a parameter", _literals((f"{body.param.open}…{body.param.end}",))),
                Row("before its value", _literals(body.value_open)),
                Row("ends its value", _literals(body.param_close)),
                Row(
                    "a newline on each side of a value", "belongs to the tags" if body.trim else "belongs to the value"
                ),
            ]
        case _:
            return []


def certain(fmt: Format) -> list[str]:
    """When a call of the format is certain, and which policies need later text."""
    made: list[str] = []
    for body in fmt.bodies:
        match body:
            case TagCalls() if body.call_close:
                made += [
                    "At its end tag; in a block, at what follows that: the block's end or another call (P7).",
                    "At the end of the output, if no value is open and no required parameter is missing (P3).",
                ]
            case TagCalls():
                made += [
                    "At its end tag, if that follows a value's end (P7).",
                    "At the end of the output, if no value is open and no required parameter is missing (P3).",
                ]
            case PythonCalls():
                made.append("At its closing parenthesis.")
            case _:
                made.append("At the closing brace of its JSON object; end markers are not waited for.")
    if fmt.messages and not fmt.bodies:
        made.append("At the closing brace of its arguments; end markers are not waited for.")
    if not fmt.ends_thinking:
        made.append("Inside thinking that never ends: at the end of the output, and marked so (P4).")
    return list(dict.fromkeys(made))


def _example(fmt: Format) -> str:
    return render_turn(fmt.name, "They ask for tides." if reasoning_named(fmt.reasoning).writing else "", "", _EXAMPLE)


def _literals(literals: tuple[str, ...]) -> str:
    return ", ".join(_code(literal.replace("\n", "⏎")) for literal in literals)


def _code(text: str) -> str:
    return f"`{text}`".replace("|", "\\|") if text else "any other"


def main() -> None:
    """Write the pages into the directory that is the first argument."""
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (directory / name).write_text(text)


if __name__ == "__main__":
    main()
