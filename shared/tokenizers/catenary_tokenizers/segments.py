"""A prompt's segments, each encoded once.

Control tokens are hard borders: what stands between two of them encodes the same in every prompt. The next turn of a
session therefore costs its new segments alone. The cache is bounded in bytes and holds two generations: entries that
were not asked for while the young one filled are dropped with the old one, so that a hit is one look-up and moves
nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

__all__ = ["CacheStats", "SegmentCache"]

_SLOT = 104  # bytes a dictionary takes for an entry beside its two objects, growth included


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Counts since the cache was made; `bytes` is what it holds now."""

    hits: int
    misses: int
    missed_characters: int
    entries: int
    bytes: int


class SegmentCache:
    """Text to packed ids, bounded.

    Args:
        max_bytes: the most that texts, ids and their bookkeeping may take; 0 caches nothing.
    """

    __slots__ = ("_half", "_hits", "_missed", "_misses", "_old", "_old_bytes", "_young", "_young_bytes")

    def __init__(self, max_bytes: int) -> None:
        self._half = max_bytes // 2
        self.clear()

    def clear(self) -> None:
        """Forget everything, counts too."""
        self._young: dict[str, bytes] = {}
        self._old: dict[str, bytes] = {}
        self._young_bytes = self._old_bytes = 0
        self._hits = self._misses = self._missed = 0

    def get(self, text: str, encode: Callable[[str], bytes]) -> bytes:
        """The ids of `text`, from here or from `encode`."""
        ids = self._young.get(text)
        if ids is not None:
            self._hits += 1
            return ids
        ids = self._old.get(text)
        if ids is None:
            self._misses += 1
            self._missed += len(text)
            ids = encode(text)
        else:
            self._hits += 1
        self.keep(text, ids)
        return ids

    def get_all(self, texts: Sequence[str], encode: Callable[[str], bytes]) -> list[bytes]:
        """`get` of every text, quick where all are here."""
        found = list(map(self._young.get, texts))
        missing = found.count(None)
        self._hits += len(found) - missing
        if missing:
            return [self.get(text, encode) if ids is None else ids for text, ids in zip(texts, found, strict=True)]
        return cast("list[bytes]", found)

    @property
    def stats(self) -> CacheStats:
        """What the cache has done and holds."""
        return CacheStats(
            hits=self._hits,
            misses=self._misses,
            missed_characters=self._missed,
            entries=len(self._young | self._old),
            bytes=self._young_bytes + self._old_bytes,
        )

    def holds(self, text: str) -> bool:
        """Whether the ids of `text` are here."""
        return text in self._young or text in self._old

    def keep(self, text: str, ids: bytes) -> None:
        """Put in what was encoded elsewhere."""
        size = _SLOT + sys.getsizeof(text) + sys.getsizeof(ids)
        if size > self._half:
            return
        if self._young_bytes + size > self._half:
            self._old, self._old_bytes = self._young, self._young_bytes
            self._young, self._young_bytes = {}, 0
        self._young[text] = ids
        self._young_bytes += size
