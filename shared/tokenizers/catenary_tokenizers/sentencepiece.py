"""A SentencePiece model file as a `tokenizer.json`: its pieces, scores and types are all that encoding needs.

The file is a protocol buffer; of its messages only the pieces (field 1), the trainer's `model_type` (2.3) and the
normaliser's name (3.1) are read. Text is encoded as `SentencePieceProcessor.encode` does: a leading space is added.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Piece", "spec_from_pieces", "spec_from_sentencepiece"]

_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 2, 3, 4, 6
_BPE = 2
_SPACE = "▁"


@dataclass(frozen=True, slots=True)
class Piece:
    """A token: its text, how early it is merged (greater is earlier), and its type."""

    text: str
    score: float
    kind: int


def spec_from_sentencepiece(content: bytes) -> dict[str, Any]:
    """The vocabulary of a `tokenizer.model`. `ValueError` for a model that is not BPE, or normalises text."""
    pieces: list[Piece] = []
    model_type: int | bytes = 1
    normaliser = ""
    for field, value in _fields(content):
        if field == 1:
            pieces.append(_piece(dict(_fields(_message(value)))))
        elif field == 2:
            model_type = dict(_fields(_message(value))).get(3, model_type)
        elif field == 3:
            normaliser = _message(dict(_fields(_message(value))).get(1, b"")).decode()
    if model_type != _BPE or normaliser not in {"", "identity"}:
        raise ValueError(
            f"a SentencePiece model of type {model_type!r} with normaliser {normaliser!r} is not read here"
        )
    return spec_from_pieces(pieces)


def spec_from_pieces(pieces: Sequence[Piece], *, leading_space: bool = True) -> dict[str, Any]:
    """The same of pieces in the order of their ids.

    Args:
        pieces: with SentencePiece's types: 2 unknown, 3 control, 4 user-defined, 6 byte.
        leading_space: whether a text gets one.
    """
    vocab = {piece.text: index for index, piece in enumerate(pieces)}
    unknown = next((piece.text for piece in pieces if piece.kind == _UNKNOWN), None)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added(index, piece) for index, piece in enumerate(pieces) if piece.kind in _ADDED],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                *([{"type": "Prepend", "prepend": _SPACE}] if leading_space else []),
                {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE},
            ],
        },
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": unknown,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": any(piece.kind == _BYTE for piece in pieces),
            "ignore_merges": False,
            "vocab": vocab,
            "merges": _merges(pieces, vocab),
        },
    }


_ADDED = frozenset({_UNKNOWN, _CONTROL, _USER_DEFINED})


def _piece(fields: Mapping[int, int | bytes]) -> Piece:
    score = struct.unpack("<f", _message(fields.get(2, b"\0\0\0\0")))[0]
    kind = fields.get(3, 1)
    return Piece(_message(fields[1]).decode(), score, kind if isinstance(kind, int) else 0)


def _added(index: int, piece: Piece) -> dict[str, Any]:
    return {
        "id": index,
        "content": piece.text,
        "special": piece.kind != _USER_DEFINED,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
    }


def _merges(pieces: Sequence[Piece], vocab: Mapping[str, int]) -> list[list[str]]:
    """Every way to put a piece together from two others, the best scores first."""
    plain = {piece.text for piece in pieces if piece.kind not in _ADDED and piece.kind != _BYTE}
    merges: list[tuple[float, int, str, str]] = []
    for piece in pieces:
        if piece.text in plain:
            cuts = [(piece.text[:at], piece.text[at:]) for at in range(1, len(piece.text))]
            merges += [(-piece.score, vocab[piece.text], a, b) for a, b in cuts if a in plain and b in plain]
    merges.sort(key=lambda merge: (merge[0], merge[1], vocab[merge[2]], vocab[merge[3]]))
    return [[left, right] for _, _, left, right in merges]


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protocol buffer: numbers of varints, bytes of everything else."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == 0:
            value: int | bytes
            value, at = _varint(message, at)
        elif kind in _FIXED:
            value, at = message[at : at + _FIXED[kind]], at + _FIXED[kind]
        elif kind == 2:
            length, at = _varint(message, at)
            value, at = message[at : at + length], at + length
        else:
            raise ValueError(f"not a SentencePiece model: wire type {kind}")
        yield tag >> 3, value


_FIXED = {1: 8, 5: 4}


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message):
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise ValueError("not a SentencePiece model: it ends inside a number")


def _message(value: int | bytes) -> bytes:
    if isinstance(value, bytes):
        return value
    raise ValueError("not a SentencePiece model: a number where a message is wanted")
