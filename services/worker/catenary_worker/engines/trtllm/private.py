"""Turns whose blocks the mesh must not hear of: those with a salt or an adapter.

Rule: KV events say neither salt nor adapter, so a block at the start of a prompt that could be theirs is taken for
theirs. What hangs on it is then unknown, and stays out as well: the index gets smaller, never wrong.
"""

from array import array
from collections import Counter
from dataclasses import dataclass

GRACE_S = 30.0
"""Blocks of a turn can be told of a little after it ended."""


@dataclass(slots=True)
class _Beginning:
    """`until`: when nobody of it runs any more, how long it is still remembered."""

    turns: int = 0
    until: float = 0.0


class PrivateTurns:
    """How the prompts of such turns begin: their first block, or all of one that is shorter."""

    def __init__(self) -> None:
        self._beginnings: dict[bytes, _Beginning] = {}
        self._lengths: Counter[int] = Counter()

    def began(self, ids: "array[int]", block_size: int) -> None:
        """Before the engine hears of the turn."""
        key = ids[:block_size].tobytes()
        if key not in self._beginnings:
            self._beginnings[key] = _Beginning()
            self._lengths[len(key)] += 1
        self._beginnings[key].turns += 1

    def ended(self, ids: "array[int]", block_size: int, now: float) -> None:
        """The engine is done with the turn."""
        beginning = self._beginnings[ids[:block_size].tobytes()]
        beginning.turns -= 1
        beginning.until = now + GRACE_S

    def hides(self, first_block: "array[int]", now: float) -> bool:
        """Whether this may be the first block of such a turn."""
        packed = first_block.tobytes()
        for length in [*self._lengths]:
            key = packed[:length]
            beginning = self._beginnings.get(key)
            if beginning is not None:
                if beginning.turns or now < beginning.until:
                    return True
                del self._beginnings[key]
                self._lengths[length] -= 1
        self._lengths += Counter()
        return False
