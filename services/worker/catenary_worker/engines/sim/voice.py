"""What a turn says, position by position: token after token, or piece after piece."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Protocol

from catenary_worker.engines.paged import Ended


class Voice(Protocol):
    """Ids as a function of the position, counted from the original prompt.

    Attributes:
        finite: it may end by itself; otherwise `ended` need not be asked.
    """

    finite: bool

    def next(self, at: int) -> tuple[int, ...]:
        """The ids that one step gives from this position on; none at the end."""

    def ended(self, at: int) -> Ended | None:
        """Whether, and how, it is over when so many ids were said."""


class Speech:
    """Steps of one id each, from a stream that may never end."""

    def __init__(self, steps: Iterator[tuple[int, ...]], *, finite: bool) -> None:
        self.finite = finite
        self._rest = steps
        self._steps: list[tuple[int, ...]] = []

    def next(self, at: int) -> tuple[int, ...]:
        """See `Voice`."""
        steps = self._steps
        while at >= len(steps):
            following = next(self._rest, None)
            if following is None:
                return ()
            steps.append(following)
        return steps[at]

    def ended(self, at: int) -> Ended | None:
        """See `Voice`: only where the stream is over, which a model with an end token never lets happen."""
        return None if self.next(at) else Ended("stop")


class Recital:
    """Given pieces, one a step, and a given end."""

    finite = True

    def __init__(self, pieces: Iterable[Sequence[int]], end: Ended) -> None:
        self._pieces = [tuple(piece) for piece in pieces if piece]
        self._starts = [0, *accumulate(map(len, self._pieces))]
        self._end = end

    def next(self, at: int) -> tuple[int, ...]:
        """See `Voice`; a turn that moved in the middle of a piece gets the rest of it."""
        index = bisect_right(self._starts, at) - 1
        return self._pieces[index][at - self._starts[index] :] if index < len(self._pieces) else ()

    def ended(self, at: int) -> Ended | None:
        """See `Voice`."""
        return self._end if at >= self._starts[-1] else None
