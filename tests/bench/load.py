"""An ordinary HTTP client that costs little: kept-alive connections, closed loops, no TCP tricks. A process of its own.

`python -m tests.bench.load '{"url": …, "streams": 32, "requests": 2, "body": {…}}'` prints one JSON object.
"""

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, cast

import uvloop

Json = dict[str, Any]
VISIBLE = (b'"content":"', b'"reasoning_content":"')
END = {True: b"data: [DONE]\n\n", False: b"}"}


@dataclass
class Figures:
    """Of all connections together; times in seconds."""

    first: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    events: int = 0
    reads: int = 0
    failed: int = 0
    error: str = ""


class Connection(asyncio.Protocol):
    """Sends one request after the other."""

    def __init__(self, requests: Iterable[bytes], figures: Figures, *, streamed: bool) -> None:
        self._requests, self._figures, self._streamed = iter(requests), figures, streamed
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class
        self._send()

    def _send(self) -> None:
        request = next(self._requests, None)
        if request is None:
            return self._end()
        self._began = self._last = time.perf_counter()
        self._first = 0.0
        self._whole = bytearray()
        return self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        self._figures.reads += 1
        if not self._whole and not data.startswith(b"HTTP/1.1 200"):
            return self._fail(data)
        self._whole += data
        if self._streamed:
            self._figures.events += data.count(b"data: {")
            if not self._first and any(self._says(key) for key in VISIBLE):
                self._first = now
            elif self._first:
                self._figures.gaps.append(now - self._last)
        self._last = now
        if self._over():
            self._figures.whole.append(now - self._began)
            if self._first:
                self._figures.first.append(self._first - self._began)
            self._send()
        return None

    def _says(self, key: bytes) -> bool:
        """Whether some text was there yet (the first delta has the role and an empty one)."""
        at = self._whole.find(key)
        while at >= 0:
            if self._whole[at + len(key) : at + len(key) + 1] != b'"':
                return True
            at = self._whole.find(key, at + 1)
        return False

    def _over(self) -> bool:
        if self._streamed:
            return b"data: [DONE]" in self._whole[-64:] and self._whole.endswith(b"0\r\n\r\n")
        head, _, body = self._whole.partition(b"\r\n\r\n")
        length = next(
            (line[16:] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length: ")), b"-1"
        )
        return len(body) == int(length)

    def _fail(self, data: bytes) -> None:
        self._figures.failed += 1
        self._figures.error = self._figures.error or data[:500].decode(errors="replace")
        self._end()

    def _end(self) -> None:
        if not self.done.done():
            self.done.set_result(None)
        self._transport.close()

    def connection_lost(self, _: Exception | None) -> None:
        if not self.done.done():
            self._figures.failed += 1
            self._figures.error = self._figures.error or "the connection was closed"
            self.done.set_result(None)


def post(body: Json) -> bytes:
    """The bytes of a request."""
    data = json.dumps(body).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: mesh\r\nContent-Type: application/json"
    return f"{head}\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


async def connect(url: str, requests: Iterable[bytes], figures: Figures, *, streamed: bool) -> "asyncio.Future[None]":
    """Open a connection that sends these requests; done when the last is answered, or one failed."""
    host, _, port = url.removeprefix("http://").partition(":")
    loop = asyncio.get_running_loop()
    _, one = await loop.create_connection(lambda: Connection(requests, figures, streamed=streamed), host, int(port))
    return one.done


async def run(task: Json) -> Json:
    figures = Figures()
    began, used = time.perf_counter(), time.process_time()
    connections = []
    for number in range(task["streams"]):
        body = json.loads(json.dumps(task["body"]).replace("{n}", str(number)))
        requests = repeat(post(body), task["requests"])
        connections.append(await connect(task["url"], requests, figures, streamed=bool(body.get("stream"))))
    await asyncio.gather(*connections)
    wall = time.perf_counter() - began
    return {
        "wall_s": round(wall, 3),
        "client_cpu_s": round(time.process_time() - used, 3),
        "requests": len(figures.whole),
        "failed": figures.failed,
        "error": figures.error,
        "events": figures.events,
        "events_per_read": round(figures.events / max(1, figures.reads), 2),
        "requests_per_s": round(len(figures.whole) / wall, 1),
        "ttft_ms": spread(figures.first),
        "gap_ms": spread(figures.gaps),
        "latency_ms": spread(figures.whole),
    }


def spread(values: list[float]) -> dict[str, float]:
    """Median and tail, in milliseconds."""
    if len(values) < 2:
        return {"p50": round(values[0] * 1000, 2)} if values else {}
    parts = statistics.quantiles(values, n=100)
    return {"p50": round(parts[49] * 1000, 2), "p99": round(parts[98] * 1000, 2)}


if __name__ == "__main__":
    print(json.dumps(uvloop.run(run(json.loads(sys.argv[1])))))
