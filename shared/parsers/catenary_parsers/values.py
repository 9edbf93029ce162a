"""The one scanner of literal values: reads JSON or a dialect of it as it arrives, writes JSON text.

What it has written is always the beginning of a JSON text, and what cannot belong to the dialect is refused at its
first character. Between values it writes one space behind a comma or colon, whatever the model wrote, and a comma only
once a value follows it: a trailing one does no harm.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from catenary_parsers.lexer import SPACE, Source, accept, finish, literals
from catenary_parsers.strings import escaped, json_string, plain_string, python_string

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from catenary_parsers.lexer import Steps

MAX_DEPTH = 200
"""Containers within containers. Deeper text is refused: no reader of the arguments shall overflow its stack."""
MAX_WORD = 4000
"""Characters of a number. Longer ones are refused, as CPython refuses to convert them."""

_JSON_WORDS = {"true": "true", "false": "false", "null": "null"}


@dataclass(frozen=True, slots=True)
class Dialect:
    """How values are written."""

    name: str = "JSON"
    quote: str = ""
    """What stands on both sides of a string without escapes; empty: strings are quoted as in JSON or Python."""
    words: Mapping[str, str] = field(default_factory=lambda: _JSON_WORDS, hash=False)
    """Bare words and the JSON they stand for."""
    python: bool = False
    """Whether strings have Python's quotes and escapes, and (1, 2) is a list."""
    bare: bool = False
    """Whether keys, and strings that look like words, stand without quotes."""


JSON = Dialect()
PYTHON = Dialect("Python", words=_JSON_WORDS | {"True": "true", "False": "false", "None": "null"}, python=True)

_TOKEN = re.compile(r"[ \t\r\n]*(?:([{}\[\](),:=])|([^\s{}\[\](),:=\"'<\ud800-\udfff]+))?")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_OPENS = {"{": "}", "[": "]", "(": ")"}
_KEY, _COLON, _VALUE, _ITEM, _NEXT = "key", "colon", "value", "item", "next"


def scan_value(  # noqa: C901, PLR0912, PLR0915 - one loop over a table of states
    src: Source, out: Callable[[str], None], dialect: Dialect = JSON, *, keywords: bool = False
) -> Steps[str]:
    """Read one value and write it as JSON; return why it is none, or an empty string.

    With `keywords` it reads the arguments of a Python call behind the opening parenthesis, as an object.
    """
    closers: list[str] = []
    state = _VALUE
    comma = ""
    equals = ":"
    if keywords:
        closers.append("=)")
        out("{")
        state, equals = _KEY, "="
    quotes = literals(dialect.quote) if dialect.quote else None
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
                state = _KEY if closers[-1][-1] in "})" and closers[-1] != ")" else _ITEM
            elif mark == equals and state is _COLON:
                out(": ")
                state = _VALUE
            elif mark in _OPENS and (state is _VALUE or state is _ITEM) and (mark != "(" or dialect.python):
                if len(closers) == MAX_DEPTH:
                    return f"more than {MAX_DEPTH} containers within each other"
                out(comma + ("{" if mark == "{" else "["))
                comma, equals = "", ":"
                closers.append(_OPENS[mark])
                state = _KEY if mark == "{" else _ITEM
                continue
            elif closers and mark == closers[-1][-1] and state in {_KEY, _ITEM, _NEXT}:
                out("]" if closers.pop() in "])" else "}")
                comma, state = "", _NEXT
                equals = "=" if closers and closers[-1] == "=)" else ":"
            else:
                src.pos -= 1
                return f"{mark!r} where {dialect.name} has none"
        elif word:
            if state is _KEY and (dialect.bare or closers[-1] == "=)"):
                out(f'{comma}"{escaped(word)}"')
                comma, state = "", _COLON
                continue
            text = _word(word, dialect)
            if not text or (state is not _VALUE and state is not _ITEM):
                src.pos -= len(word)
                return f"{word[:40]!r} is no {dialect.name} value"
            out(comma + text)
            comma, state = "", _NEXT
        elif state is _COLON or state is _NEXT or (state is _KEY and closers[-1] == "=)"):
            return _misfit(src, dialect)
        else:
            own = bool(quotes and (yield from accept(src, quotes)))
            quote = "" if own else src.buf[src.pos : src.pos + 1]
            if quote == '"' or (quote == "'" and dialect.python):
                src.pos += 1
            elif not own:
                return _misfit(src, dialect)
            out(comma + '"')
            if own and quotes:
                whole = yield from plain_string(src, out, quotes)
            elif dialect.python:
                whole = yield from python_string(src, out, quote)
            else:
                whole = yield from json_string(src, out)
            if not whole:
                return "the text ends in a string"
            comma, state = "", _COLON if state is _KEY else _NEXT
        if not closers and state is _NEXT:
            return ""


def _misfit(src: Source, dialect: Dialect) -> str:
    rest = src.buf[src.pos : src.pos + 1]
    return f"{rest!r} where {dialect.name} has none" if rest else "the text ends in a value"


def _word(word: str, dialect: Dialect) -> str:
    """The JSON of a bare word, or an empty string."""
    if word in dialect.words:
        return dialect.words[word]
    digits = word.replace("_", "").removeprefix("+") if dialect.python else word
    if len(digits) <= MAX_WORD and _NUMBER.fullmatch(digits):
        return digits
    return f'"{escaped(word)}"' if dialect.bare else ""


def json_of(text: str, dialect: Dialect) -> str:
    """The JSON of a text that is one whole value, or an empty string."""
    src = Source()
    src.push(text.strip(SPACE))
    src.end(natural=True)
    pieces: list[str] = []
    reason = finish(scan_value(src, pieces.append, dialect))
    return "" if reason or src.pos < len(src.buf) else "".join(pieces)
