"""A small HTTP client for the mesh's own API: a JSON request in, a JSON body or server-sent events out."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec

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
async def post(base: str, path: str, request: object) -> AsyncIterator[Answer]:
    """Send a JSON body to `base` (`http://host:port`); the connection closes at the end of the block."""
    host, _, port = base.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=LINE_LIMIT)
    try:
        body = msgspec.json.encode(request)
        head = (
            f"POST {path} HTTP/1.1",
            f"Host: {host}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
        )
        writer.write("\r\n".join([*head, "", ""]).encode() + body)
        status = int((await reader.readline()).split()[1])
        headers: dict[str, str] = {}
        while line := (await reader.readline()).strip():
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
        yield Answer(status, headers, reader)
    finally:
        writer.close()
