"""Which format a model speaks, told from its chat template and control tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from catenary_parsers.registry import all_formats, reasoning_named

if TYPE_CHECKING:
    from collections.abc import Iterable


def detect(chat_template: str, special_tokens: Iterable[str] = ()) -> tuple[str, str] | None:
    """The names of a model's format and style of thinking, or None if nothing tells.

    Args:
        chat_template: the model's chat template as text.
        special_tokens: the control tokens of its vocabulary as text.
    """
    seen = "\n".join((chat_template, *special_tokens))
    fitting = [fmt for fmt in all_formats() if fmt.signs and all(sign in seen for sign in fmt.signs)]
    thinks = any(marker in seen for marker in ("<think>", "</think>"))
    if not fitting:
        return ("default", "basic") if thinks else None
    fmt = max(fitting, key=lambda fmt: sum(map(len, fmt.signs)))
    style = reasoning_named(fmt.reasoning)
    if style.close and not any(marker in seen for marker in (*style.open, *style.close)):
        return fmt.name, "basic" if thinks else "none"
    return fmt.name, style.name
