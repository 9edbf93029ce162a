"""How many sessions begin alike.

The rule: a prefix that many sessions share will be asked for again on any worker that has it, so computing it once more
is paid by all who will come, not by the one turn that happens to be first. Sessions are counted at some lengths only
(see `marks`); and by bits of a mask that each session sets one of, so that one that comes back counts once.
"""

from collections.abc import Sequence
from math import log
from zlib import crc32

from catenary_router.core.marks import Mark

WINDOW_S = 30.0
MANY = 32
"""With so many other sessions in the window, a shared block is at half price."""
COUNTED = 200_000
"""Prefixes counted in a window; when there are more, the window is shorter."""
_BITS = 128
_CROWD = 15
"""Bits that more than half of `MANY` sessions set."""


class Popular:
    """Counts of the present and the last window."""

    def __init__(self) -> None:
        self._now: dict[int, int] = {}
        self._before: dict[int, int] = {}
        self._turned_at = 0.0

    def placed(self, session: str, marks: Sequence[Mark], now: float) -> None:
        """A turn of the session was placed."""
        if now - self._turned_at > WINDOW_S or len(self._now) > COUNTED:
            self._before = self._now if now - self._turned_at < 2 * WINDOW_S else {}
            self._now, self._turned_at = {}, now
        bit = 1 << crc32(session.encode()) % _BITS
        for _, one in marks:
            self._now[one] = self._now.get(one, 0) | bit

    def shared(self, marks: Sequence[Mark], now: float) -> tuple[int, float]:
        """Leading blocks that are shared by many, and what one of them costs: 1 is the full price."""
        if now - self._turned_at > 2 * WINDOW_S:
            return 0, 1.0
        for end, one in reversed(marks):
            bits = max(self._now.get(one, 0).bit_count(), self._before.get(one, 0).bit_count())
            if bits > _CROWD:
                return end, 1.0 / (1.0 + (_sessions(bits) / MANY) ** 2)
        return 0, 1.0


def _sessions(bits: int) -> float:
    """How many set so many bits, each one at random."""
    return -_BITS * log(1.0 - min(bits, _BITS - 1) / _BITS)
