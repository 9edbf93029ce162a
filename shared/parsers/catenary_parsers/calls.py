"""Body syntaxes whose arguments are one literal: JSON objects, JSON behind a header, Python calls."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from catenary_parsers.lexer import Source, accept, literals, skip_space, until
from catenary_parsers.strings import escaped, read_string
from catenary_parsers.values import JSON, PYTHON, Dialect, json_of, scan_value

if TYPE_CHECKING:
    from catenary_parsers.grammar import Scope
    from catenary_parsers.lexer import Steps
    from catenary_parsers.sink import Sink

_FENCES = ("```json", "```")
_SPACES = (" ", "\t", "\r", "\n")


@dataclass(frozen=True, slots=True)
class JsonCalls:
    """`{"name": …, "arguments": {…}}`: one object, several in a row, or a list of them."""

    name_keys: tuple[str, ...] = ("name",)
    arguments_keys: tuple[str, ...] = ("arguments", "parameters")
    id_keys: tuple[str, ...] = ("id",)
    opens: tuple[str, ...] = ()
    strays: tuple[str, ...] = ()

    def starts(self, src: Source, scope: Scope) -> Steps[bool]:
        """A list or an object stands here, perhaps behind a fence."""
        if (yield from skip_space(src)) == "`" and scope.first:
            yield from accept(src, literals(*_FENCES))
        return (yield from skip_space(src)) in ("{", "[")

    def read(self, src: Source, sink: Sink, scope: Scope) -> Steps[str]:
        """Read calls as long as they follow each other."""
        following = yield from skip_space(src)
        listed = following == "["
        if listed:
            src.pos += 1
            following = yield from skip_space(src)
        if listed and following == "]" and not scope.implicit:
            src.pos += 1
            return ""
        if following != "{":
            return "no JSON object"
        while following == "{":
            src.pos += 1
            reason = yield from self._read_object(src, sink, scope)
            if reason:
                return reason
            following = yield from skip_space(src)
            while following and following in "]}":
                src.pos += 1
                listed = listed and following != "]"
                following = yield from skip_space(src)
            if following and following in ",;":
                separator = following
                src.pos += 1
                following = yield from skip_space(src)
                if following != "{" and not listed:
                    sink.text(separator)
        if following == "`":
            yield from accept(src, literals("```"))
        return ""

    def _read_object(  # noqa: C901, PLR0912 - a key is a branch
        self, src: Source, sink: Sink, scope: Scope
    ) -> Steps[str]:
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
                elif text and not name:
                    name = text
                    sink.begin(name, call_id)
                    for piece in held:
                        sink.arguments(piece)
            elif key in self.arguments_keys and not done:
                reason = yield from read_arguments(src, sink.arguments if name else held.append)
                if reason:
                    return reason
                done = True
            elif scope.implicit and key != "type" and name not in scope.tools:
                return "a JSON object that is no call"
            else:
                reason = yield from scan_value(src, _nowhere)
                if reason:
                    return reason
        if not name:
            return "no name"
        if char == "}":
            src.pos += 1
        elif not done or (src.ended and not src.natural):
            return "the object is not closed"
        if not done and scope.implicit and name not in scope.tools:
            return "a JSON object that is no call"
        scope.complete(src, sink)
        return ""


@dataclass(frozen=True, slots=True)
class HeaderCalls:
    """A name, and perhaps an id, before the arguments: `functions.f:0<|tool_call_argument_begin|>{…}`."""

    opens: tuple[str, ...] = ()
    """Markers that begin a call."""
    close: tuple[str, ...] = ()
    """Markers that end it."""
    lead: tuple[str, ...] = ()
    """What may stand before the name."""
    separators: tuple[str, ...] = ()
    """Markers between name and arguments."""
    id_separators: tuple[str, ...] = ()
    """Markers between name and id."""
    header: re.Pattern[str] = re.compile(r"(?P<name>[^<>{}\[\]|\"']+)")
    """What the header says: the call's name, and in group `id` that all of it is the call's id."""
    dialect: Dialect = JSON
    fences: tuple[str, ...] = _FENCES

    @property
    def strays(self) -> tuple[str, ...]:
        """Its other markers."""
        quotes = (self.dialect.quote,) if self.dialect.quote else ()
        return (*self.close, *self.separators, *self.id_separators, *quotes)

    def starts(self, src: Source, scope: Scope) -> Steps[bool]:
        """The call's marker stands here; or, where it has none, anything at all."""
        if not self.opens:
            return scope.first
        found = yield from accept(src, literals(*self.opens))
        src.unread(found)
        return bool(found)

    def read(self, src: Source, sink: Sink, scope: Scope) -> Steps[str]:
        """Read one call."""
        yield from accept(src, literals(*self.opens))
        yield from skip_space(src)
        yield from accept(src, literals(*self.lead))
        yield from skip_space(src)
        header: list[str] = []
        ends = literals(
            *self.separators, *self.id_separators, *self.close, *scope.follow.all, *self.fences, "{", *_SPACES
        )
        stop = yield from until(src, ends, header.append)
        found = self.header.fullmatch("".join(header))
        if not stop or found is None or not found["name"]:
            return "no name before the arguments"
        call_id = found.group() if found.re.groupindex.get("id") and found["id"] else ""
        src.unread(stop)
        yield from skip_space(src)
        if (yield from accept(src, literals(*self.id_separators))):
            pieces: list[str] = []
            stop = yield from until(src, literals(*self.separators, "{", *_SPACES), pieces.append)
            src.unread(stop)
            call_id = "".join(pieces)
            yield from skip_space(src)
        separator = yield from accept(src, literals(*self.separators))
        yield from skip_space(src)
        fence = yield from accept(src, literals(*self.fences))
        char = yield from skip_space(src)
        if fence and (yield from accept(src, literals(*self.fences))):
            char = yield from skip_space(src)
        if char in ("{", '"'):
            sink.begin(found["name"], call_id)
            reason = yield from read_arguments(src, sink.arguments, self.dialect)
            if reason:
                return reason
            scope.complete(src, sink)
        elif char == "" and separator and src.natural:
            sink.begin(found["name"], call_id)
            scope.complete(src, sink)
        else:
            closed = yield from accept(src, literals(*self.close, *scope.closers.all))
            if not closed:
                return "no arguments behind the name"
            src.unread(closed)
            sink.begin(found["name"], call_id)
            scope.complete(src, sink)
        if fence:
            yield from skip_space(src)
            yield from accept(src, literals("```"))
        yield from skip_space(src)
        yield from accept(src, literals(*self.close))
        return ""


