"""One turn and the HTTP answer it becomes, streamed or whole.

A stream's status line is held until there is something to stream, and no longer than `hold_s`, so that a refusal, or
a failure before the first token, is an honest HTTP status. An answer that is not streamed sends everything at the end,
through the same encoder.
An answer that is to be kept is kept before its end goes out: whoever has seen the end can refer to it, anywhere.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from catenary_protocols.apis.api import Api, Encoder
from catenary_protocols.errors import ErrorInfo
from catenary_protocols.turn_events import Accepted, Failed, Finished, Queued, Started, TurnEvent

from catenary_frontend.account import Account
from catenary_frontend.edge import REQUEST_ID_HEADERS
from catenary_frontend.errors import headers_for, status_of
from catenary_frontend.metrics import SLOW_READERS
from catenary_frontend.outlet import Headers, Outlet, Spawn

_STREAM_HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
EXPLAIN_HEADER = b"x-catenary-explain"
"""Of a request: tell why the turn runs where it does. Of the answer: the router's decision, as JSON."""
DIVERGED_HEADER = b"x-catenary-diverged"
"""Of the answer to such a request: where and why its prompt left its session's last one, as JSON."""
PASSED_OVER_HEADER = b"x-catenary-passed-over"
"""Of an answer: paths of what in its request nobody here knows, the first of them."""
_MOST_NAMED = 10
_ODD = re.compile(r"[^!-~]|[,;]")
_PREAMBLE = (Accepted, Queued, Started)
"""Events of a turn that may still fail before its first token."""
_CANCELLED = ErrorInfo(code="cancelled", message="the turn was cancelled")


@dataclass(frozen=True, slots=True)
class Pace:
    """How long things may take, in seconds. `resume_s`: a client that left a kept answer may come back that long."""

    hold_s: float
    heartbeat_s: float
    resume_s: float


@dataclass(frozen=True, slots=True)
class Keep:
    """Where a whole answer goes beside its client. `spawn` runs it."""

    put: Callable[[bytes], Awaitable[None]]
    spawn: Spawn


