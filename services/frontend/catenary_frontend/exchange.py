"""One turn and the HTTP answer it becomes, streamed or whole.

A stream's status line is held until the mesh has taken or refused the turn, and no longer than `hold_s`, so that a
refusal is an honest HTTP status. An answer that is not streamed sends everything at the end, through the same encoder.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from catenary_protocols.apis.api import Api, Encoder
from catenary_protocols.errors import ErrorInfo
from catenary_protocols.turn_events import Failed, Finished, TurnEvent

from catenary_frontend.account import Account
from catenary_frontend.errors import headers_for, status_of
from catenary_frontend.metrics import SLOW_READERS
from catenary_frontend.outlet import Headers, Outlet

_STREAM_HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
_CANCELLED = ErrorInfo(code="cancelled", message="the turn was cancelled")


@dataclass(frozen=True, slots=True)
class Pace:
    """How long things may take, in seconds."""

    hold_s: float
    heartbeat_s: float


class Exchange:
    """`turns.Client` over HTTP. `stop` cancels the turn when the client does not want it any more."""

    __slots__ = ("_account", "_api", "_clock", "_encoder", "_hold", "_outlet", "_pace", "_stop", "_wrote_at")

    def __init__(
        self,
        *,
        api: Api,
        encoder: Encoder,
        outlet: Outlet,
        account: Account,
        pace: Pace,
        stop: Callable[[str], None],
    ) -> None:
        loop = asyncio.get_running_loop()
        self._api = api
        self._encoder = encoder
        self._outlet = outlet
        self._account = account
        self._pace = pace
        self._stop = stop
        self._clock = loop.time
        self._wrote_at = loop.time()
        self._hold = loop.call_later(pace.hold_s, self._open) if account.stream else None

    def deliver(self, events: Sequence[TurnEvent], *, ended: bool) -> None:
        """Write what these events say to the client."""
        if self._outlet.ended:
            return
        self._account.note(events)
        data = self._encoder.feed(events)
        error = _error_of(events[-1]) if ended else None
        if error is not None and not self._outlet.started:
            self._refuse(error)
        elif self._account.stream:
            self._stream(data, ended=ended)
        elif ended:
            self._whole(200, self._encoder.body(), ())
        if ended:
            self._account.settle()

    def tick(self, now: float) -> None:
        """Send a sign of life when the stream was silent for too long."""
        outlet = self._outlet
        quiet = now - self._wrote_at >= self._pace.heartbeat_s
        if self._account.stream and outlet.started and quiet and not outlet.full and not outlet.ended:
            self._wrote_at = now
            outlet.write(self._encoder.heartbeat())

    def left(self) -> None:
        """The connection is over. If the turn is not, nobody wants it."""
        self._release()
        if not self._account.settled:
            self._outlet.ended = True
            self._stop("the client left")
            self._account.settle("cancelled")

    # --- streamed -----------------------------------------------------------------------------------------------

    def _stream(self, data: bytes, *, ended: bool) -> None:
        self._open()
        if not data and not ended:
            return
        self._wrote_at = self._clock()
        self._outlet.write(data, last=ended)
        if self._outlet.overrun and not self._outlet.ended:
            self._cut()

    def _open(self) -> None:
        self._release()
        if not self._outlet.started:
            self._outlet.start(200, [*_STREAM_HEADERS, *self._own_headers()])

    def _release(self) -> None:
        if self._hold is not None:
            self._hold.cancel()
            self._hold = None

    def _cut(self) -> None:
        SLOW_READERS.inc()
        error = ErrorInfo(code="slow_reader", message="the client did not read its stream")
        self._outlet.write(self._encoder.feed((Failed(error=error),)), last=True)
        self._stop("slow reader")
        self._account.settle(error.code)

    # --- whole --------------------------------------------------------------------------------------------------

    def _refuse(self, error: ErrorInfo) -> None:
        self._release()
        self._whole(status_of(error), self._api.error(error, self._account.request_id), headers_for(error))

    def _whole(self, status: int, body: bytes, more: Sequence[tuple[bytes, bytes]]) -> None:
        length = (b"content-length", b"%d" % len(body))
        kind = (b"content-type", b"application/json")
        self._outlet.start(status, [kind, length, *self._own_headers(), *more])
        self._outlet.write(body, last=True)

    def _own_headers(self) -> Headers:
        account = self._account
        headers = [(b"x-request-id", account.request_id.encode()), (b"x-catenary-turn-id", account.turn_id.encode())]
        if account.worker:
            headers.append((b"x-catenary-worker", account.worker.encode()))
        headers.append((b"server-timing", account.server_timing().encode()))
        return headers


def _error_of(end: TurnEvent) -> ErrorInfo | None:
    """The error a turn ended in, if it did."""
    if isinstance(end, Failed):
        return end.error
    return _CANCELLED if isinstance(end, Finished) and end.reason == "cancelled" else None
