"""What a format is: data. Markers, what stands between them, what ends thinking."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar, cast

from catenary_parsers.lexer import Literals
from catenary_parsers.values import JSON, Dialect

if TYPE_CHECKING:
    from catenary_parsers.lexer import Source, Steps
    from catenary_parsers.sink import Sink


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool declared in the request: its name and the JSON Schema of its parameters."""

    name: str
    parameters: Mapping[str, object]


@dataclass(slots=True)
class Scope:
    """Where a body is read."""

    tools: Mapping[str, Mapping[str, object]]
    """The declared tools: name to the schema of the parameters."""
    closers: Literals
    """What ends the block."""
    follow: Literals
    """What may stand behind a call in the block: its end, another call, another block."""
    wrapped: bool = True
    """Whether the block began with a marker of its own."""
    implicit: bool = False
    """Whether what stands here may as well be text."""
    first: bool = True
    """Whether no call of the block was read yet."""

    def complete(self, src: Source, sink: Sink) -> None:
        """The open call is certain: what comes next cannot take it back."""
        sink.complete(at_close=src.ended)
        self.first = False
        if not sink.is_held:
            src.keep()


@dataclass(frozen=True, slots=True)
class Writing:
    """How the models write a turn, as templates.

    Placeholders: {calls} in `block`; {name}, {number} and {count} (from 0 and from 1), {arguments} and {parameters} in
    `call`; {key}, {value}, {string} (true or false) and {type} in `parameter`; {text} in `text`.
    """

    call: str
    block: str = "{calls}"
    between: str = ""
    """Between two calls."""
    parameter: str = ""
    text: str = "{text}"
    dialect: Dialect = JSON
    """How {arguments} are written; Python's are keyword arguments."""
    schema_style: str = "json"
    """The name that grammar compilers have for the way parameters are written."""


class Body(Protocol):
    """A body syntax: what stands between a format's call markers."""

    @property
    def opens(self) -> tuple[str, ...]:
        """Markers that begin a call of this syntax also without a block's marker."""
        ...

    @property
    def strays(self) -> tuple[str, ...]:
        """Its other markers, which are dropped where no call is."""
        ...

    def starts(self, src: Source, scope: Scope) -> Steps[bool]:
        """Whether a call of this syntax stands here; nothing but white space is read."""
        ...

    def read(self, src: Source, sink: Sink, scope: Scope) -> Steps[str]:
        """Read calls into `sink`; return why the first or a begun one is none, or an empty string."""
        ...


@dataclass(frozen=True, slots=True)
class Route:
    """Where a message goes, by what its header says."""

    header: re.Pattern[str]
    """Searched in the header; a group `name` makes the body the arguments of a call."""
    to: Literal["text", "reasoning", "call"]


@dataclass(frozen=True, slots=True)
class Messages:
    """An output that is itself a sequence of messages, each with a header and a body."""

    start: tuple[str, ...]
    """Markers that begin a header."""
    body: tuple[str, ...]
    """Markers that end the header and begin the body."""
    end: tuple[str, ...]
    """Markers that end the body."""
    routes: tuple[Route, ...]
    """The first that fits counts; without one the body is text."""
    words: re.Pattern[str]
    """What a header is made of, from its beginning; where no body follows, what goes on behind it is text."""
    bare_start: tuple[str, ...] = ()
    """What begins a header where the prompt has already begun the message."""


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A style of thinking: what opens and what closes it."""

    name: str
    open: tuple[str, ...] = ()
    close: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    writing: str = ""
    """How the models write it, with {text} in it."""
    markers: tuple[str, ...] = ()
    """Those of them that are single control tokens in the vocabularies of its models."""
    forced: bool = False
    """Whether the models' templates open thinking for them."""


