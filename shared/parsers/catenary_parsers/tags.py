"""The one scanner of tag bodies: `<function=f><parameter=a>1</parameter></function>` and all its kin.

Values are not escaped, so a closing tag ends a value only if what follows it fits the grammar (P7): the next parameter,
or the call's end and behind it the block's. Strings stream; a value that may be of another type waits for its end,
unless its first character already tells that it is of none.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from catenary_parsers.calls import read_arguments
from catenary_parsers.coerce import convert, nested
from catenary_parsers.lexer import END, SPACE, accept, ahead, at_least, literals, skip_space, until
from catenary_parsers.schema import ANY, LITERAL, TEXT, Kind, Types
from catenary_parsers.strings import escaped

if TYPE_CHECKING:
    from catenary_parsers.grammar import Scope
    from catenary_parsers.lexer import Source, Steps
    from catenary_parsers.sink import Sink

LONGEST_KEY = 128
"""Characters of a parameter's name: it becomes part of a pattern, which nests as deep as it is long."""


@dataclass(frozen=True, slots=True)
class Tag:
    """An opening tag: `open`, then what `says` describes, then `end`."""

    open: str
    end: str
    says: re.Pattern[str] = re.compile(r"(?P<name>[^<>]+)")
    """Groups `name`; for a call also `id`; for a parameter also `string` (true, false or a type's name)."""


@dataclass(frozen=True, slots=True)
class TagCalls:
    """A call as tags: its name in the first, each parameter between two of its own."""

    call: Tag
    """Without `open` the name stands bare behind the block's marker."""
    call_close: tuple[str, ...]
    param: Tag
    param_close: tuple[str, ...]
    """`{name}` in it is the parameter's name."""
    value_open: tuple[str, ...] = ()
    """What may stand between the parameter's tag and its value."""
    json_open: tuple[str, ...] = ()
    """What may stand before arguments that are one JSON object."""
    json_close: tuple[str, ...] = ()
    trim: bool = False
    """Whether one newline on each side of a value belongs to the tags."""

    @property
    def nests(self) -> bool:
        """Whether parameters have tags of their own names, and values may be such tags again."""
        return any("{name}" in close for close in self.param_close)

    @property
    def opens(self) -> tuple[str, ...]:
        """Literals that begin a call."""
        return (self.call.open,) if self.call.open else ()

    @property
    def strays(self) -> tuple[str, ...]:
        """Its other tags, as far as they do not depend on a name."""
        closes = () if self.nests else self.param_close
        return (self.param.open, *closes, *self.call_close, *self.value_open, *self.json_open, *self.json_close)

    def starts(self, src: Source, scope: Scope) -> Steps[bool]:
        """The call's tag stands here; or, where it has none, anything at all."""
        if not self.call.open:
            return scope.first
        found = yield from accept(src, literals(*self.opens))
        src.unread(found)
        return bool(found)

    def read(self, src: Source, sink: Sink, scope: Scope) -> Steps[str]:
        """Read one call."""
        yield from accept(src, literals(*self.opens))
        head = yield from (self._head(src, self.call) if self.call.open else self._bare_name(src, scope))
        if head is None or not head["name"].strip(_QUOTES):
            return "no name"
        name = head["name"].strip(_QUOTES)
        call_id = head.groupdict().get("id") or ""
        types = Types(scope.tools.get(name))
        call_close = self.call_close or tuple(scope.closers.all)
        tags = literals(self.param.open, *call_close, *self.json_open)
        given: list[str] = []
        while True:
            char = yield from skip_space(src)
            tag = yield from accept(src, tags)
            if not given and (tag or char in ("{", "")) and not sink.is_open:
                sink.begin(name, call_id)
            if tag == self.param.open:
                reason = yield from self._param(src, sink, scope, types, given)
            elif tag in call_close:
                return _finish(src, sink, scope, given)
            elif (char == "{" or tag in self.json_open) and not given:
                reason = yield from read_arguments(src, sink.arguments)
                if not reason:
                    scope.complete(src, sink)
                    yield from self._ending(src)
                    return ""
            elif not char and src.natural and types.required <= set(given):
                return _finish(src, sink, scope, given)
            else:
                return "the text ends in a call" if not char else f"{char!r} where a tag should be"
            if reason:
                return reason

    def _ending(self, src: Source) -> Steps[None]:
        for group in (self.json_close, self.call_close):
            yield from skip_space(src)
            yield from accept(src, literals(*group))

    def _head(self, src: Source, tag: Tag) -> Steps[re.Match[str] | None]:
        pieces: list[str] = []
        stop = yield from until(src, literals(tag.end, "\n"), pieces.append)
        return tag.says.fullmatch("".join(pieces)) if stop == tag.end else None

    def _bare_name(self, src: Source, scope: Scope) -> Steps[re.Match[str] | None]:
        yield from skip_space(src)
        pieces: list[str] = []
        ends = literals(self.param.open, *scope.closers.all, *SPACE)
        stop = yield from until(src, ends, pieces.append)
        src.unread(stop)
        return _BARE.fullmatch("".join(pieces)) if stop or src.natural else None

    def _param(self, src: Source, sink: Sink, scope: Scope, types: Types, given: list[str]) -> Steps[str]:
        head = yield from self._head(src, self.param)
        if head is None:
            return "a parameter without a name"
        key = head["name"].strip(_QUOTES)
        if len(key) > LONGEST_KEY:
            return f"a parameter's name is longer than {LONGEST_KEY} characters"
        if self.value_open:
            yield from skip_space(src)
            yield from accept(src, literals(*self.value_open))
        sink.arguments(f"{', ' if given else '{'}{json.dumps(key, ensure_ascii=False)}: ")
        given.append(key)
        value = _Value(sink, self, key, types, head.groupdict().get("string"))
        if self.trim and (yield from at_least(src, 1)) and src.buf[src.pos] == "\n":
            src.pos += 1
        closes = tuple(close.replace("{name}", key) for close in self.param_close)
        implied = (self.param.open, *(self.call_close or scope.closers.all)) if closes == self.param_close else ()
        candidates = literals(*closes, *implied)
        while True:
            mark = yield from until(src, candidates, value.write)
            if not mark:
                return "the text ends in a value"
            if mark in closes:
                ends = yield from self._closes(src, scope)
            else:
                ends = yield from self._is_implied(src, scope, mark, types, given)
                if ends:
                    src.unread(mark)
            if ends:
                value.end()
                return ""
            value.write(mark)

    def _closes(self, src: Source, scope: Scope) -> Steps[bool]:
        """Whether what follows a parameter's closing tag fits the grammar."""
        call_close = self.call_close or tuple(scope.closers.all)
        mark, offset = yield from ahead(src, 0, literals(self.param.open, *call_close))
        if not mark or mark in {END, self.param.open} or not self.call_close or not scope.wrapped:
            return bool(mark)
        mark, _ = yield from ahead(src, offset, scope.follow)
        return bool(mark)

    def _is_implied(self, src: Source, scope: Scope, mark: str, types: Types, given: list[str]) -> Steps[bool]:
        """Whether a tag within a value stands where the value's own closing tag was forgotten."""
        if mark == self.param.open:
            names = [name + self.param.end for name in types.names if name not in given and len(name) <= LONGEST_KEY]
            following, _ = yield from ahead(src, 0, literals(*names))
            return bool(following) and following != END
        if self.call_close:
            following, _ = yield from ahead(src, 0, scope.closers)
            return scope.wrapped and bool(following) and following != END
        following, _ = yield from ahead(src, 0, scope.follow)
        return bool(following) and (following != END or src.natural)


