"""What a format is: data. Markers, what stands between them, what ends thinking."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol, TypeVar

from catenary_parsers.lexer import Literals

if TYPE_CHECKING:
    from catenary_parsers.lexer import Source, Steps
    from catenary_parsers.sink import Sink


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool declared in the request: its name and the JSON Schema of its parameters."""

    name: str
    parameters: Mapping[str, object]


class Body(Protocol):
    """A body syntax: what stands between a format's call markers."""

    def starts(self, src: Source) -> Steps[bool]:
        """Whether a call of this syntax stands here; nothing but white space is read."""
        ...

    def read(self, src: Source, sink: Sink) -> Steps[str]:
        """Read calls into `sink`; return why there is none, or an empty string."""
        ...


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A style of thinking: what opens and what closes it."""

    name: str
    open: tuple[str, ...] = ()
    close: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
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
    aliases: tuple[str, ...] = ()
    reasoning: str = "basic"
    """The style of thinking of its models."""
    ends_thinking: bool = False
    """Whether `open` ends thinking; otherwise a call inside thinking is a draft (P4)."""
    markers: tuple[str, ...] = ()
    """The markers that are single control tokens in the vocabularies of its models."""
    models: tuple[str, ...] = ()


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Grammar:
    """A format and a style of thinking, ready to read one model's output with."""

    fmt: Format
    reasoning: Reasoning
    symbols: Mapping[str, str]
    """Control token to the one character that stands for it in the text; no text that comes by `feed` has it."""
    openers: Literals = field(init=False)
    closers: Literals = field(init=False)
    ends: Literals = field(init=False)
    in_text: Literals = field(init=False)
    in_thinking: Literals = field(init=False)

    def __post_init__(self) -> None:
        fmt, reasoning = self.fmt, self.reasoning
        for name, literals in (
            ("openers", fmt.open),
            ("closers", fmt.close),
            ("ends", reasoning.close),
            ("in_text", (*fmt.open, *fmt.close, *reasoning.open, *reasoning.close)),
            ("in_thinking", (*fmt.open, *reasoning.open, *reasoning.close)),
        ):
            object.__setattr__(self, name, Literals(literals))


@lru_cache(maxsize=256)
def grammar_of(fmt: Format, reasoning: Reasoning, special: frozenset[str]) -> Grammar:
    """The grammar for a model in which `special` are control tokens."""
    tokens = sorted(special & {*fmt.markers, *reasoning.markers}, key=lambda token: (-len(token), token))
    symbols = {token: chr(0xD800 + n) for n, token in enumerate(tokens)}
    return Grammar(_with_symbols(fmt, symbols), _with_symbols(reasoning, symbols), symbols)


def _with_symbols(value: T, symbols: Mapping[str, str]) -> T:
    """`value` with each control token in its literals replaced by its symbol."""
    if isinstance(value, str):
        for token, symbol in symbols.items():
            value = value.replace(token, symbol)  # type: ignore[assignment]
        return value
    if isinstance(value, tuple):
        return type(value)(_with_symbols(item, symbols) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: _with_symbols(getattr(value, f.name), symbols) for f in fields(value)})
    return value
