"""The one scanner of literal values: reads JSON or a dialect of it as it arrives, writes JSON text.

What it has written is always the beginning of a JSON text, and what cannot belong to the dialect is refused at its
first character. Between values it writes one space behind a comma or colon, whatever the model wrote, and a comma only
once a value follows it: a trailing one does no harm.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from catenary_parsers.strings import json_string

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from catenary_parsers.lexer import Source, Steps

MAX_DEPTH = 200
"""Containers within containers. Deeper text is refused: no reader of the arguments shall overflow its stack."""
MAX_WORD = 4000
"""Characters of a number. Longer ones are refused, as CPython refuses to convert them."""

_JSON_WORDS = {"true": "true", "false": "false", "null": "null"}


@dataclass(frozen=True, slots=True)
class Dialect:
    """How values are written."""

    quotes: str = '"'
    words: Mapping[str, str] = field(default_factory=lambda: _JSON_WORDS)
    """Bare words and the JSON they stand for."""


JSON = Dialect()

_TOKEN = re.compile(r"[ \t\r\n]*(?:([{}\[\](),:=])|([-+.\w]+))?")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_OPENS = {"{": "}", "[": "]"}
_KEY, _COLON, _VALUE, _ITEM, _NEXT = "key", "colon", "value", "item", "next"


def scan_value(src: Source, out: Callable[[str], None], dialect: Dialect = JSON) -> Steps[str]:  # noqa: C901, PLR0911, PLR0912, PLR0915 - one loop over a state table
    """Read one value and write it as JSON. Returns why it is none, or an empty string."""
    closers: list[str] = []
    state = _VALUE
    comma = ""
    token = _TOKEN.match
    while True:
        found = token(src.buf, src.pos)
        mark, word = found.groups() if found else (None, None)
        end = found.end() if found else src.pos
        if end == len(src.buf) and not mark and not src.ended:
            if not word:
                src.pos = end
            elif len(word) > MAX_WORD:
                return "a number is too long"
            yield
            continue
        src.pos = end
        if mark:
            if mark == "," and state is _NEXT:
                comma = ", "
                state = _KEY if closers[-1] == "}" else _ITEM
            elif mark == ":" and state is _COLON:
                out(": ")
                state = _VALUE
            elif mark in _OPENS and (state is _VALUE or state is _ITEM):
                if len(closers) == MAX_DEPTH:
                    return f"more than {MAX_DEPTH} containers within each other"
                out(comma + mark)
                comma = ""
                closers.append(_OPENS[mark])
                state = _KEY if mark == "{" else _ITEM
                continue
            elif closers and mark == closers[-1] and state in {_KEY, _ITEM, _NEXT}:
                out(mark)
                comma = ""
                closers.pop()
                state = _NEXT
            else:
                src.pos -= 1
                return f"{mark!r} where JSON has none"
        elif word:
            text = dialect.words.get(word) or (word if _NUMBER.fullmatch(word) and len(word) <= MAX_WORD else "")
            if not text or not (state is _VALUE or state is _ITEM):
                src.pos -= len(word)
                return f"{word[:40]!r} is no JSON value"
            out(comma + text)
            comma = ""
            state = _NEXT
        elif src.pos < len(src.buf) and src.buf[src.pos] in dialect.quotes and state not in {_COLON, _NEXT}:
            out(comma + '"')
            comma = ""
            src.pos += 1
            if not (yield from json_string(src, out)):
                return "the text ends in a string"
            state = _COLON if state is _KEY else _NEXT
        else:
            return (
                "the text ends in a value" if src.pos == len(src.buf) else f"{src.buf[src.pos]!r} where JSON has none"
            )
        if not closers and state is _NEXT:
            return ""
