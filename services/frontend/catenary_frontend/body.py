"""The bytes of a request, within bounds: those that come, and those they unpack to."""

import zlib

from catenary_protocols.errors import RequestError
from starlette.requests import Request

_WINDOW = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


async def read_body(request: Request, limit: int) -> bytes:
    """All of the body, unpacked; raises `RequestError` when it is over `limit` bytes, or packed in an unknown way."""
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding != "identity" and encoding not in _WINDOW:
        known = ", ".join(_WINDOW)
        raise RequestError(f"content-encoding {encoding!r} is not understood; {known} are", code="unsupported_encoding")
    if int(request.headers.get("content-length", "0")) > limit:
        raise _too_large(limit)
    pieces: list[bytes] = []
    size = 0
    async for piece in request.stream():
        size += len(piece)
        if size > limit:
            raise _too_large(limit)
        pieces.append(piece)
    body = b"".join(pieces)
    return body if encoding == "identity" else _unpacked(body, encoding, limit)


def _unpacked(body: bytes, encoding: str, limit: int) -> bytes:
    stream = zlib.decompressobj(_WINDOW[encoding])
    try:
        plain = stream.decompress(body, limit + 1)
    except zlib.error as error:
        raise RequestError(f"the body is no {encoding}: {error}") from error
    if len(plain) > limit:
        raise _too_large(limit)
    if not stream.eof:
        raise RequestError(f"the body is cut {encoding}")
    return plain


def _too_large(limit: int) -> RequestError:
    return RequestError(f"the body is over the limit of {limit} bytes", code="request_too_large")
