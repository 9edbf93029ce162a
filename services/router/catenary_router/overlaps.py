"""Asks the kv-indexer who holds a prompt's blocks, behind the breaker."""

import asyncio
from collections.abc import Callable

from catenary_protocols.bus.codec import Decoder, encode
from catenary_protocols.bus.messages import Overlap, OverlapQuery, PlaceTurn
from catenary_runtime.bus import Ask, Bus, Headers
from nats.aio.msg import Msg

from catenary_router.core.breaker import Breaker
from catenary_router.metrics import OVERLAP_QUERIES

_decode: Decoder[Overlap] = Decoder(Overlap)
Answered = Callable[[Overlap | None], None]


class Overlaps:
    """Each question is answered exactly once, with None when no answer came in time."""

    def __init__(self, bus: Bus, timeout_s: float) -> None:
        self._bus = bus
        self._timeout_s = timeout_s
        self._breaker = Breaker()
        self._loop = asyncio.get_running_loop()

    @property
    def open(self) -> bool:
        """Turns are placed without it."""
        return self._breaker.open

    def ask(self, place: PlaceTurn, answered: Answered, headers: Headers | None) -> None:
        """Ask for the overlap of a turn's prompt. A probe keeps nobody waiting."""
        if not self._breaker.allows(self._loop.time()):
            OVERLAP_QUERIES.labels(result="skipped").inc()
            answered(None)
            return
        if self._breaker.open:
            answered(None)
            answered = _nobody_waits
        query = OverlapQuery(model=place.model, block_size=place.block_size, hashes=place.hashes)
        question = _Question(self, answered)
        question.timer = self._loop.call_later(self._timeout_s, question.failed, "timeout")
        question.ask = self._bus.ask(
            self._bus.subjects.to("overlap", model=place.model),
            encode(query),
            question.replied,
            lambda: question.failed("nobody"),
            headers=headers,
        )

    def settled(self, result: str) -> None:
        """Count an outcome."""
        OVERLAP_QUERIES.labels(result=result).inc()
        if result == "ok":
            self._breaker.succeeded()
        else:
            self._breaker.failed(self._loop.time())


class _Question:
    """One query that is out."""

    ask: Ask
    timer: asyncio.TimerHandle

    def __init__(self, overlaps: Overlaps, answered: Answered) -> None:
        self._overlaps = overlaps
        self._answered = answered
        self._done = False

    def replied(self, msg: Msg) -> None:
        overlap = _decode(msg.data)
        if self._close():
            self._overlaps.settled("ok")
            self._answered(overlap)

    def failed(self, result: str) -> None:
        if self._close():
            self._overlaps.settled(result)
            self._answered(None)

    def _close(self) -> bool:
        if self._done:
            return False
        self._done = True
        self.timer.cancel()
        self.ask.close()
        return True


def _nobody_waits(_: Overlap | None) -> None:
    """A probe's answer only closes the breaker."""
