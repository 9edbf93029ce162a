"""The bytes of a request, within bounds: those that come, and those they unpack to.

They have to be called JSON. What is called otherwise, or nothing, a browser sends for any page to any address without
asking first: a page that is open on a user's machine could have a mesh there run tools.
"""

import re
import zlib
from collections.abc import Callable

import brotli
import zstandard
from catenary_protocols.errors import RequestError
from starlette.requests import Request

_ZSTD_STEP = 256
"""Bytes. A block of four may stand for 128 KB: that many blocks are unpacked before their size is seen."""
_BROTLI_STEP = 1 << 16
"""Bytes that are unpacked at a time."""
_JSON = re.compile(r"application/([^;]+\+)?json\s*(;|$)", re.IGNORECASE)


async def read_body(request: Request, limit: int) -> bytes:
    """All of the body, unpacked; raises `RequestError` for one over `limit` bytes, not called JSON or oddly packed."""
    kind = request.headers.get("content-type", "")
    if not _JSON.match(kind):
        said = f"is {kind!r}" if kind else "is missing"
        raise RequestError(f"`content-type` {said}; it has to be application/json", code="unsupported_media_type")
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding != "identity" and encoding not in _UNPACK:
        known = ", ".join(_UNPACK)
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
    """Little more than the limit is unpacked, whatever the body holds."""
    try:
        plain, whole = _UNPACK[encoding](body, limit)
    except (zlib.error, zstandard.ZstdError, brotli.error) as error:
        raise RequestError(f"the body is no {encoding}: {error}") from error
    if len(plain) > limit:
        raise _too_large(limit)
    if not whole:
        raise RequestError(f"the body is cut {encoding}")
    return plain


def _inflate(window: int) -> Callable[[bytes, int], tuple[bytes, bool]]:
    def unpack(body: bytes, limit: int) -> tuple[bytes, bool]:
        stream = zlib.decompressobj(window)
        return stream.decompress(body, limit + 1), stream.eof

    return unpack


def _zstd(body: bytes, limit: int) -> tuple[bytes, bool]:
    stream = zstandard.ZstdDecompressor(max_window_size=1 << 27).decompressobj()
    plain = bytearray()
    for at in range(0, len(body), _ZSTD_STEP):
        plain += stream.decompress(body[at : at + _ZSTD_STEP])
        if stream.eof or len(plain) > limit:
            break
    return bytes(plain), stream.eof


def _brotli(body: bytes, limit: int) -> tuple[bytes, bool]:
    stream = brotli.Decompressor()
    piece = stream.process(body, output_buffer_limit=_BROTLI_STEP)
    plain = bytearray(piece)
    while piece and not stream.is_finished() and len(plain) <= limit:
        piece = stream.process(b"", output_buffer_limit=_BROTLI_STEP)
        plain += piece
    return bytes(plain), stream.is_finished()


_UNPACK: dict[str, Callable[[bytes, int], tuple[bytes, bool]]] = {
    "gzip": _inflate(16 + zlib.MAX_WBITS),
    "x-gzip": _inflate(16 + zlib.MAX_WBITS),
    "deflate": _inflate(zlib.MAX_WBITS),
    "zstd": _zstd,
    "br": _brotli,
}


def _too_large(limit: int) -> RequestError:
    return RequestError(f"the body is over the limit of {limit} bytes", code="request_too_large")