@dataclass(frozen=True, slots=True)
class Format:
    """A model family's way to write tool calls."""

    name: str
    open: tuple[str, ...]
    """Markers that begin a block of calls."""
    close: tuple[str, ...]
    """Markers that end it; elsewhere they are dropped."""
    bodies: tuple[Body, ...]
    """What may stand in a block."""
    writing: Writing
    """How its models write a call."""
    aliases: tuple[str, ...] = ()
    reasoning: str = "basic"
    """The style of thinking of its models."""
    implicit: tuple[str, ...] = ()
    """What may begin a block and may as well be text; it is read again by the body."""
    drops: tuple[str, ...] = ()
    """Markers that mean nothing here."""
    messages: Messages | None = None
    """The frame of messages around it all, if the output has one."""
    ends_thinking: bool = False
    """Whether `open` ends thinking; otherwise a call inside thinking is a draft (P4)."""
    markers: tuple[str, ...] = ()
    """The markers that are single control tokens in the vocabularies of its models."""
    signs: tuple[str, ...] = ()
    """What the chat templates or control tokens of its models all have; the format with the longest signs is meant."""
    models: tuple[str, ...] = ()


T = TypeVar("T")
_NO_FRAME = Messages(start=(), body=(), end=(), routes=(), words=re.compile(""))


@dataclass(frozen=True, slots=True)
class Grammar:
    """A format and a style of thinking, ready to read one model's output with."""

    fmt: Format
    reasoning: Reasoning
    symbols: Mapping[str, str]
    """Control token to the one character that stands for it in the text; no text that comes by `feed` has it."""
    blocks: frozenset[str] = field(init=False)
    """Markers that begin a block of calls."""
    bare: frozenset[str] = field(init=False)
    """Markers that begin a call without a block."""
    openers: Literals = field(init=False)
    resumes: Literals = field(init=False)
    """Where reading goes on within a call that broke."""
    closers: Literals = field(init=False)
    follow: Literals = field(init=False)
    ends_of_thinking: Literals = field(init=False)
    frame: Messages = field(init=False)
    headers: frozenset[str] = field(init=False)
    in_header: Literals = field(init=False)
    in_text: Literals = field(init=False)
    in_thinking: Literals = field(init=False)
    everything: Literals = field(init=False)

    def __post_init__(self) -> None:
        fmt, reasoning = self.fmt, self.reasoning
        blocks = frozenset(fmt.open)
        bare = frozenset(literal for body in fmt.bodies for literal in body.opens) - blocks
        frame = fmt.messages or _NO_FRAME
        headers = frozenset(frame.start)
        calls = {*blocks, *bare}
        inner = {literal for body in fmt.bodies for literal in body.strays}
        noise = {*fmt.close, *inner, *fmt.drops, *frame.body, *frame.end}
        thinking = {*reasoning.open, *reasoning.close, *headers, *frame.end}
        for name, value in {
            "blocks": blocks,
            "bare": bare,
            "openers": Literals(calls),
            "resumes": Literals({*calls, *headers}),
            "closers": Literals((*fmt.close, *frame.end)),
            "follow": Literals((*calls, *fmt.close, *frame.end)),
            "ends_of_thinking": Literals({*reasoning.close, *frame.start, *frame.end}),
            "frame": frame,
            "headers": headers,
            "in_header": Literals((*frame.body, *frame.end)),
            "in_text": Literals({*calls, *thinking, *noise, *frame.bare_start, *fmt.implicit}),
            "in_thinking": Literals({*calls, *thinking, *(noise if fmt.ends_thinking else ())}),
            "everything": Literals({*calls, *thinking, *noise}),
        }.items():
            object.__setattr__(self, name, value)


@lru_cache(maxsize=256)
def grammar_of(fmt: Format, reasoning: Reasoning, special: frozenset[str]) -> Grammar:
    """The grammar for a model in which `special` are control tokens."""
    tokens = sorted(special & {*fmt.markers, *reasoning.markers}, key=lambda token: (-len(token), token))
    symbols = {token: chr(0xD800 + n) for n, token in enumerate(tokens)}
    return Grammar(_with_symbols(fmt, symbols), _with_symbols(reasoning, symbols), symbols)


def _with_symbols(value: T, symbols: Mapping[str, str]) -> T:
    """`value` with each control token in its literals replaced by its symbol."""
    return cast("T", _replaced(value, symbols))


def _replaced(value: object, symbols: Mapping[str, str]) -> object:
    if isinstance(value, str):
        for token, symbol in symbols.items():
            value = value.replace(token, symbol)
        return value
    if isinstance(value, tuple):
        return tuple(_replaced(item, symbols) for item in cast("tuple[object, ...]", value))
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: _replaced(getattr(value, f.name), symbols) for f in fields(value)})
    return value
