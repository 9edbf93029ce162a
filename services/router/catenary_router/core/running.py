"""What the turns of a worker hold of its cache.

The rule: a turn is here from its placement until the worker's beat says that it ended, or does not name it though it
had time to. Blocks of a prompt that such turns hold are among the used ones already; all others of it will be, be they
cached or not. Prompts are compared at some lengths only (see `marks`); what lies between two of them counts as not
held.
"""

from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass

from catenary_router.core.marks import Mark


@dataclass(frozen=True, slots=True)
class _Turn:
    marks: Sequence[Mark]
    at: float


class Running:
    """Of one worker."""

    def __init__(self) -> None:
        self._turns: dict[str, _Turn] = {}
        self._holders: Counter[int] = Counter()

    def placed(self, turn_id: str, marks: Sequence[Mark], now: float) -> None:
        """A turn was placed there."""
        self.release(turn_id)
        self._turns[turn_id] = _Turn(marks, now)
        self._holders.update(mark for _, mark in marks)

    def release(self, turn_id: str) -> None:
        """It is there no more; a second time does nothing."""
        turn = self._turns.pop(turn_id, None)
        if turn is not None:
            self._holders.subtract(mark for _, mark in turn.marks)
            for _, mark in turn.marks:
                if not self._holders[mark]:
                    del self._holders[mark]

    def heard(self, named: Container[str], before: float) -> None:
        """A beat; a turn that it does not name and that was placed `before` then is not there."""
        for turn_id in [one for one, turn in self._turns.items() if turn.at < before and one not in named]:
            self.release(turn_id)

    def held(self, marks: Sequence[Mark]) -> int:
        """Leading blocks of a prompt that turns hold."""
        holders = self._holders
        low, high = 0, len(marks)
        while low < high:
            middle = (low + high) >> 1
            if marks[middle][1] in holders:
                low = middle + 1
            else:
                high = middle
        return marks[low - 1][0] if low else 0
