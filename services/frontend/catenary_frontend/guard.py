"""Bounds on connections: how many there may be, how long a request may take to come, how long its head may be.

A client that sends a byte now and then costs a socket and a timer for `head_s`, and no more. uvicorn has none of these.
"""

from asyncio import TimerHandle, Transport
from typing import Any

import structlog
from catenary_runtime.tls import server_tls
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from catenary_frontend.metrics import CONNECTIONS_REFUSED
from catenary_frontend.settings import FrontendSettings

log = structlog.get_logger()
LONGEST_HEAD = 64 * 1024
"""Bytes of a request's line and headers."""


def server_options(settings: FrontendSettings) -> dict[str, Any]:
    """What uvicorn takes: a protocol with these bounds, and TLS. Raises `ConfigError`."""

    class Guarded(_Guarded):
        most, head_s, body_s = settings.max_connections, settings.head_s, settings.body_s

    context = server_tls(settings.tls_cert, settings.tls_key)
    tls = {"ssl_context_factory": lambda *_: context} if context else {}
    return {"http": Guarded, "server_header": False, **tls}


class _Guarded(HttpToolsProtocol):
    """HTTP/1.1 of one connection. States: a request comes (head, then body), or it was read and is answered."""

    most: int
    head_s: float
    body_s: float

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._timer: TimerHandle | None = None
        self._head = 0
        self._in_head = True

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Take it, or say that there are too many."""
        super().connection_made(transport)
        if len(self.connections) > self.most:
            self._refuse(503, "too many connections", "connections")
        else:
            self._within(self.head_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for any more."""
        self._within(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count what is not yet a request."""
        if self._in_head:
            self._head += len(data)
        super().data_received(data)
        if self._in_head and self._head > LONGEST_HEAD and not self.transport.is_closing():
            self._refuse(431, "the headers are too long", "head")

    def on_message_begin(self) -> None:
        """A request's first byte; the one before it, on the same connection, was read."""
        super().on_message_begin()
        self._in_head = True
        self._within(self.head_s)

    def on_headers_complete(self) -> None:
        """Its head is there."""
        self._in_head, self._head = False, 0
        self._within(self.body_s)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """All of it is there."""
        self._within(None)
        super().on_message_complete()

    def _within(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self.loop.call_later(seconds, self._too_slow)

    def _too_slow(self) -> None:
        self._refuse(408, "the request did not come in time", "slow")

    def _refuse(self, status: int, why: str, label: str) -> None:
        """Close, with a word to a client that has had nothing of an answer to this request."""
        self._within(None)
        CONNECTIONS_REFUSED.labels(why=label).inc()
        log.info("connection.refused", status=status, why=why)
        last = self.cycle
        if last is None or (last.response_complete if self._in_head else not last.response_started):
            retry = "retry-after: 1\r\n" if status == 503 else ""
            head = f"HTTP/1.1 {status} {why}\r\ncontent-type: text/plain\r\ncontent-length: {len(why)}\r\n{retry}"
            self.transport.write(f"{head}connection: close\r\n\r\n{why}".encode())
        self.transport.close()
