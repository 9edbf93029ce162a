"""A turn's events, numbered from 1. The rule: an event once logged is what every reader of that number gets."""

from dataclasses import dataclass, field

from catenary_protocols.turn_events import ArgumentsDelta, CallComplete, ReasoningDelta, TextDelta, TurnEvent

_FIXED_COST = 64
_PIECE_COST = 32


@dataclass(slots=True)
class EventLog:
    """Events of one turn. `size` estimates their bytes."""

    events: list[TurnEvent] = field(default_factory=list)
    size: int = 0

    @property
    def last(self) -> int:
        """Number of the newest event; 0 when there is none."""
        return len(self.events)

    def append(self, events: list[TurnEvent]) -> int:
        """Add events; the number of the first of them."""
        first = len(self.events) + 1
        self.events += events
        for event in events:
            match event:
                case TextDelta(tokens=tokens) if tokens:
                    pieces = sum(1 + len(token.top) for token in tokens)
                    self.size += _FIXED_COST + len(event.text) + _PIECE_COST * pieces
                case TextDelta() | ReasoningDelta() | ArgumentsDelta():
                    self.size += _FIXED_COST + len(event.text)
                case CallComplete():
                    self.size += _FIXED_COST + len(event.arguments)
                case _:
                    self.size += _FIXED_COST
        return first

    def since(self, after: int) -> list[TurnEvent]:
        """Events with numbers above `after`."""
        return self.events[after:]
