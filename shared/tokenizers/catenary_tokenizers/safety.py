"""Content can never become control tokens.

Before rendering, every control token that a caller's text spells gets a private-use *mark* inside it, so that the
rendered prompt holds a control token only where the template wrote one. After rendering, the prompt is split at its
control tokens and the marks are taken out of what lies between. The marks are characters that neither the template
nor the vocabulary's added tokens use; where a caller's text has them, they are escaped, so that `clean(shield(text))
== text` for every text.

Text at the edge of a caller's string may join with the template's own text (`<` + `think` + `>`), so that a string
which ends in the start of a control token, or starts with the end of one, is marked too.
"""

from __future__ import annotations

import marshal
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from types import NoneType
from typing import Any

__all__ = ["Constant", "Shield", "longest_of"]

_PRIVATE_USE = range(0xE000, 0xF000)
_SPELLED_START = "\\ue"  # how JSON in ASCII and `repr` begin any of these
# Values templates compare with; a mark inside would change what they render.
_WORDS = frozenset({"array", "boolean", "function", "integer", "null", "number", "object", "string", "text"})
_SCALARS = (int, float, NoneType)  # asked for first: an abstract class takes long to say no
_NAMING = frozenset({"$defs", "definitions", "patternProperties", "properties"})
# Names, keys and values come again and again, and so do tools and calls; the bounds keep them to a few megabytes.
_SHORT, _MOST_SHORT, _MOST_CONSTANTS = 64, 16_384, 64
_SHORT_ARGUMENTS, _MOST_ARGUMENTS = 512, 8_192


class Constant(dict[str, object]):
    """An object that is rendered often and never changed, so that its JSON is written once (`template.to_json`)."""

    __slots__ = ("json",)

    json: str


