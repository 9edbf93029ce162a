"""Bounds on connections: how many there may be, how long a request may take to come, how long its head may be.

A client that sends a byte now and then costs a socket and a timer for `head_s`, and no more. uvicorn has none of these.
What becomes no request is refused in the shape of the API that it was meant for, as far as it can be known.
"""

from asyncio import TimerHandle, Transport
from http import HTTPStatus
from typing import Any

import structlog
from catenary_protocols.errors import ErrorInfo
from catenary_runtime.tls import server_tls
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from catenary_frontend.edge import REQUEST_ID_HEADERS, new_request_id
from catenary_frontend.errors import error_for, headers_for, status_of
from catenary_frontend.metrics import CONNECTIONS_REFUSED
from catenary_frontend.outlet import Message, Send
from catenary_frontend.settings import FrontendSettings

log = structlog.get_logger()
LONGEST_HEAD = 64 * 1024
"""Bytes of a request's line and headers."""
LINGER_S = 1.0
"""Longest time in which a client that was refused may still send, so that it reads why."""
_NO_REQUEST = ErrorInfo(code="invalid_request", message="this is no HTTP request")
_TOO_MANY = ErrorInfo(code="overloaded", message="too many connections", retry_after=1)
_TOO_SLOW = ErrorInfo(code="slow_request", message="the request did not come in time")
_LONG_HEAD = ErrorInfo(code="headers_too_large", message=f"the headers are over the limit of {LONGEST_HEAD} bytes")


def server_options(settings: FrontendSettings) -> dict[str, Any]:
    """What uvicorn takes: a protocol with these bounds, and TLS. Raises `ConfigError`."""

    class Guarded(_Guarded):
        most, head_s, body_s = settings.max_connections, settings.head_s, settings.body_s

    context = server_tls(settings.tls_cert, settings.tls_key)
    tls = {"ssl_context_factory": lambda *_: context} if context else {}
    return {"http": Guarded, "server_header": False, **tls}


class _Late:
    """The transport of one answer, which closes it when the request has come or was waited for."""

    def __init__(self, protocol: "_Guarded") -> None:
        self.write = protocol.transport.write
        self.is_closing = protocol.transport.is_closing
        self.close = protocol.close_late


def _send_plainly(cycle: RequestResponseCycle) -> None:
    """HTTP/1.0 knows no chunks: a body of unknown length ends with the connection, which uvicorn then closes."""
    send: Send = cycle.send  # type: ignore[assignment]  # uvicorn's types are its own
    unknown = False

    async def plainly(message: Message) -> None:
        nonlocal unknown
        if message["type"] == "http.response.start":
            unknown = b"content-length" not in {name.lower() for name, _ in message.get("headers", ())}
            if unknown:
                cycle.chunked_encoding = False
        elif unknown:
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    cycle.send = plainly  # type: ignore[method-assign, assignment]  # of this one answer


class _Guarded(HttpToolsProtocol):
    """HTTP/1.1 or 1.0 of one connection.

    States: a request comes (head, then body), it was read and is answered, or the client was refused and may read why.
    """

    most: int
    head_s: float
    body_s: float

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._timer: TimerHandle | None = None
        self._head = 0
        self._in_head = True
        self._in_body = False
        self._refused = False

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Take it, or say that there are too many."""
        super().connection_made(transport)
        if len(self.connections) > self.most:
            self._refuse(_TOO_MANY, "connections")
        else:
            self._within(self.head_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for any more."""
        self._within(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count what is not yet a request."""
        if self._refused:
            return
        if self._in_head:
            self._head += len(data)
        super().data_received(data)
        if self._in_head and self._head > LONGEST_HEAD and not self._refused:
            self._refuse(_LONG_HEAD, "head")

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002  # uvicorn's word for it
        """What came is no HTTP."""
        self._refuse(_NO_REQUEST, "malformed")

    def on_message_begin(self) -> None:
        """A request's first byte; the one before it, on the same connection, was read."""
        super().on_message_begin()
        self._in_head = True
        self._within(self.head_s)

    def on_headers_complete(self) -> None:
        """Its head is there."""
        self._in_head, self._head = False, 0
        self._in_body = True
        self._within(self.body_s)
        super().on_headers_complete()
        if self.cycle is not None:
            self.cycle.transport = _Late(self)  # type: ignore[assignment]  # all that an answer needs of one
            if self.scope["http_version"] == "1.0":
                _send_plainly(self.cycle)

    def on_message_complete(self) -> None:
        """All of it is there."""
        self._in_body = False
        self._within(None)
        super().on_message_complete()

    def close_late(self) -> None:
        """Close behind an answer: at once, unless the request is still coming."""
        if self._in_body:
            self._within(None)
            self._refused = True
            self._linger()
        else:
            self.transport.close()

    def _within(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self.loop.call_later(seconds, self._too_slow)

    def _too_slow(self) -> None:
        self._refuse(_TOO_SLOW, "slow")

    def _refuse(self, error: ErrorInfo, why: str) -> None:
        """Close, with a word to a client that has had nothing of an answer to this request."""
        self._within(None)
        self._refused = True
        CONNECTIONS_REFUSED.labels(why=why).inc()
        log.info("connection.refused", code=error.code, why=error.message)
        last = self.cycle
        if last is None or (last.response_complete if self._in_head else not last.response_started):
            self.transport.write(self._refusal(error))
            self._linger()
        else:
            self.transport.close()

    def _refusal(self, error: ErrorInfo) -> bytes:
        names = {name.decode("latin-1") for name, _ in self.headers or ()}
        request_id = new_request_id()
        body = error_for(self._path(), names)(error, request_id)
        status = HTTPStatus(status_of(error))
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
            *((name, request_id.encode()) for name in REQUEST_ID_HEADERS),
            *headers_for(error),
        ]
        head = b"".join(b"%b: %b\r\n" % header for header in headers)
        return b"HTTP/1.1 %d %b\r\n%b\r\n%b" % (status, status.phrase.encode(), head, body)

    def _path(self) -> str:
        """Where the request goes, as far as it has come."""
        return self.url.decode("latin-1") if self.scope else ""

    def _linger(self) -> None:
        """Take what still comes for a while: bytes that nobody reads make a reset, which overtakes the answer."""
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if len(self.connections) > 2 * self.most:
            self.transport.close()
            return
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._timer = self.loop.call_later(LINGER_S, self.transport.close)
