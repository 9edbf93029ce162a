"""What a vocabulary's ids stand for: the bytes of each plain token, and the control tokens.

A *control token* is an added token that can be a marker: those of white space alone or of one character are text,
whatever their flags, since nothing can be smuggled in with them and ordinary text is full of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["AddedToken", "ControlToken", "byte_alphabet", "piece_bytes"]

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")


@dataclass(frozen=True, slots=True)
class ControlToken:
    """A marker of the model's format as one token; `special` is the vocabulary's own flag for "hide from users"."""

    id: int
    text: str
    special: bool


@dataclass(frozen=True, slots=True)
class AddedToken:
    """An entry of `added_tokens` with the flags that decide how it is found in text."""

    id: int
    text: str
    special: bool = False
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = False

    @property
    def is_control(self) -> bool:
        """Whether it can be a marker (see the module's first lines)."""
        return len(self.text) > 1 and not self.text.isspace() and bool(self.text.strip("▁ \t\r\n"))


def byte_alphabet() -> dict[str, int]:
    """The printable character of each byte in byte-level BPE vocabularies, reversed."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


def piece_bytes(vocab: Mapping[str, int], decoders: Sequence[str]) -> list[bytes]:
    """The bytes of each id, `b""` where the vocabulary has a hole.

    Args:
        vocab: token text to id, added tokens left out.
        decoders: types in `tokenizer.json`'s decoder, flattened.

    Raises:
        ValueError: a decoder whose tokens are not a fixed run of bytes each.
    """
    pieces = [b""] * (max(vocab.values(), default=-1) + 1)
    if "ByteLevel" in decoders:
        alphabet = byte_alphabet()
        for text, index in vocab.items():
            pieces[index] = _byte_level(text, alphabet)
        return pieces
    if not {"Metaspace", "ByteFallback", "Replace"} & set(decoders):
        raise ValueError(f"tokens of a {'/'.join(decoders) or 'missing'} decoder have no bytes of their own")
    for text, index in vocab.items():
        byte = _BYTE_TOKEN.match(text)
        pieces[index] = bytes([int(byte[1], 16)]) if byte else text.replace("▁", " ").encode()
    return pieces


def _byte_level(text: str, alphabet: Mapping[str, int]) -> bytes:
    try:
        return bytes(map(alphabet.__getitem__, text))
    except KeyError:  # not written in the byte alphabet: such an entry decodes to its own text
        return text.encode()
