"""A prompt cut at its control tokens, as Hugging Face's `AddedVocabulary` cuts it.

Of two control tokens at a place the longer is found. One with `single_word` is none inside a word. One with `lstrip` or
`rstrip` takes the white space beside it along, but never an added token of white space. Those that are to be found in
normalised text are looked for last, in what the others left.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence

from catenary_tokenizers.safety import longest_of
from catenary_tokenizers.vocabulary import AddedToken

__all__ = ["Cutter"]

# Unicode's White_Space, which Python's own `isspace` widens by the ASCII separators.
_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))


_WORD = {"Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "Pc"}
_CIRCLED = re.compile("[\u24b6-\u24e9\U0001f130-\U0001f149\U0001f150-\U0001f169\U0001f170-\U0001f189]")


class Cutter:
    """Cuts texts at the control tokens among these added tokens."""

    def __init__(self, added: Iterable[AddedToken], controls: Iterable[AddedToken]) -> None:
        spaces = [token for token in added if token.text.isspace()]
        groups = [
            _Group(
                [token for token in controls if token.normalized is normalized],
                [token.text for token in spaces if token.normalized is normalized],
            )
            for normalized in (False, True)
        ]
        self._groups = [group for group in groups if group.controls]

    def cut(self, text: str) -> list[str]:
        """Plain text at even places, control tokens at odd ones."""
        parts = [text]
        for group in self._groups:
            if len(parts) == 1:
                parts = group.cut(text)
            else:
                parts = [piece for at, part in enumerate(parts) for piece in ([part] if at % 2 else group.cut(part))]
        return parts


class _Group:
    """Added tokens that are looked for together."""

    def __init__(self, controls: Sequence[AddedToken], spaces: Iterable[str]) -> None:
        self.controls = controls
        self._pattern = re.compile(f"({longest_of(token.text for token in controls)})")
        self._words = {token.text for token in controls if token.single_word}
        self._strips = {token.text: (token.lstrip, token.rstrip) for token in controls if token.lstrip or token.rstrip}
        kept = longest_of(spaces)
        self._kept = re.compile(f"({kept})") if kept else None

    def cut(self, text: str) -> list[str]:
        parts = self._pattern.split(text)
        if self._words:
            parts = self._without_inner(parts)
        if self._strips:
            for at in range(1, len(parts), 2):
                left, right = self._strips.get(parts[at], (False, False))
                if left:
                    parts[at - 1] = self._strip_end(parts[at - 1])
                if right:
                    parts[at + 1] = self._strip_start(parts[at + 1])
        return parts

    def _without_inner(self, parts: Sequence[str]) -> list[str]:
        """Parts in which tokens that stand inside a word are plain text."""
        kept = [parts[0]]
        for at in range(1, len(parts), 2):
            token, after = parts[at], parts[at + 1]
            before = parts[at - 1] or "".join(parts[at - 2 : at - 1])
            following = after or "".join(parts[at + 2 : at + 3])
            if token in self._words and (_is_word(before[-1:]) or _is_word(following[:1])):
                kept[-1] += token + after
            else:
                kept += [token, after]
        return kept

    def _strip_end(self, part: str) -> str:
        pieces = self._kept.split(part) if self._kept else [part]
        return "".join([*pieces[:-1], pieces[-1].rstrip(_SPACE)])

    def _strip_start(self, part: str) -> str:
        pieces = self._kept.split(part) if self._kept else [part]
        return "".join([pieces[0].lstrip(_SPACE), *pieces[1:]])


def _is_word(char: str) -> bool:
    """Whether a character is one of a word to Rust's regular expressions; to Python's, fractions are too."""
    return bool(char) and (
        unicodedata.category(char) in _WORD or char in "\u200c\u200d" or _CIRCLED.match(char) is not None
    )
