"""String literals: read behind the opening quote as they arrive, written as JSON up to and with the closing quote."""

from __future__ import annotations

import json
import re
from json.encoder import encode_basestring
from typing import TYPE_CHECKING

from catenary_parsers.lexer import Literals, at_least, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from catenary_parsers.lexer import Source, Steps

_RUN = re.compile('[^"\\\\\x00-\x1f\ud800-\udfff]*')
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_HIGH = re.compile(r"\\u[dD][89abAB]")
_PAIR = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_HALF = re.compile(r"\\u[dD][89a-fA-F]")


def escaped(text: str) -> str:
    """`text` as the inside of a JSON string."""
    return encode_basestring(text)[1:-1]


def json_string(src: Source, out: Callable[[str], None]) -> Steps[bool]:
    """Read a JSON string; False if the text ends in it.

    Raw control characters and backslashes that escape nothing are written escaped; half a surrogate pair as U+FFFD.
    """
    run = _RUN.match
    while True:
        buf, pos = src.buf, src.pos
        found = run(buf, pos)
        end = found.end() if found else pos
        if end == len(buf):
            if end > pos:
                out(buf[pos:])
                src.pos = end
            if src.ended:
                return False
            yield
            continue
        char = buf[end]
        if char == '"':
            out(buf[pos : end + 1])
            src.pos = end + 1
            return True
        if end > pos:
            out(buf[pos:end])
        src.pos = end
        if char == "\\":
            yield from _json_escape(src, out)
        else:
            out(char if char > "\x1f" else escaped(char))
            src.pos = end + 1


def _json_escape(src: Source, out: Callable[[str], None]) -> Steps[None]:
    if not (yield from at_least(src, 2)):
        src.pos += 1
        return
    if src.buf[src.pos + 1] == "u":
        yield from at_least(src, 6)
        if _HIGH.match(src.buf, src.pos):
            yield from at_least(src, 12)
    found = _PAIR.match(src.buf, src.pos) or _ESCAPE.match(src.buf, src.pos)
    if found is None:
        # What JSON does not know is a backslash of the model's own text, but for a quote that needed none.
        out("" if src.buf[src.pos + 1] == "'" else "\\\\")
        src.pos += 1
        return
    text = found.group()
    out("\\ufffd" if len(text) == 6 and _HALF.match(text) else text)
    src.pos = found.end()


def read_string(src: Source) -> Steps[str | None]:
    """Read a JSON string and return what it says; None if the text ends in it."""
    pieces = ['"']
    whole = yield from json_string(src, pieces.append)
    return str(json.loads("".join(pieces))) if whole else None


def plain_string(src: Source, out: Callable[[str], None], closing: Literals) -> Steps[bool]:
    """Read text that knows no escapes, up to its closing quote."""
    found = yield from until(src, closing, lambda piece: out(escaped(piece)))
    if found:
        out('"')
    return bool(found)


_PYTHON_RUN = {quote: re.compile(f"[^{quote}\\\\]*") for quote in "\"'"}
_PYTHON_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a", "0": "\0", "\n": ""}
_PYTHON_CODES = {"x": 2, "u": 4, "U": 8}


def python_string(src: Source, out: Callable[[str], None], quote: str) -> Steps[bool]:
    """Read a Python string behind its opening quote; False if the text ends in it."""
    run = _PYTHON_RUN[quote].match
    while True:
        found = run(src.buf, src.pos)
        end = found.end() if found else src.pos
        if end > src.pos:
            out(escaped(src.buf[src.pos : end]))
            src.pos = end
        if not (yield from at_least(src, 1)):
            return False
        if src.buf[src.pos] == quote:
            src.pos += 1
            out('"')
            return True
        if src.buf[src.pos] == "\\":
            yield from _python_escape(src, out)


def _python_escape(src: Source, out: Callable[[str], None]) -> Steps[None]:
    if not (yield from at_least(src, 2)):
        src.pos += 1
        return
    char = src.buf[src.pos + 1]
    digits = _PYTHON_CODES.get(char, 0)
    yield from at_least(src, 2 + digits)
    code = src.buf[src.pos + 2 : src.pos + 2 + digits]
    if digits and len(code) == digits and all(digit in "0123456789abcdefABCDEF" for digit in code):
        value = int(code, 16)
        out(escaped(chr(value) if value < 0x110000 and not 0xD800 <= value < 0xE000 else "\ufffd"))
        src.pos += 2 + digits
    elif char in "\\'\"":
        out(escaped(char))
        src.pos += 2
    elif char in _PYTHON_ESCAPES:
        out(escaped(_PYTHON_ESCAPES[char]))
        src.pos += 2
    else:
        out("\\\\")
        src.pos += 1
