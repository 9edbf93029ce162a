"""Names to formats and styles of thinking."""

from __future__ import annotations

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

if TYPE_CHECKING:
    from collections.abc import Iterable

    from catenary_parsers.grammar import Format, Reasoning


class UnknownFormat(LookupError):  # noqa: N818 - it names what is wrong, as LookupError does
    """No format or style of thinking has this name.

    Attributes:
        name: what was asked for.
        known: the names there are.
    """

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        self.name = name
        self.known = tuple(sorted(known))
        super().__init__(f"unknown {kind} {name!r}; known: {', '.join(self.known)}")


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
FORMATS: dict[str, Format] = {fmt.name: fmt for family in _FAMILIES for fmt in family.FORMATS}
REASONING: dict[str, Reasoning] = {style.name: style for style in thinking.STYLES}


def format_named(name: str) -> Format:
    """The format with this name or alias.

    Raises:
        UnknownFormat: there is none.
    """
    known = FORMATS | {alias: fmt for fmt in FORMATS.values() for alias in fmt.aliases}
    if name not in known:
        raise UnknownFormat("format", name, known)
    return known[name]


def reasoning_named(name: str) -> Reasoning:
    """The style of thinking with this name or alias.

    Raises:
        UnknownFormat: there is none.
    """
    known = REASONING | {alias: style for style in REASONING.values() for alias in style.aliases}
    if name not in known:
        raise UnknownFormat("style of thinking", name, known)
    return known[name]
