"""A text that matches a regular expression of the kind JSON Schemas use: classes, groups, choices, repeats.

Anything else (look-around, back references, Unicode properties) is no error: the answer is None.
"""

import re
import warnings
from collections.abc import Iterator

_CLASSES = {"d": "7", "w": "a", "s": " ", "D": "a", "W": "-", "S": "a", "n": "\n", "t": "\t", "r": "\r"}
_REPEAT = re.compile(r"\{(\d+)(?:,\d*)?\}")
_PRINTABLE = "a1A -_" + "".join(map(chr, range(0x21, 0x7F)))
_MOST = 4096


class _UnsupportedError(Exception):
    pass


def matching(pattern: str) -> str | None:
    """The plainest text the pattern finds, or None when it is beyond us."""
    try:
        text = _Reader(pattern).choices()
    except (_UnsupportedError, RecursionError):
        return None
    known = compiled(pattern)
    return text if known is not None and known.search(text) else None


def compiled(pattern: str) -> "re.Pattern[str] | None":
    """A pattern of a stranger: None where Python cannot read it, and no warning where it will read it otherwise."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        try:
            return re.compile(pattern)
        except re.error:
            return None


class _Reader:
    """Walks a pattern and writes the text as it goes."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0

    def choices(self) -> str:
        """The first alternative; the others are read and dropped."""
        first = "".join(self._items())
        while self._peek() == "|":
            self._at += 1
            list(self._items())
        if self._peek() and self._peek() != ")":
            raise _UnsupportedError
        return first

    def _items(self) -> Iterator[str]:
        while self._peek() and self._peek() not in "|)":
            item = self._item()
            text = item * self._times()
            if len(text) > _MOST:
                raise _UnsupportedError
            yield text

    def _item(self) -> str:
        character = self._next()
        match character:
            case "^" | "$":
                return ""
            case ".":
                return "a"
            case "[":
                return self._class()
            case "(":
                return self._group()
            case "\\":
                return self._escape()
            case "*" | "+" | "?":
                raise _UnsupportedError
        return character

    def _group(self) -> str:
        if self._peek() == "?":
            self._at += 1
            if self._next() != ":":
                raise _UnsupportedError
        text = self.choices()
        if self._next() != ")":
            raise _UnsupportedError
        return text

    def _escape(self) -> str:
        character = self._next()
        if character in "bB":
            return ""
        if character.isalnum() and character not in _CLASSES:
            raise _UnsupportedError
        return _CLASSES.get(character, character)

    def _class(self) -> str:
        """One character of a class, found by asking `re`."""
        start = self._at - 1
        if self._peek() == "^":
            self._at += 1
        if self._peek() == "]":
            self._at += 1
        while self._next() != "]":
            if self._pattern[self._at - 1] == "\\":
                self._next()
        allowed = compiled(self._pattern[start : self._at])
        for character in _PRINTABLE:
            if allowed is not None and allowed.fullmatch(character):
                return character
        raise _UnsupportedError

    def _times(self) -> int:
        character = self._peek()
        times = 1
        if character in {"*", "+", "?"}:
            self._at += 1
            times = 1
        elif repeat := _REPEAT.match(self._pattern, self._at):
            self._at = repeat.end()
            times = int(repeat[1])
        else:
            return 1
        if self._peek() in {"?", "+"}:
            self._at += 1
        return times

    def _peek(self) -> str:
        return self._pattern[self._at : self._at + 1]

    def _next(self) -> str:
        character = self._peek()
        if not character:
            raise _UnsupportedError
        self._at += 1
        return character
