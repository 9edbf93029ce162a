"""Token ids as they travel: little-endian `u32`, four bytes each."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable

__all__ = ["TOKEN_BYTES", "common_tokens", "pack", "unpack"]

TOKEN_BYTES = 4
_SWAP = sys.byteorder == "big"


def pack(ids: Iterable[int]) -> bytes:
    """Ids as bytes; `OverflowError` for one that is not in 0..2³²-1."""
    packed = array("I", ids)
    if _SWAP:
        packed.byteswap()
    return packed.tobytes()


def unpack(packed: bytes) -> array[int]:
    """Bytes as an array of ids; `ValueError` when they are not whole ids."""
    ids = array("I")
    ids.frombytes(packed)
    if _SWAP:
        ids.byteswap()
    return ids


def common_tokens(left: bytes, right: bytes) -> int:
    """How many tokens two packed sequences begin with in common."""
    if right.startswith(left):
        return len(left) // TOKEN_BYTES
    low, high = 0, min(len(left), len(right)) // TOKEN_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        if left[low * TOKEN_BYTES : middle * TOKEN_BYTES] == right[low * TOKEN_BYTES : middle * TOKEN_BYTES]:
            low = middle
        else:
            high = middle - 1
    return low
