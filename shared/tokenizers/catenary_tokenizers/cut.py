"""A prompt cut at its control tokens, as Hugging Face's `AddedVocabulary` cuts it.

Of two control tokens at a place the longer is found. One with `single_word` is none inside a word. One with `lstrip` or
`rstrip` takes the white space beside it along, but never an added token of white space. Those that are to be found in
normalised text are looked for last, in what the others left.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from catenary_tokenizers.safety import longest_of
from catenary_tokenizers.vocabulary import AddedToken

__all__ = ["Cutter"]

# Unicode's White_Space, which Python's own `isspace` widens by the ASCII separators.
_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))


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
        loose = longest_of(token.text for token in controls if not token.single_word)
        words = longest_of(token.text for token in controls if token.single_word)
        choices = [choice for choice in (loose, words and rf"(?<!\w)(?:{words})(?!\w)") if choice]
        self._pattern = re.compile(f"({'|'.join(choices)})")
        self._strips = {token.text: (token.lstrip, token.rstrip) for token in controls if token.lstrip or token.rstrip}
        kept = longest_of(spaces)
        self._kept = re.compile(f"({kept})") if kept else None

    def cut(self, text: str) -> list[str]:
        parts = self._pattern.split(text)
        if self._strips:
            for at in range(1, len(parts), 2):
                left, right = self._strips.get(parts[at], (False, False))
                if left:
                    parts[at - 1] = self._strip_end(parts[at - 1])
                if right:
                    parts[at + 1] = self._strip_start(parts[at + 1])
        return parts

    def _strip_end(self, part: str) -> str:
        pieces = self._kept.split(part) if self._kept else [part]
        return "".join([*pieces[:-1], pieces[-1].rstrip(_SPACE)])

    def _strip_start(self, part: str) -> str:
        pieces = self._kept.split(part) if self._kept else [part]
        return "".join([pieces[0].lstrip(_SPACE), *pieces[1:]])
