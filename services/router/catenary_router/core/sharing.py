"""Blocks that are about to be held: those of turns just placed.

The rule: a placement's blocks count at once, so that siblings that come in a burst share one worker's prefill before a
single KV event has come back; they count for seconds where events come (the index knows better then) and for minutes
where none do, so that a session still returns to its worker when the event stream is dead.
"""

from collections.abc import Sequence

BRIEF_S = 5.0
LONG_S = 120.0


class _Expected:
    """Two generations of block hashes; the older one is dropped at each turn of the page."""

    __slots__ = ("fresh", "old", "turned_at", "young")

    def __init__(self, now: float) -> None:
        self.fresh: list[Sequence[int]] = []
        self.young: set[int] = set()
        self.old: set[int] = set()
        self.turned_at = now

    def settle(self) -> None:
        """Into the younger generation."""
        self.young.update(*self.fresh)
        self.fresh.clear()

    def age(self, period: float, now: float) -> None:
        if now - self.turned_at > 2 * period:
            self.young = set()
        if now - self.turned_at > period:
            self.old, self.young, self.turned_at = self.young, set(), now


class Sharing:
    """What each worker is expected to hold soon."""

    def __init__(self) -> None:
        self._expected: dict[str, _Expected] = {}
        self._unsettled: set[str] = set()

    def placed(self, worker: str, hashes: Sequence[int], now: float) -> None:
        """These blocks will be computed there; sorted in by `settle`, or when somebody asks about them."""
        expected = self._expected.get(worker)
        if expected is None:
            expected = self._expected[worker] = _Expected(now)
        expected.fresh.append(hashes)
        self._unsettled.add(worker)

    def settle(self) -> None:
        """Sort in what was placed: that takes longer than a decision, and no answer has to wait for it."""
        for worker in self._unsettled:
            if (expected := self._expected.get(worker)) is not None:
                expected.settle()
        self._unsettled.clear()

    def overlap(self, worker: str, hashes: Sequence[int], held: int, now: float, *, known: bool) -> int:
        """Leading blocks held or expected, when the index says `held`; `known`: the worker's events come."""
        expected = self._expected.get(worker)
        if expected is None:
            return held
        if expected.fresh:
            expected.settle()
        expected.age(BRIEF_S if known else LONG_S, now)
        young, old = expected.young, expected.old
        end = len(hashes)
        low, step = held, 1  # blocks before `low` are there; gallop, then halve
        while low < end and (hashes[low] in young or hashes[low] in old):
            high = min(low + step, end - 1)
            while high > low and not (hashes[high] in young or hashes[high] in old):
                high = (low + high) >> 1
            low = high + 1
            step *= 2
        return low

    def gone(self, worker: str) -> None:
        """It is dead, and what it held with it."""
        self._expected.pop(worker, None)
