"""The model's own way to write reasoning, text and calls."""

from collections.abc import Callable, Sequence

from catenary_parsers import UnknownFormat, format_named, reasoning_named
from catenary_parsers.render import Call, render_turn
from catenary_protocols.errors import RequestError

Render = Callable[[str, str, Sequence[Call]], str]
"""Reasoning, text and calls as the model writes them; empty parts are left out."""


def render_for(parser: str, reasoning: str) -> Render:
    """How a model of this call format and style of thinking writes. Raises `RequestError` for an unknown one."""
    try:
        format_named(parser)
        if reasoning != "auto":
            reasoning_named(reasoning)
    except UnknownFormat as error:
        raise RequestError(str(error), code="unsupported", field="parser") from error
    return lambda thought, text, calls: render_turn(parser, thought, text, calls, style=reasoning)