class Shield:
    """Marks control-token text in what callers give.

    Args:
        controls: texts of the control tokens.
        template: the template's source; its own characters are never used as marks.
        idle: whether control tokens stay as they are, and only the caller's private-use characters are escaped.
    """

    def __init__(self, controls: Iterable[str], template: str = "", *, idle: bool = False) -> None:
        self._controls = sorted(set(controls))
        taken = template + "".join(self._controls)
        free = (chr(code) for code in _PRIVATE_USE if chr(code) not in taken and _spelled(chr(code)) not in taken)
        self.mark: str = next(free)
        self._escape = next(free)
        self._spelled = _spelled(self.mark), _spelled(self._escape)
        self._escaped = re.compile("|".join(map(re.escape, (self._spelled[0], *(self._spelled[1] + d for d in "01")))))
        self._token = _starts(self._controls)
        self._firsts = {text[0] for text in self._controls}
        self._lasts = {text[-1] for text in self._controls}
        self._heads = {text[:end] for text in self._controls for end in range(1, len(text))}
        self._tails = {text[start:] for text in self._controls for start in range(1, len(text))}
        self._inner = "\n".join(self._controls)
        self._longest = max(map(len, self._controls), default=0)
        self._idle = idle or not self._controls
        self._short = lru_cache(_MOST_SHORT)(self._marked)
        self._arguments = lru_cache(_MOST_ARGUMENTS)(self._constant)
        self._constants: dict[bytes, list[Constant]] = {}

    def shield(self, text: str, *, whole: bool = True) -> str:
        """`text` so marked that it neither holds nor completes a control token.

        With `whole` false a text that is the middle of a control token is left alone: for keys that templates look up.
        """
        return self._short(text, whole) if len(text) <= _SHORT else self._marked(text, whole)

    def escape(self, text: str) -> str:
        """`text` with nothing in it that `clean` would take for a mark; its control tokens stay."""
        if self.mark in text or self._escape in text:
            text = text.replace(self._escape, self._escape + "1").replace(self.mark, self._escape + "0")
        if "\\" in text and _SPELLED_START in text:  # one character is found many times sooner than three
            for spelled in self._spelled:
                text = text.replace(spelled, spelled[:2] + self.mark + spelled[2:])
        return text

    def shield_data(self, value: object) -> object:
        """A caller's JSON value with every string and key in it shielded."""
        if isinstance(value, str):
            return self.shield(value)
        if isinstance(value, _SCALARS):
            return value
        if isinstance(value, dict | Mapping):
            return self._shield_items(value)
        if isinstance(value, list | Sequence):
            return [self.shield_data(item) for item in value]
        return value

    def shield_arguments(self, value: object) -> object:
        """`shield_data` of a call's arguments, short ones once: a session sends the same calls every turn."""
        key = _key_of(value) if isinstance(value, dict) else None
        return self.shield_data(value) if key is None or len(key) > _SHORT_ARGUMENTS else self._arguments(key)

    def shield_structure(self, value: object, *, names: bool = False) -> object:
        """A tool or message, whose keys a template looks up, shielded; with `names` this level's keys are callers'."""
        if isinstance(value, str):
            return self.shield(value)
        if isinstance(value, _SCALARS):
            return value
        if isinstance(value, dict | Mapping):
            return {
                self.shield(str(key), whole=names): self.shield_structure(item, names=key in _NAMING)
                for key, item in value.items()
            }
        if isinstance(value, list | Sequence):
            return [self.shield_structure(item, names=names) for item in value]
        return value

    def shield_option(self, value: object) -> object:
        """A template variable of a caller's; words that templates compare with stay as they are."""
        return self.shield(value, whole=False) if isinstance(value, str) else self.shield_structure(value)

    def shield_constants(self, values: Sequence[Mapping[str, object]]) -> list[Constant]:
        """Plain JSON objects, shielded once however often they come: a session sends the same tools every turn."""
        key = _key_of(list(values))
        if key is None:
            return [Constant(self._shield_object(value)) for value in values]
        known = self._constants.get(key)
        if known is None:
            if len(self._constants) >= _MOST_CONSTANTS:
                del self._constants[next(iter(self._constants))]
            known = self._constants[key] = [Constant(self._shield_object(value)) for value in values]
        return known

    def clean(self, text: str) -> str:
        """Rendered text without marks, the caller's own private-use characters restored.

        A template that writes ASCII JSON or `repr` spells a mark as an escape: that is undone too.
        """
        if _SPELLED_START in text:
            text = self._escaped.sub(self._restore, text)
        text = text.replace(self.mark, "")
        if self._escape in text:
            text = text.replace(self._escape + "0", self.mark).replace(self._escape + "1", self._escape)
        return text

    def _restore(self, match: re.Match[str]) -> str:
        mark, escape = self._spelled
        return {mark: "", f"{escape}0": mark, f"{escape}1": escape}[match[0]]

    def _shield_items(self, value: Mapping[str, object]) -> dict[str, object]:
        return {self.shield(str(key)): self.shield_data(item) for key, item in value.items()}

    def _constant(self, key: bytes) -> Constant:
        arguments: dict[str, object] = marshal.loads(key)  # noqa: S302  what `_key_of` wrote
        return Constant(self._shield_items(arguments))

    def _shield_object(self, value: Mapping[str, object]) -> dict[str, object]:
        return {
            self.shield(key, whole=False): self.shield_structure(item, names=key in _NAMING)
            for key, item in value.items()
        }

    def _marked(self, text: str, whole: bool) -> str:
        text = self.escape(text)
        if self._idle:
            return text
        opens = self._opens(text)
        if opens:
            text = self._token.sub(self._break, text)
        if whole and 0 < len(text) < self._longest and text in self._inner and text not in _WORDS:
            return text[0] + self.mark + text[1:]
        return self._break_start(self._break_end(text) if opens else text)

    def _opens(self, text: str) -> bool:
        """Whether a control token may begin in a text: a look for one character tells of most that none does."""
        for first in self._firsts:  # noqa: SIM110  many times quicker than a generator
            if first in text:
                return True
        return False

    def _break(self, match: re.Match[str]) -> str:
        return match[0] + self.mark

    def _break_end(self, text: str) -> str:
        for first in self._firsts:
            at = text.find(first, max(0, len(text) - self._longest))
            while at >= 0:
                if text[at:] in self._heads:
                    return text[: at + 1] + self.mark + text[at + 1 :]
                at = text.find(first, at + 1)
        return text

    def _break_start(self, text: str) -> str:
        for last in self._lasts:
            at = text.find(last, 0, self._longest)
            while at >= 0:
                if text[: at + 1] in self._tails:
                    return text[:at] + self.mark + text[at:]
                at = text.find(last, at + 1, self._longest)
        return text


def _key_of(value: Any) -> bytes | None:
    """A plain JSON value as bytes that no other has; None if something in it is no such value."""
    try:
        return marshal.dumps(value, 2)
    except ValueError:
        return None


def _spelled(char: str) -> str:
    """A character as JSON in ASCII and `repr` write it."""
    return f"\\u{ord(char):04x}"


def longest_of(texts: Iterable[str]) -> str:
    """A regular expression for the longest of `texts` at a place, shared beginnings tried once."""
    rests: dict[str, set[str]] = {}
    ends = False
    for text in texts:
        if text:
            rests.setdefault(text[0], set()).add(text[1:])
        else:
            ends = True
    if not rests:
        return ""
    branches = [re.escape(first) + longest_of(rest) for first, rest in sorted(rests.items())]
    if len(branches) == 1 and not ends:
        return branches[0]
    return f"(?:{'|'.join(branches)})" + ("?" if ends else "")


def _starts(controls: Iterable[str]) -> re.Pattern[str]:
    """Matches the first character of each control token, overlapping ones too."""
    rests: dict[str, set[str]] = {}
    for text in controls:
        rests.setdefault(text[0], set()).add(text[1:])
    return re.compile("|".join(f"{re.escape(first)}(?={longest_of(rest)})" for first, rest in rests.items()))
