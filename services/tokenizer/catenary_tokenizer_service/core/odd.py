"""Answers that somebody who runs a model must hear of: its calls are not read as it means them."""

from collections.abc import Iterable
from typing import Literal

Odd = Literal["", "no_call", "markup_shown"]


def odd(raw: str, call_marks: Iterable[str], *, called: bool, malformed: bool) -> Odd:
    """What is odd about an answer, "" if nothing: `raw` is all its text with control tokens spelled."""
    if not called and any(mark in raw for mark in call_marks):
        return "no_call"
    return "markup_shown" if malformed else ""
