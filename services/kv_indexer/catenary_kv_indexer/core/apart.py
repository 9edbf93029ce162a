"""Blocks whose parent is not held.

The rule: a block whose past is unknown is never guessed into the index; it waits here until its parent comes, is
removed, or is pushed out. The room is bounded, and what is pushed out is counted and makes the link ask anew.
"""

from collections.abc import Iterable, Iterator


class Apart:
    """Blocks of one holder that wait for a parent.

    Attributes:
        pushed_out: blocks lost to the bound since `clear`.
    """

    def __init__(self, limit: int = 16_384) -> None:
        self._limit = limit
        self._children: dict[int, dict[int, int]] = {}
        self._parent: dict[int, int] = {}
        self.pushed_out = 0

    def __len__(self) -> int:
        return len(self._parent)

    def __contains__(self, one: int) -> bool:
        return one in self._parent

    def put(self, parent: int, hashes: Iterable[int], tier: int) -> None:
        """A chain that hangs on an unknown parent."""
        for one in hashes:
            if one not in self._parent and len(self._parent) >= self._limit:
                self.pushed_out += 1
                self.remove([next(iter(self._parent))])
            self._parent[one] = parent
            tiers = self._children.setdefault(parent, {})
            tiers[one] = tiers.get(one, 0) | tier
            parent = one

    def remove(self, hashes: Iterable[int]) -> None:
        """These are gone before their parent came."""
        for one in hashes:
            parent = self._parent.pop(one, None)
            if parent is not None:
                siblings = self._children[parent]
                del siblings[one]
                if not siblings:
                    del self._children[parent]

    def adopt(self, parents: Iterable[int]) -> Iterator[tuple[int, int]]:
        """Take out, parents first, every block that now hangs on a held one, with its tiers."""
        if not self._children:
            return
        waiting = [one for one in parents if one in self._children]
        while waiting:
            for child, tiers in self._children.pop(waiting.pop(), {}).items():
                del self._parent[child]
                yield child, tiers
                if child in self._children:
                    waiting.append(child)

    def clear(self) -> None:
        """Nothing waits any more."""
        self._children.clear()
        self._parent.clear()
        self.pushed_out = 0
