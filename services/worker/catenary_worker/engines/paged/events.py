"""The order in which blocks came and went, as few KV events as tell it.

Rule: events leave in the order in which things happened; neighbours of one chain, or several removals in a row, become
one event.
"""

from array import array

from catenary_worker.engines.base import KvEvent, Removed, Stored


class EventLog:
    """Collects what a block pool does between two steps."""

    def __init__(self) -> None:
        self._events: list[KvEvent] = []
        self._removed: list[int] = []
        self._hashes: list[int] = []
        self._tokens: array[int] = array("I")
        self._parent: int | None = None
        self._salt = ""

    def stored(self, parent: int | None, block: int, tokens: "array[int]", salt: str) -> None:
        """A block with this hash is held from now on; `tokens` are its ids."""
        if not self._hashes or parent != self._hashes[-1] or salt != self._salt:
            self._close()
            self._parent, self._salt = parent, salt
        self._hashes.append(block)
        self._tokens.extend(tokens)

    def removed(self, block: int) -> None:
        """The block with this hash is held no longer."""
        if self._hashes:
            self._close()
        self._removed.append(block)

    def drain(self) -> list[KvEvent]:
        """All events since the last drain."""
        self._close()
        events, self._events = self._events, []
        return events

    def _close(self) -> None:
        if self._hashes:
            self._events.append(Stored(self._parent, tuple(self._hashes), self._tokens, self._salt))
            self._hashes, self._tokens = [], array("I")
        elif self._removed:
            self._events.append(Removed(tuple(self._removed)))
            self._removed = []