@dataclass(frozen=True, slots=True)
class PythonCalls:
    """`[f(a=1, b="x"), g()]`: Python calls with keyword arguments, never evaluated."""

    opens: tuple[str, ...] = ()
    strays: tuple[str, ...] = ()

    def starts(self, src: Source, scope: Scope) -> Steps[bool]:
        """A list stands here, or anything between markers."""
        return (yield from skip_space(src)) == "[" or scope.first

    def read(self, src: Source, sink: Sink, scope: Scope) -> Steps[str]:
        """Read calls as long as they follow each other."""
        listed = (yield from skip_space(src)) == "["
        src.pos += listed
        while True:
            yield from skip_space(src)
            name: list[str] = []
            stop = yield from until(src, _NAME_ENDS, name.append)
            if stop != "(" or not "".join(name):
                src.unread(stop)
                return "no function name"
            reason = yield from scan_value(src, _AtKeyword(sink, "".join(name)), PYTHON, keywords=True)
            if reason:
                return reason
            scope.complete(src, sink)
            following = yield from skip_space(src)
            if following and following in ",;":
                src.pos += 1
                following = yield from skip_space(src)
                if following != "]":
                    continue
            if following == "]" and listed:
                src.pos += 1
                return ""
            return "" if not listed or (not following and src.natural) else "the list of calls is not closed"


class _AtKeyword:
    """Begins a call once its first keyword, or the lack of any, tells that it is one."""

    __slots__ = ("_held", "_name", "_sink")

    def __init__(self, sink: Sink, name: str) -> None:
        self._sink = sink
        self._name = name
        self._held: list[str] = []

    def __call__(self, piece: str) -> None:
        if self._sink.is_open:
            self._sink.arguments(piece)
            return
        self._held.append(piece)
        if piece in {": ", "}"}:
            self._sink.begin(self._name)
            self._sink.arguments("".join(self._held))


_NAME_ENDS = literals("(", ")", "[", "]", "{", "}", ",", "=", '"', "'", "<", ":", *_SPACES)


def _nowhere(_: str) -> None:
    """For values that nobody asked for."""


def read_named(src: Source, sink: Sink, scope: Scope, name: str) -> Steps[str]:
    """Read the arguments of a call whose name is known already."""
    char = yield from skip_space(src)
    if char in ("{", '"'):
        sink.begin(name)
        reason = yield from read_arguments(src, sink.arguments)
        if not reason:
            scope.complete(src, sink)
        return reason
    closed = yield from accept(src, scope.closers)
    if not closed and not (char == "" and src.natural):
        return "no JSON object"
    sink.begin(name)
    scope.complete(src, sink)
    return ""


def read_arguments(src: Source, out: Callable[[str], None], dialect: Dialect = JSON) -> Steps[str]:
    """Read arguments as an object, as nothing (P9), or as a string that holds an object (P10)."""
    char = yield from skip_space(src)
    if char == "{":
        return (yield from scan_value(src, out, dialect))
    if char == '"':
        src.pos += 1
        text = yield from read_string(src)
        if text is None:
            return "the text ends in a string"
        inner = json_of(text, JSON) if text.strip() else "{}"
        out(inner if inner.startswith("{") else f'"{escaped(text)}"')
        return ""
    pieces: list[str] = []
    reason = yield from scan_value(src, pieces.append, dialect)
    value = "".join(pieces)
    out("{}" if value == "null" else value)
    return reason
