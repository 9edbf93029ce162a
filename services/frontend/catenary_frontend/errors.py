"""Errors as HTTP answers: the body of the API that was called, the status and headers of `errors.TABLE`."""

from collections.abc import Callable, Container, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from math import ceil

from catenary_protocols.apis.error_bodies import anthropic_error, openai_error
from catenary_protocols.errors import CatenaryError, ErrorInfo, kind_of
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from catenary_frontend.edge import request_id_of

_CODES = {404: "not_found", 405: "method_not_allowed"}
_INTERNAL = ErrorInfo(code="internal", message="something failed here; the log of this service says what")
_LEFT = ErrorInfo(code="cancelled", message="the client left before its request was complete")


def status_of(error: ErrorInfo) -> int:
    """HTTP status."""
    return kind_of(error.code).status


def headers_for(error: ErrorInfo) -> Sequence[tuple[bytes, bytes]]:
    """Headers that tell a client whether and when to try again."""
    headers = []
    if status_of(error) in {429, 503}:
        headers.append((b"retry-after", b"%d" % max(1, ceil(error.retry_after))))
    if not error.retry:
        headers.append((b"x-should-retry", b"false"))
    return headers


def error_for(path: str, headers: Container[str]) -> Callable[[ErrorInfo, str], bytes]:
    """The shape of errors that the client of a request expects; `headers` are their names, in lower case."""
    anthropic = path.startswith("/v1/messages") or "anthropic-version" in headers
    return anthropic_error if anthropic else openai_error


def answer(request: Request, error: ErrorInfo, more: Mapping[str, str] | None = None) -> Response:
    """The answer to a request that no turn came of. `more`: further headers."""
    write = error_for(request.url.path, request.headers)
    body = write(error, request_id_of(request.scope))
    headers = {**(more or {}), **{name.decode(): value.decode() for name, value in headers_for(error)}}
    if error.code == "rate_limit_exceeded":
        headers |= (_told_anthropic if write is anthropic_error else _told_openai)(error)
    return Response(body, status_of(error), headers, "application/json")


def _told_openai(error: ErrorInfo) -> dict[str, str]:
    """`x-ratelimit-limit-requests: 60`, `x-ratelimit-reset-requests: 3s`."""
    seconds = {name: "s" for name in error.numbers if name.startswith("reset-")}
    return {f"x-ratelimit-{name}": f"{number}{seconds.get(name, '')}" for name, number in error.numbers.items()}


def _told_anthropic(error: ErrorInfo) -> dict[str, str]:
    """`anthropic-ratelimit-requests-limit: 60`, `anthropic-ratelimit-requests-reset: 2026-01-31T12:00:03+00:00`."""
    told = {}
    for name, number in error.numbers.items():
        fact, _, what = name.partition("-")
        text = (datetime.now(UTC) + timedelta(seconds=number)).isoformat(timespec="seconds")
        told[f"anthropic-ratelimit-{what}-{fact}"] = text if fact == "reset" else str(number)
    return told


async def on_catenary_error(request: Request, error: Exception) -> Response:
    """Handler of `CatenaryError`."""
    return answer(request, error.info if isinstance(error, CatenaryError) else _INTERNAL)


async def on_http_error(request: Request, error: Exception) -> Response:
    """Handler of the framework's own refusals: no such path, no such method."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    code = _CODES.get(status, "invalid_request" if status < 500 else "internal")
    message = f"{request.method} {request.url.path}: {getattr(error, 'detail', 'failed')}"
    return answer(request, ErrorInfo(code=code, message=message), getattr(error, "headers", None))


async def on_client_left(request: Request, _error: Exception) -> Response:
    """Handler of `ClientDisconnect`: nobody reads this."""
    return answer(request, _LEFT)


async def on_fault(request: Request, _error: Exception) -> Response:
    """Handler of everything else: a bug. The server logs it."""
    return answer(request, _INTERNAL)


HANDLERS = {
    CatenaryError: on_catenary_error,
    HTTPException: on_http_error,
    ClientDisconnect: on_client_left,
    Exception: on_fault,
}
