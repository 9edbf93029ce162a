"""The body syntax in which a call is a JSON object."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from catenary_parsers.lexer import Source, skip_space
from catenary_parsers.strings import escaped, read_string
from catenary_parsers.values import scan_value

if TYPE_CHECKING:
    from collections.abc import Callable

    from catenary_parsers.lexer import Steps
    from catenary_parsers.sink import Sink


@dataclass(frozen=True, slots=True)
class JsonCalls:
    """`{"name": …, "arguments": {…}}`: one object, several in a row, or a list of them."""

    name_keys: tuple[str, ...] = ("name",)
    arguments_keys: tuple[str, ...] = ("arguments", "parameters")
    id_keys: tuple[str, ...] = ("id",)

    def starts(self, src: Source) -> Steps[bool]:
        """Whether a call stands here."""
        return (yield from skip_space(src)) in ("{", "[")

    def read(self, src: Source, sink: Sink) -> Steps[str]:
        """Read calls as long as they follow each other; return why the first or a begun one is none, or nothing."""
        following = yield from skip_space(src)
        listed = following == "["
        if listed:
            src.pos += 1
            following = yield from skip_space(src)
        if following != "{":
            return "no JSON object"
        while following == "{":
            src.pos += 1
            reason = yield from self._read_object(src, sink)
            if reason:
                return reason
            following = yield from skip_space(src)
            while following and following in "]}":
                src.pos += 1
                following = yield from skip_space(src)
            if following and following in ",;":
                separator = following
                src.pos += 1
                following = yield from skip_space(src)
                if following != "{" and not listed:
                    sink.text(separator)
        return ""

    def _read_object(self, src: Source, sink: Sink) -> Steps[str]:  # noqa: C901, PLR0911, PLR0912 - a key is a branch
        name, call_id = "", ""
        held: list[str] = []
        done = False
        while True:
            char = yield from skip_space(src)
            if char == ",":
                src.pos += 1
                char = yield from skip_space(src)
            if char != '"':
                break
            src.pos += 1
            key = yield from read_string(src)
            if key is None or (yield from skip_space(src)) != ":":
                return "a key without a value"
            src.pos += 1
            char = yield from skip_space(src)
            if char == '"' and key in (*self.name_keys, *self.id_keys):
                src.pos += 1
                text = yield from read_string(src)
                if text is None:
                    return "the text ends in a string"
                if key in self.id_keys:
                    call_id = text
                elif not name:
                    name = text
                    sink.begin(name, call_id)
                    for piece in held:
                        sink.arguments(piece)
            elif key in self.arguments_keys and not done:
                out = sink.arguments if name else held.append
                reason = yield from _read_arguments(src, out)
                if reason:
                    return reason
                done = True
            else:
                reason = yield from scan_value(src, _nowhere)
                if reason:
                    return reason
        if not name:
            return "no name"
        if char == "}":
            src.pos += 1
        elif not done:
            return "the object is not closed"
        sink.complete()
        return ""


def _nowhere(_: str) -> None:
    """For values that nobody asked for."""


def _read_arguments(src: Source, out: Callable[[str], None]) -> Steps[str]:
    """Read arguments as an object, as nothing, or as a string that holds an object (P9, P10)."""
    char = yield from skip_space(src)
    if char == '"':
        src.pos += 1
        text = yield from read_string(src)
        if text is None:
            return "the text ends in a string"
        out(_object_in(text) or f'"{escaped(text)}"')
        return ""
    if char == "{":
        return (yield from scan_value(src, out))
    pieces: list[str] = []
    reason = yield from scan_value(src, pieces.append)
    value = "".join(pieces)
    out("{}" if value == "null" else value)
    return reason


def _object_in(text: str) -> str:
    """The JSON object that `text` is, or an empty string."""
    if not text.strip():
        return "{}"
    inner = Source()
    inner.push(text.strip())
    inner.end(natural=True)
    pieces: list[str] = []
    if not inner.buf.startswith("{"):
        return ""
    try:
        next(scan_value(inner, pieces.append))
    except StopIteration as done:
        if not done.value and inner.pos == len(inner.buf):
            return "".join(pieces)
    return ""
