"""The bytes of a request, within bounds."""

from catenary_protocols.errors import RequestError
from starlette.requests import Request


async def read_body(request: Request, limit: int) -> bytes:
    """All of the body; raises `RequestError` when it is encoded or longer than `limit` bytes."""
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding != "identity":
        raise RequestError(f"content-encoding {encoding!r} is not understood", code="unsupported_encoding")
    if int(request.headers.get("content-length", "0")) > limit:
        raise _too_large(limit)
    pieces: list[bytes] = []
    size = 0
    async for piece in request.stream():
        size += len(piece)
        if size > limit:
            raise _too_large(limit)
        pieces.append(piece)
    return b"".join(pieces)


def _too_large(limit: int) -> RequestError:
    return RequestError(f"the body is over the limit of {limit} bytes", code="request_too_large")
