"""Names to formats and styles of thinking: those of the library, and those that other distributions add.

A distribution adds its own by an entry point of the group `catenary.parsers` that names a `Format`, a `Reasoning` or a
tuple of them.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from catenary_parsers.formats import (
    deepseek,
    dsml,
    gemma,
    glm,
    hermes,
    json_lists,
    kimi,
    llama,
    messages,
    minimax,
    mistral,
    qwen3_coder,
    thinking,
)
from catenary_parsers.grammar import Format, Reasoning

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

GROUP = "catenary.parsers"
"""The entry point group for formats of other distributions."""

_FAMILIES = (
    hermes,
    qwen3_coder,
    llama,
    deepseek,
    dsml,
    messages,
    mistral,
    json_lists,
    kimi,
    minimax,
    glm,
    gemma,
)
FORMATS: Mapping[str, Format] = {fmt.name: fmt for family in _FAMILIES for fmt in family.FORMATS}
"""The library's own formats by name."""
REASONING: Mapping[str, Reasoning] = {style.name: style for style in thinking.STYLES}
"""The library's own styles of thinking by name."""


class UnknownFormat(LookupError):  # noqa: N818 - it names what is wrong, as LookupError does
    """No format or style of thinking has this name.

    Attributes:
        name: what was asked for.
        known: the names there are.
    """

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        self.name: str = name
        self.known: tuple[str, ...] = tuple(sorted(known))
        super().__init__(f"unknown {kind} {name!r}; known: {', '.join(self.known)}")


def format_named(name: str) -> Format:
    """The format with this name or alias.

    Raises:
        UnknownFormat: there is none.
    """
    known = _formats()
    if name not in known:
        raise UnknownFormat("format", name, known)
    return known[name]


def reasoning_named(name: str) -> Reasoning:
    """The style of thinking with this name or alias.

    Raises:
        UnknownFormat: there is none.
    """
    known = _styles()
    if name not in known:
        raise UnknownFormat("style of thinking", name, known)
    return known[name]


def all_formats() -> list[Format]:
    """Every format, the added ones included."""
    return [*FORMATS.values(), *(item for item in _added() if isinstance(item, Format))]


@cache
def _formats() -> Mapping[str, Format]:
    return {name: fmt for fmt in all_formats() for name in (fmt.name, *fmt.aliases)}


@cache
def _styles() -> Mapping[str, Reasoning]:
    styles = [*REASONING.values(), *(item for item in _added() if isinstance(item, Reasoning))]
    return {name: style for style in styles for name in (style.name, *style.aliases)}


@cache
def _added() -> tuple[Format | Reasoning, ...]:
    found: list[Format | Reasoning] = []
    for entry in entry_points(group=GROUP):
        loaded = entry.load()
        for item in loaded if isinstance(loaded, tuple) else (loaded,):
            if not isinstance(item, Format | Reasoning):
                raise TypeError(f"entry point {entry.name!r} of group {GROUP!r} names {item!r}, which is no Format")
            found.append(item)
    return tuple(found)
