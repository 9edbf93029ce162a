"""Ids of calls whose model gives them none. An id tells how much was thought before its call.

Chat Completions has one field for all that was thought in a turn, and clients send it back as one text. They send ids
back as they got them, so that each thought finds its place before its call again, without anything kept here.
"""

import re

_DROPPED = re.compile(r"[^0-9A-Za-z]")
_FORM = re.compile(r"call_?[0-9a-z]{20}[0-9a-f][0-9a-f]{3}t([0-9]{1,9})")
"""Some clients drop the underscore, others all that is no letter or digit."""


def call_id(turn_id: str, choice: int, index: int, thought: int = 0) -> str:
    """The id: the same for each submission of a turn. `thought`: characters of reasoning before the call."""
    before = f"t{thought}" if thought else ""
    return f"call_{turn_id[-20:]}{choice:x}{index:03x}{before}"


def bare(id_: str) -> str:
    """An id without what some clients drop of it: the same for a call and its result, whoever wrote them down."""
    return _DROPPED.sub("", id_)


def thought_before(id_: str) -> int | None:
    """Characters of reasoning before a call; None for an id that does not say."""
    found = _FORM.fullmatch(id_)
    return int(found[1]) if found else None
