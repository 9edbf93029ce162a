"""The one lexer: a cursor over text that still arrives, and sets of literals found in it.

The rule of this file: text is held back while it may still become a literal that is looked for, and no longer.
All that reads is a generator which yields when it needs more text, so that a cut in the stream is no state of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable
from functools import lru_cache
from typing import TypeAlias, TypeVar

T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]
"""A reader: yields whenever the text at hand is used up, returns what it read."""

SPACE = " \t\r\n"
_SPACE_RUN = re.compile(r"[ \t\r\n]*")


class Source:
    """The text fed so far and not yet read."""

    __slots__ = ("_kept", "buf", "ended", "natural", "pos")

    def __init__(self) -> None:
        self.buf: str = ""
        """What was fed, from `pos` on not yet read."""
        self.pos: int = 0
        self.ended: bool = False
        """Whether no more text comes."""
        self.natural: bool = False
        """Whether the model itself stopped there."""
        self._kept: list[str] | None = None

    def push(self, text: str) -> None:
        """Append `text`; what was read is forgotten unless it is kept."""
        if self._kept is not None:
            self._kept.append(self.buf[: self.pos])
        self.buf = self.buf[self.pos :] + text
        self.pos = 0

    def end(self, *, natural: bool) -> None:
        """No more text comes; `natural` if the model itself stopped."""
        self.ended = True
        self.natural = natural

    def keep(self) -> None:
        """From here on remember what is read, until `forget` or `rewind`."""
        self.buf = self.buf[self.pos :]
        self.pos = 0
        self._kept = []

    def kept(self) -> str:
        """What was read since `keep`."""
        return "".join(self._kept or ()) + self.buf[: self.pos]

    def unread(self, text: str) -> None:
        """Put `text` back, which was read last."""
        if self.pos >= len(text):
            self.pos -= len(text)
            return
        if self._kept is not None:
            self._kept = [self.kept()[: -len(text)]]
        self.buf = text + self.buf[self.pos :]
        self.pos = 0

    def forget(self) -> None:
        """Stop remembering."""
        self._kept = None

    def rewind(self, offset: int) -> None:
        """Read again from `offset` characters behind `keep`."""
        self.buf = self.kept()[offset:] + self.buf[self.pos :]
        self.pos = 0
        self._kept = None


class Literals:
    """A set of literals as one pattern that also matches, at the end of the text, what may still become one."""

    __slots__ = ("_growing", "_pattern", "all", "match", "search")

    def __init__(self, literals: Iterable[str]) -> None:
        self.all: frozenset[str] = frozenset(literals) - {""}
        """The literals."""
        self._growing = {a for a in self.all if any(b != a and b.startswith(a) for b in self.all)}
        self._pattern = re.compile(_alternatives(self.all) if self.all else "(?!)")
        self.search: Callable[[str, int], re.Match[str] | None] = self._pattern.search
        """Finds the first literal, or what may become one, at or behind a position."""
        self.match: Callable[[str, int], re.Match[str] | None] = self._pattern.match
        """Finds it only at the position."""

    def settled(self, literal: str, src: Source, end: int) -> bool:
        """Whether what was matched up to `end` is whole and no longer literal can come of it."""
        return literal in self.all and (end < len(src.buf) or src.ended or literal not in self._growing)

    def find(self, text: str, start: int = 0) -> int:
        """Where the first whole literal in `text` from `start` on begins, or -1."""
        return next((found.start() for found in self._pattern.finditer(text, start) if found.group() in self.all), -1)

    def without(self, text: str) -> str:
        """`text` with every whole literal taken out."""
        return self._pattern.sub(lambda found: "" if found.group() in self.all else found.group(), text)

    def longest_in(self, text: str) -> str:
        """The longest literal that `text` begins with, or an empty string."""
        return max((x for x in self.all if text.startswith(x)), key=len, default="")


@lru_cache(maxsize=4096)
def literals(*words: str) -> Literals:
    """The set of these literals, made once."""
    return Literals(words)


def _alternatives(words: Iterable[str]) -> str:
    tails: dict[str, list[str]] = {}
    for word in sorted(words):
        tails.setdefault(word[0], []).append(word[1:])
    branches = []
    for head, rest in tails.items():
        longer = [tail for tail in rest if tail]
        branch = re.escape(head)
        if longer:
            branch += rf"(?:\Z|{_alternatives(longer)}{'|' if '' in rest else ''})"
        branches.append(branch)
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"


def until(src: Source, sought: Literals, emit: Callable[[str], None]) -> Steps[str]:
    """Emit text up to the next of `sought` and return that literal; an empty string at the end of all text."""
    search = sought.search
    while True:
        buf = src.buf
        found = search(buf, src.pos)
        if found is None:
            if src.pos < len(buf):
                emit(buf[src.pos :])
                src.pos = len(buf)
            if src.ended:
                return ""
            yield
            continue
        start, end = found.span()
        if start > src.pos:
            emit(buf[src.pos : start])
            src.pos = start
        literal = buf[start:end]
        if src.ended and literal not in sought.all:
            literal = sought.longest_in(literal)
            if not literal:
                if not src.natural and not buf[start].isalnum():
                    src.pos = len(buf)  # the piece of a marker that the output was cut in
                    return ""
                emit(buf[start])
                src.pos = start + 1
                continue
        if sought.settled(literal, src, end):
            src.pos = start + len(literal)
            return literal
        yield


def accept(src: Source, sought: Literals) -> Steps[str]:
    """Read one of `sought` if it stands here, else nothing."""
    while True:
        found = sought.match(src.buf, src.pos)
        if found is None and src.pos < len(src.buf):
            return ""
        if found is not None:
            literal = found.group()
            if src.ended:
                literal = sought.longest_in(literal)
            if sought.settled(literal, src, found.end()):
                src.pos += len(literal)
                return literal
        if src.ended:
            return ""
        yield


def skip_space(src: Source) -> Steps[str]:
    """Read white space; return the next character without reading it, empty at the end of all text."""
    while True:
        found = _SPACE_RUN.match(src.buf, src.pos)
        src.pos = found.end() if found else src.pos
        if src.pos < len(src.buf):
            return src.buf[src.pos]
        if src.ended:
            return ""
        yield


END = "\0"
"""What `ahead` finds where the text ends."""
_MAX_SPACE = 256


def ahead(src: Source, offset: int, sought: Literals) -> Steps[tuple[str, int]]:
    """Which of `sought` stands `offset` characters ahead, white space aside, and the offset behind it.

    Nothing is read. Where none stands the literal is empty; where the text ends before one is whole, it is `END`. More
    white space than any model writes between two tags counts as text.
    """
    first = offset
    while True:
        start = src.pos + offset
        found = _SPACE_RUN.match(src.buf, start)
        offset = (found.end() if found else start) - src.pos
        if offset - first > _MAX_SPACE:
            return "", offset
        at = src.pos + offset
        partial = sought.match(src.buf, at)
        if partial is None and at < len(src.buf):
            return "", offset
        if partial is not None and sought.settled(partial.group(), src, partial.end()):
            return partial.group(), offset + len(partial.group())
        if src.ended:
            return END, offset
        yield


def at_least(src: Source, count: int) -> Steps[bool]:
    """Wait for `count` unread characters; False if the text ends before."""
    while len(src.buf) - src.pos < count:
        if src.ended:
            return False
        yield
    return True


def finish(reader: Steps[T]) -> T:
    """What a reader of an ended source returns."""
    try:
        while True:
            next(reader)
    except StopIteration as done:
        value: T = done.value
        return value