class Exchange:
    """`turns.Client` over HTTP. `stop` cancels the turn when the client does not want it any more."""

    __slots__ = (
        "_account",
        "_api",
        "_begun",
        "_clock",
        "_early",
        "_encoder",
        "_hold",
        "_keep",
        "_left_at",
        "_outlet",
        "_pace",
        "_resumable",
        "_stop",
        "_wrote_at",
    )

    def __init__(
        self,
        *,
        api: Api[Any],
        encoder: Encoder,
        outlet: Outlet,
        account: Account,
        pace: Pace,
        stop: Callable[[str], None],
        keep: Keep | None = None,
        resumable: bool = False,
    ) -> None:
        loop = asyncio.get_running_loop()
        self._api = api
        self._encoder = encoder
        self._outlet = outlet
        self._account = account
        self._pace = pace
        self._stop = stop
        self._keep = keep
        self._resumable = resumable
        self._early = b""
        self._begun = False
        self._left_at = 0.0
        self._clock = loop.time
        self._wrote_at = loop.time()
        self._hold = loop.call_later(pace.hold_s, self._open) if account.stream else None

    def deliver(self, events: Sequence[TurnEvent], *, ended: bool) -> None:
        """Write what these events say to the client."""
        if self._account.settled:
            return
        if self._keep is not None and ended and _worth_keeping(events[-1]):
            if len(events) > 1:
                self.deliver(events[:-1], ended=False)
            self._keep.spawn(self._keep_then_end(self._keep, events[-1]), "keep")
            return
        self._account.note(events)
        data = self._explained(events) + self._encoder.feed(events)
        self._begun = self._begun or any(not isinstance(event, (*_PREAMBLE, Failed)) for event in events)
        if self._hold is not None and not ended and all(isinstance(event, _PREAMBLE) for event in events):
            self._early += data
        else:
            self._write(data, _error_of(events[-1]) if ended else None, ended=ended)

    async def _keep_then_end(self, keep: Keep, end: TurnEvent) -> None:
        self._account.note((end,))
        data = self._encoder.feed((end,))
        await keep.put(self._encoder.body())
        if not self._account.settled:
            self._write(data, _error_of(end), ended=True)

    def _write(self, data: bytes, error: ErrorInfo | None, *, ended: bool) -> None:
        if self._outlet.ended:
            pass  # nobody reads it any more
        elif error is not None and not self._streams() and not self._told_in_stream(error):
            self._refuse(error)
        elif self._account.stream:
            self._stream(data, ended=ended)
        elif ended:
            self._whole(200, self._encoder.body(), ())
        if ended:
            self._account.settle()

    def _streams(self) -> bool:
        """Whether a failure now is one within the stream: something of the answer went out, or goes out with it."""
        return self._outlet.started or (self._account.stream and self._begun)

    def tick(self, now: float) -> None:
        """Send a sign of life when the stream was silent for too long; give up a client that does not come back."""
        outlet = self._outlet
        if self._left_at:
            if now - self._left_at >= self._pace.resume_s:
                self._give_up()
            return
        quiet = now - self._wrote_at >= self._pace.heartbeat_s
        if self._account.stream and outlet.started and quiet and not outlet.full and not outlet.ended:
            self._wrote_at = now
            outlet.write(self._encoder.heartbeat())

    def left(self) -> None:
        """The connection is over. If the turn is not, nobody wants it, unless it is resumed in time."""
        self._release()
        if self._account.settled:
            return
        self._outlet.ended = True
        if self._account.stream and (self._resumable or self._keep is not None):
            self._left_at = self._clock()
        else:
            self._give_up()

    def _give_up(self) -> None:
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

    def _explained(self, events: Sequence[TurnEvent]) -> bytes:
        """What was to be explained, for whom headers could not tell any more: comments in the stream."""
        if not self._account.stream or not self._outlet.started:
            return b""
        told = [(DIVERGED_HEADER, event.diverged) for event in events if isinstance(event, Accepted)]
        told += [(EXPLAIN_HEADER, event.why) for event in events if isinstance(event, Started)]
        return b"".join(b": %s %s\n\n" % (name, text.encode()) for name, text in told if text)

    def _told_in_stream(self, error: ErrorInfo) -> bool:
        return self._account.stream and error.code in self._api.in_stream

    def _open(self) -> None:
        self._release()
        if not self._outlet.started:
            self._outlet.start(200, [*_STREAM_HEADERS, *self._own_headers()])
        if self._early:
            self._outlet.write(self._early)
            self._early = b""

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
        headers = [(name, account.request_id.encode()) for name in REQUEST_ID_HEADERS]
        headers.append((b"x-catenary-turn-id", account.turn_id.encode()))
        if account.worker:
            headers.append((b"x-catenary-worker", account.worker.encode()))
        if account.diverged:
            headers.append((DIVERGED_HEADER, account.diverged.encode()))
        if account.passed_over:
            headers.append((PASSED_OVER_HEADER, _named(account.passed_over)))
        if account.why:
            headers.append((EXPLAIN_HEADER, account.why.encode()))
        headers.append((b"server-timing", account.server_timing().encode()))
        return headers


def _named(paths: Sequence[str]) -> bytes:
    """Paths as a header's value. Keys in them may hold anything."""
    return ", ".join(_ODD.sub("?", path[:100]) for path in paths[:_MOST_NAMED]).encode()


def _worth_keeping(end: TurnEvent) -> bool:
    """Whether this is an end that a client may want to read again."""
    return isinstance(end, Finished) and end.reason != "cancelled"


def _error_of(end: TurnEvent) -> ErrorInfo | None:
    """The error a turn ended in, if it did."""
    if isinstance(end, Failed):
        return end.error
    return _CANCELLED if isinstance(end, Finished) and end.reason == "cancelled" else None