class _Value:
    """A parameter's value on its way to JSON."""

    __slots__ = ("_held", "_key", "_kind", "_nests", "_newline", "_seen", "_sink", "_streams", "_trim", "_types")

    def __init__(self, sink: Sink, tags: TagCalls, key: str, types: Types, said: str | None) -> None:
        self._sink = sink
        self._key = key
        self._types = types
        self._kind = _kind(said, types, key)
        self._trim = tags.trim
        self._nests = tags.param.open if tags.nests else ""
        self._newline = ""
        self._held: list[str] = []
        self._seen = False
        self._streams = self._kind.is_text
        if self._streams:
            sink.arguments('"')

    def write(self, piece: str) -> None:
        """More of the value's text."""
        if self._trim:
            piece = self._newline + piece
            self._newline = "\n" if piece.endswith("\n") else ""
            if self._newline:
                piece = piece[:-1]
        if self._streams:
            if piece:
                self._sink.arguments(escaped(piece))
            return
        self._held.append(piece)
        if not self._seen:
            first = piece.lstrip(SPACE)[:1]
            self._seen = bool(first)
            if first and not self._kind.may_begin(first) and not self._nests.startswith(first):
                self._streams = True
                self._sink.arguments(f'"{escaped("".join(self._held))}')
                if "string" not in self._kind.types:
                    self._sink.unconverted.append(self._key)

    def end(self) -> None:
        """The value is whole."""
        if self._streams:
            self._sink.arguments('"')
            return
        text = "".join(self._held)
        inner = self._nests and nested(text, self._nests, self._types.parameter(self._key), self._types)
        written, converted = (inner, True) if inner else convert(text, self._kind)
        self._sink.arguments(written)
        if not converted:
            self._sink.unconverted.append(self._key)


_BARE = re.compile(r"(?P<name>[^<>{}\[\]]+)")
_QUOTES = " \t\"'"


def _kind(said: str | None, types: Types, key: str) -> Kind:
    """What the value may be: the tag's own word on it goes before the schema."""
    match said:
        case None:
            return types.kind(types.parameter(key))
        case "true" | "string":
            return TEXT
        case "false":
            return LITERAL
        case _:
            return Kind(frozenset({said}) & ANY.types or ANY.types)


def _finish(src: Source, sink: Sink, scope: Scope, given: list[str]) -> str:
    if given:
        sink.arguments("}")
    scope.complete(src, sink)
    return ""
