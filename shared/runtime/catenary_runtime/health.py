"""`/health` (alive), `/ready` (may take traffic), `/metrics`. The status code is the contract; the body explains."""

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

Check = Callable[[], tuple[bool, str]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
SEND_BUFFER = 256 * 1024
"""Bytes that the kernel holds for a client. Left to itself it holds megabytes for one that does not read."""
LAST_BYTES_S = 2
"""How long a service that ends waits for clients to read what was written; one that never reads holds up nothing."""
DATE_S = 1.0
"""How often the date that answers carry is made anew."""
PATHS = frozenset({"/health", "/ready", "/metrics", "/health/live", "/health/ready"})


@dataclass(slots=True)
class Health:
    """Named checks. A check returns (ok, why); all must be ok for ready, but for `warnings`, which are only told."""

    service: str
    checks: dict[str, Check] = field(default_factory=dict)
    warnings: dict[str, Check] = field(default_factory=dict)
    stopping: bool = False

    def ready(self) -> tuple[bool, list[dict[str, object]]]:
        """Whether traffic may come, and each check's answer."""
        rows: list[dict[str, object]] = []
        for name, check in self.checks.items():
            ok, detail = check()
            rows.append({"check": name, "ok": ok, "detail": detail})
        if self.stopping:
            rows.append({"check": "running", "ok": False, "detail": "shutting down"})
        ready = all(bool(row["ok"]) for row in rows)
        for name, check in self.warnings.items():
            ok, detail = check()
            rows.append({"check": name, "ok": ok, "detail": detail})
        return ready, rows

    def warning(self) -> str:
        """What is amiss and keeps no traffic away, "" for nothing."""
        told = ((name, *check()) for name, check in self.warnings.items())
        return "; ".join(f"{name}: {detail}" for name, ok, detail in told if not ok)

    def answer(self, path: str) -> tuple[int, str, bytes]:
        """Status, content type and body for one of `PATHS`."""
        if path == "/metrics":
            return 200, CONTENT_TYPE_LATEST, generate_latest()
        if path in {"/health", "/health/live"}:
            return 200, "application/json", json.dumps({"service": self.service, "alive": True}).encode()
        ok, rows = self.ready()
        body = json.dumps({"service": self.service, "ready": ok, "checks": rows}).encode()
        return (200 if ok else 503), "application/json", body


async def respond(health: Health, path: str, send: Send) -> None:
    """Answer one of `PATHS` on an ASGI connection."""
    status, kind, body = health.answer(path)
    headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class EmbeddedServer(uvicorn.Server):
    """uvicorn inside a service's loop: the service owns signals and the end."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._over = asyncio.Event()

    def leave(self) -> None:
        """Have `serve` end."""
        self.should_exit = True
        self._over.set()

    async def main_loop(self) -> None:
        """Until the end. uvicorn's own wakes ten times a second to look for it."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DATE_S):
                    await self._over.wait()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen; connections inherit the listener's buffer.

        Cancelled meanwhile, it listens first: asyncio would lose the open socket. `close` ends that.
        """
        starting = asyncio.ensure_future(super().startup(sockets))
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            await starting
            raise
        for one in self.servers:
            for listening in one.sockets:
                with socket.socket(fileno=os.dup(listening.fileno())) as listener:
                    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the process's signal handlers alone."""
        yield

    async def started_on(self) -> int:
        """The bound port, once it listens."""
        while not self.started:  # noqa: ASYNC110  # uvicorn offers no event for this
            await asyncio.sleep(0.005)
        return int(self.servers[0].sockets[0].getsockname()[1])

    def close(self) -> None:
        """Listen no more, though `serve` was cut short."""
        if self.started:
            for one in self.servers:
                one.close()


def server_for(app: Any, host: str, port: int, **options: Any) -> EmbeddedServer:
    """A server with no access log, on uvloop's transport.

    An idle connection is kept for longer than any client keeps it: the side that sends must not meet a closing one.
    """
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        timeout_keep_alive=120,
        timeout_graceful_shutdown=LAST_BYTES_S,
        **options,
    )
    return EmbeddedServer(config)


def admin_app(health: Health) -> Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]:
    """The admin port of a service that has no HTTP face of its own."""

    async def app(scope: MutableMapping[str, Any], _receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] in PATHS:
            await respond(health, scope["path"], send)
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": 404, "headers": []})
            await send({"type": "http.response.body", "body": b"/health /ready /metrics\n"})

    return app
