"""Rule: a turn's events reach its client in order, each once; what is missing is asked for, never skipped."""

from collections.abc import Sequence

from catenary_protocols.turn_events import TurnEvent


class Received:
    """How far a turn's log has come. `last` is the sequence number of the last event taken (0: none)."""

    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last = 0

    def take(self, first: int, events: Sequence[TurnEvent]) -> Sequence[TurnEvent] | None:
        """Those of the events that are new; None when some before them are missing."""
        known = self.last + 1 - first
        if known < 0:
            return None
        if known:
            events = events[known:]
        self.last += len(events)
        return events
