"""Ids to text, a stream at a time: plain runs and control tokens in their order.

Rule kept here: what has been given out never changes. Bytes that may still become a character are held back (three at
most); bytes that cannot become one any more are U+FFFD at once; `flush` gives U+FFFD for what a stream's end leaves
incomplete.
"""

from __future__ import annotations

import codecs
import contextlib
from collections.abc import Container, Iterator, Sequence

from catenary_tokenizers.ids import TOKEN_BYTES, unpack
from catenary_tokenizers.vocabulary import ControlToken

__all__ = ["Detokenizer", "PieceTable"]

_new_decoder = codecs.getincrementaldecoder("utf-8")
_LONGEST_CHARACTER = 4


class PieceTable:
    """The bytes of every id of a model, shared by its streams."""

    __slots__ = ("controls", "pieces", "texts")

    def __init__(self, pieces: Sequence[bytes], controls: Sequence[ControlToken]) -> None:
        size = max([len(pieces), *(control.id + 1 for control in controls)])
        self.pieces: list[bytes] = [*pieces, *[b""] * (size - len(pieces))]
        self.controls: dict[int, ControlToken] = {control.id: control for control in controls}
        for control in controls:
            self.pieces[control.id] = control.text.encode()
        # Only tokens that are whole characters: a step of these needs no decoder.
        self.texts: dict[int, str] = dict(_whole_texts(self.pieces, self.controls))

    def piece(self, token: int) -> bytes:
        """The bytes of one id; none for an id the vocabulary does not have (engines pad theirs)."""
        return self.pieces[token] if token < len(self.pieces) else b""

    def join(self, tokens: Sequence[int]) -> bytes:
        """The bytes of many ids."""
        try:
            return b"".join(map(self.pieces.__getitem__, tokens))
        except IndexError:
            return b"".join(map(self.piece, tokens))

    def decode(self, ids: bytes) -> str:
        """All of `ids` as text, control tokens spelled out, broken bytes as U+FFFD."""
        return self.join(unpack(ids)).decode("utf-8", "replace")


class Detokenizer:
    """One stream's text.

    Args:
        table: the model's pieces.
        prompt_tail: last ids of the prompt (four are enough); when they end inside a character, the first output
            token may complete it, and the character is then given out as a whole.
    """

    __slots__ = ("_decoder", "_pending", "_table")

    def __init__(self, table: PieceTable, prompt_tail: bytes = b"") -> None:
        self._table = table
        self._decoder = _new_decoder("replace")
        self._pending = False
        if prompt_tail:
            self._decoder.decode(self._tail_bytes(prompt_tail))
            self._pending = bool(self._decoder.getstate()[0])

    def push(self, ids: bytes) -> list[str | ControlToken]:
        """The text and control tokens that these ids (little-endian `u32`) complete, in order."""
        if not self._pending:
            if len(ids) == TOKEN_BYTES:  # most steps of a stream are one token
                one = self._table.texts.get(int.from_bytes(ids, "little"))
                if one:
                    return [one]
            try:
                text = "".join(map(self._table.texts.__getitem__, unpack(ids)))
            except KeyError:
                return self._push_bytes(unpack(ids))
            return [text] if text else []
        return self._push_bytes(unpack(ids))

    def flush(self) -> str:
        """The end of the stream: U+FFFD if a character is left incomplete, else nothing."""
        self._pending = False
        return self._decoder.decode(b"", final=True)

    def _push_bytes(self, tokens: Sequence[int]) -> list[str | ControlToken]:
        out: list[str | ControlToken] = []
        controls, start = self._table.controls, 0
        for at in [at for at, token in enumerate(tokens) if token in controls]:
            if text := self._decoder.decode(self._table.join(tokens[start:at]), final=True):
                out.append(text)
            out.append(controls[tokens[at]])
            start = at + 1
        if text := self._decoder.decode(self._table.join(tokens[start:])):
            out.append(text)
        self._pending = bool(self._decoder.getstate()[0])
        return out

    def _tail_bytes(self, prompt_tail: bytes) -> bytes:
        run = bytearray()
        for token in unpack(prompt_tail):
            if token in self._table.controls:
                run.clear()
            else:
                run += self._table.piece(token)
        return bytes(run[-(_LONGEST_CHARACTER - 1) :])


def _whole_texts(pieces: Sequence[bytes], controls: Container[int]) -> Iterator[tuple[int, str]]:
    for token, piece in enumerate(pieces):
        if token not in controls:
            with contextlib.suppress(UnicodeDecodeError):
                yield token, piece.decode()
