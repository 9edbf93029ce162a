"""A stream that can be resumed: every server-sent event of it has an id, which a client sends back as `Last-Event-ID`.

An id is `<turn event>.<server-sent event of it>`, both from 1. The rule: what a turn event becomes depends only on the
events before it, so another encoder that is fed the same log writes the same events under the same ids.
"""

import re
from collections.abc import Mapping, Sequence

from catenary_protocols.apis.api import Encoder
from catenary_protocols.apis.reading import wrong
from catenary_protocols.turn_events import TurnEvent

LAST_EVENT_ID = "last-event-id"
RESUMABLE = "x-catenary-resumable"
"""Request header by which a client wants its stream to be resumable."""
_ID = re.compile(r"(\d{1,9})\.(\d{1,9})")
_END = b"\n\n"
Place = tuple[int, int]


class Numbered:
    """`api.Encoder` around another. Events up to `after` are not written: their reader has them."""

    __slots__ = ("_after", "_encoder", "_number")

    def __init__(self, encoder: Encoder, after: Place = (0, 0)) -> None:
        self._encoder = encoder
        self._number = 0
        self._after = after

    def feed(self, events: Sequence[TurnEvent]) -> bytes:
        """As the encoder's, with ids."""
        out = bytearray()
        for one in events:
            self._number += 1
            for part, text in enumerate(self._encoder.feed((one,)).split(_END)[:-1], start=1):
                if (self._number, part) > self._after:
                    out += b"id: %d.%d\n%b\n\n" % (self._number, part, text)
        return bytes(out)

    def heartbeat(self) -> bytes:
        """As the encoder's: no event of the turn."""
        return self._encoder.heartbeat()

    def body(self) -> bytes:
        """As the encoder's."""
        return self._encoder.body()


def wants_to_resume(headers: Mapping[str, str]) -> bool:
    """Whether a request asks for a stream that can be resumed."""
    return headers.get(RESUMABLE, "").lower() in {"1", "true"}


def last_event(headers: Mapping[str, str]) -> Place:
    """What a client has; raises `RequestError` for what is no id of ours. Without the header: nothing."""
    said = headers.get(LAST_EVENT_ID, "")
    if not said:
        return 0, 0
    match = _ID.fullmatch(said)
    if match is None:
        raise wrong(LAST_EVENT_ID, "must be the id of an event of this stream")
    return int(match[1]), int(match[2])
