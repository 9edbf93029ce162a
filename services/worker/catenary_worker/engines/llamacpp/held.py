"""Tokens that llama.cpp counts but does not show.

Its stream waits until the text ends in a whole character, and then names only the last token of those it waited for.
The others are found again: their text and number are known, and the vocabulary says which tokens can spell it.
"""

from collections.abc import Sequence

from catenary_tokenizers import ModelTokenizer

_LONGEST = 64
"""Bytes; what is held back is a character or two."""


class HeldBack:
    """Finds tokens by what they spell."""

    def __init__(self, tokenizer: ModelTokenizer) -> None:
        self._piece = tokenizer.table.piece
        self._tokens: dict[bytes, int] = {}
        for token, piece in enumerate(tokenizer.table.pieces):
            if piece and token not in tokenizer.table.controls:
                self._tokens.setdefault(piece, token)

    def find(self, text: str, count: int, last: int) -> tuple[int, ...] | None:
        """The `count` tokens before `last` with which they spell `text`, longest first; None if none can."""
        spelled, end = text.encode(), self._piece(last)
        if len(spelled) > _LONGEST or not spelled.endswith(end):
            return None
        found = self._split(spelled[: len(spelled) - len(end)], count)
        return None if found is None else tuple(found)

    def _split(self, rest: bytes, count: int) -> Sequence[int] | None:
        if not count:
            return None if rest else ()
        for cut in range(len(rest) - count + 1, 0, -1):
            token = self._tokens.get(rest[:cut])
            if token is not None and (tail := self._split(rest[cut:], count - 1)) is not None:
                return token, *tail
        return None
