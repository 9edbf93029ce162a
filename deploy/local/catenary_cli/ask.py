"""A small HTTP client for the mesh's own API: a JSON request in, a JSON body or server-sent events out."""

import asyncio
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import urlsplit

import msgspec
from catenary_protocols.errors import TransportError

KEY = "CATENARY_API_KEY"
"""The variable that holds an API key."""
LINE_LIMIT = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event; `name` is "" for the API's own, `at` is when it was read (`time.perf_counter`)."""

    name: str
    data: bytes
    at: float


@dataclass(slots=True)
class Answer:
    """Status and headers (lower case) are there, the body is being read."""

    status: int
    headers: dict[str, str]
    _reader: asyncio.StreamReader
    _rest: bytes = field(default=b"", init=False)

    async def body(self) -> bytes:
        """All of it."""
        return b"".join([part async for part in self._parts()])

    async def events(self) -> AsyncIterator[Event]:
        """Server-sent events as they come, without `[DONE]` and comments."""
        async for part in self._parts():
            at = time.perf_counter()
            *blocks, self._rest = (self._rest + part).split(b"\n\n")
            for block in blocks:
                fields = dict(line.partition(b": ")[::2] for line in block.split(b"\n") if not line.startswith(b":"))
                if b"data" in fields and fields[b"data"] != b"[DONE]":
                    yield Event(fields.get(b"event", b"").decode(), fields[b"data"], at)

    async def _parts(self) -> AsyncIterator[bytes]:
        if self.headers.get("transfer-encoding") != "chunked":
            yield await self._reader.readexactly(int(self.headers.get("content-length", 0)))
            return
        while size := int(await self._reader.readline(), 16):
            yield (await self._reader.readexactly(size + 2))[:-2]


@asynccontextmanager
async def post(base: str, path: str, request: object, key: str = "") -> AsyncIterator[Answer]:
    """Send a JSON body to `base` (`http://host:port`) with an API key; the connection closes at the end of the block.

    Raises `TransportError` when nobody is there, or leaves in the middle.
    """
    async with _exchange("POST", base, path, msgspec.json.encode(request), key) as answer:
        yield answer


async def get(base: str, path: str, key: str = "", accept: Collection[int] = (200,)) -> bytes:
    """The body of what is there; raises `TransportError` for another status than those."""
    async with _exchange("GET", base, path, b"", key) as answer:
        body = await answer.body()
    if answer.status not in accept:
        hint = f" (put one into {KEY})" if answer.status == HTTPStatus.UNAUTHORIZED else ""
        raise TransportError(f"{base}{path} answers {answer.status}: {told(body)}{hint}")
    return body


def told(body: bytes) -> str:
    """The message of an error body of any of the APIs, else the body as it is."""
    try:
        return str(msgspec.json.decode(body)["error"]["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return body.decode(errors="replace")


@asynccontextmanager
async def _exchange(method: str, base: str, path: str, body: bytes, key: str) -> AsyncIterator[Answer]:
    url = urlsplit(base)
    secure = url.scheme == "https"
    try:
        reader, writer = await asyncio.open_connection(
            url.hostname, url.port or (443 if secure else 80), limit=LINE_LIMIT, ssl=secure or None
        )
    except OSError as error:
        raise TransportError(f"no mesh answers at {base}: {error.strerror or error}") from error
    head = [
        f"{method} {path} HTTP/1.1",
        f"Host: {url.netloc}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        *([f"Authorization: Bearer {key}"] if key else []),
    ]
    try:
        writer.write("\r\n".join([*head, "", ""]).encode() + body)
        status = int((await reader.readline()).split()[1])
        headers: dict[str, str] = {}
        while line := (await reader.readline()).strip():
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
        yield Answer(status, headers, reader)
    except (OSError, asyncio.IncompleteReadError, IndexError) as error:
        raise TransportError(f"{base} left in the middle of its answer") from error
    finally:
        writer.close()
