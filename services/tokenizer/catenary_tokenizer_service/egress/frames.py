"""Event frames: what all turns of one frontend got in one batch leaves in one message."""

import asyncio

from catenary_protocols.bus.codec import encode
from catenary_protocols.bus.messages import EventFrame, TurnEvents
from catenary_protocols.turn_events import TurnEvent
from catenary_runtime.bus import LONGEST_MESSAGE, Bus
from catenary_runtime.links import LinkSender
from catenary_runtime.presence import Presence
from msgspec import structs

from catenary_tokenizer_service.turn import Turn

EVENTS_PER_ITEM = 4_000
ITEMS_PER_FRAME = 512


class Outbox:
    """Collects events by frontend; `flush` sends, at the latest when the loop comes round."""

    def __init__(self, bus: Bus, presence: Presence) -> None:
        self.links = LinkSender()
        self._bus = bus
        self._presence = presence
        self._waiting: dict[str, list[TurnEvents]] = {}
        self._scheduled = False

    def add(self, turn: Turn, events: list[TurnEvent]) -> None:
        """Log events of a turn and send them."""
        first = turn.log.append(events)
        self._put(turn, first, tuple(events))

    def again(self, turn: Turn, after: int) -> None:
        """Send what the log has after an event number."""
        events = turn.log.since(after)
        for at in range(0, len(events), EVENTS_PER_ITEM):
            self._put(turn, after + 1 + at, tuple(events[at : at + EVENTS_PER_ITEM]))

    def _put(self, turn: Turn, first: int, events: tuple[TurnEvent, ...]) -> None:
        item = TurnEvents(turn_id=turn.turn_id, first=first, events=events, attempt=turn.generated.attempt)
        self._waiting.setdefault(turn.frontend, []).append(item)
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        """Send now."""
        self._scheduled = False
        waiting, self._waiting = self._waiting, {}
        for frontend, items in waiting.items():
            for at in range(0, len(items), ITEMS_PER_FRAME):
                self._send(frontend, tuple(items[at : at + ITEMS_PER_FRAME]), self.links.next(frontend))

    def _send(self, frontend: str, items: tuple[TurnEvents, ...], number: int) -> None:
        """One frame, or two where the bus could not carry it: whole logs of many turns may be asked for at once."""
        presence = self._presence
        frame = EventFrame(tokenizer=presence.instance, incarnation=presence.incarnation, number=number, items=items)
        data = encode(frame)
        if len(data) > LONGEST_MESSAGE and (halves := _halves(items)):
            self._send(frontend, halves[0], number)
            self._send(frontend, halves[1], self.links.next(frontend))
        else:
            self._bus.publish(self._bus.subjects.to("events", frontend=frontend), data)


def _halves(items: tuple[TurnEvents, ...]) -> tuple[tuple[TurnEvents, ...], tuple[TurnEvents, ...]] | None:
    """None for a single event."""
    if (middle := len(items) // 2) > 0:
        return items[:middle], items[middle:]
    (item,) = items
    if (middle := len(item.events) // 2) == 0:
        return None
    rest = structs.replace(item, first=item.first + middle, events=item.events[middle:])
    return (structs.replace(item, events=item.events[:middle]),), (rest,)
