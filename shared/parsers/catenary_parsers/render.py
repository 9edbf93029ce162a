"""The inverse of the parser: a turn as a format's models write it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from catenary_parsers.registry import format_named, reasoning_named
from catenary_parsers.schema import type_of
from catenary_parsers.values import JSON, PYTHON

if TYPE_CHECKING:
    from catenary_parsers.engine import Thinking
    from catenary_parsers.events import Json
    from catenary_parsers.grammar import Format, Reasoning
    from catenary_parsers.values import Dialect

_PLACEHOLDER = re.compile(r"\{([a-z]+)\}")


@dataclass(frozen=True, slots=True)
class Call:
    """A call to write: the tool's name and its arguments."""

    name: str
    arguments: Mapping[str, Json]


def render_call(format: str, call: Call, number: int = 0) -> str:  # noqa: A002 - as in open_parser
    """One call as the format's models write it, with the markers of its block; `number` counts the turn's calls from 0.

    Raises:
        UnknownFormat: there is no such format.
    """
    fmt = format_named(format)
    return fill(fmt.writing.block, calls=_call(fmt, call, number))


def render_turn(
    format: str,  # noqa: A002 - as in open_parser
    reasoning: str = "",
    text: str = "",
    calls: Sequence[Call] = (),
    *,
    style: str = "auto",
    thinking: Thinking = "none",
) -> str:
    """A turn as the format's models write it: thinking, text, calls.

    Args:
        format: a format's name or alias.
        reasoning: the thinking, or nothing.
        text: the answer, or nothing.
        calls: the calls.
        style: a style of thinking; `auto` is the format's own.
        thinking: what the prompt's template left behind; with `open` the opening marker is not written again.

    Raises:
        UnknownFormat: there is no such format or style of thinking.
    """
    fmt = format_named(format)
    kind = reasoning_named(fmt.reasoning if style == "auto" else style)
    written = [_thinking(kind, reasoning, thinking)] if reasoning or thinking == "open" else []
    if text:
        written.append(fill(fmt.writing.text, text=text))
    if calls:
        each = [_call(fmt, call, number) for number, call in enumerate(calls)]
        written.append(fill(fmt.writing.block, calls=fmt.writing.between.join(each)))
    return "".join(written)


def _thinking(kind: Reasoning, reasoning: str, thinking: Thinking) -> str:
    written = fill(kind.writing, text=reasoning)
    if thinking == "open":
        for marker in kind.open:
            written = written.removeprefix(marker)
    return written


def _call(fmt: Format, call: Call, number: int) -> str:
    writing = fmt.writing
    parameters = [
        fill(
            writing.parameter,
            key=key,
            value=value if isinstance(value, str) else written(value),
            string=json.dumps(isinstance(value, str)),
            type=type_of(value),
        )
        for key, value in call.arguments.items()
        if writing.parameter
    ]
    return fill(
        writing.call,
        name=call.name,
        number=str(number),
        count=str(number + 1),
        arguments=_arguments(call.arguments, writing.dialect),
        parameters="".join(parameters),
    )


def _arguments(arguments: Mapping[str, Json], dialect: Dialect) -> str:
    if dialect is PYTHON:
        return ", ".join(f"{key}={written(value, dialect)}" for key, value in arguments.items())
    return written(dict(arguments), dialect)


def written(value: Json, dialect: Dialect = JSON) -> str:
    """A value in a dialect."""
    if dialect is JSON:
        return json.dumps(value, ensure_ascii=False)
    if dialect is PYTHON:
        return repr(value)
    match value:
        case str():
            return f"{dialect.quote}{value}{dialect.quote}"
        case dict():
            return "{" + ",".join(f"{key}:{written(item, dialect)}" for key, item in value.items()) + "}"
        case list():
            return "[" + ",".join(written(item, dialect) for item in value) + "]"
        case _:
            return json.dumps(value)


def fill(template: str, **values: str) -> str:
    """`template` with its placeholders filled; other braces are text."""
    return _PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), template)
