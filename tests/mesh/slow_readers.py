"""Clients that hardly read beside clients that do: what the operation tests and `make bench ARGS=slow_readers` share."""

import asyncio
import secrets
import socket
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import httpx

from tests.mesh import ops
from tests.mesh.harness import PATIENCE_S, RunningMesh

SLOW = 50
PATIENCE = 3 * PATIENCE_S
ENDLESS: dict[str, Any] = ops.chat("Go on.", max_tokens=30_000, ignore_eos=True, stream=True)


async def beside(client: httpx.AsyncClient) -> float:
    """Somebody else's short turn; seconds until it is answered."""
    began = time.monotonic()
    request = ops.chat(secrets.token_hex(4), max_tokens=32)
    while (answer := await client.post("/v1/chat/completions", json=request, timeout=PATIENCE)).status_code == 503:
        pass  # where others keep the machine busy, too, it may have to ask again
    assert answer.status_code == 200, answer.text
    return time.monotonic() - began


@asynccontextmanager
async def reading(client: httpx.AsyncClient) -> AsyncIterator[None]:
    """`SLOW` clients that read all they are sent."""

    async def read() -> None:
        with suppress(httpx.HTTPError):  # one that a busy machine keeps from reading is cut, too
            async with client.stream("POST", "/v1/chat/completions", json=ENDLESS) as answer:
                begun.release()
                async for _ in answer.aiter_raw():
                    pass

    begun = asyncio.Semaphore(0)
    tasks = [asyncio.create_task(read()) for _ in range(SLOW)]
    for _ in tasks:
        await begun.acquire()
    yield
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


@asynccontextmanager
async def sipping(mesh: RunningMesh) -> AsyncIterator[None]:
    """`SLOW` clients that take a byte a second, and stay when they are cut."""
    async with AsyncExitStack() as stack:
        for _ in range(SLOW):
            connection = await ops.deaf(mesh, receive=4096)
            await asyncio.get_running_loop().sock_sendall(connection, ops.post("/v1/chat/completions", ENDLESS))
            stack.callback(Sipping(connection).close)
        yield


async def cut(mesh: RunningMesh) -> float:
    """How many the frontend has cut so far."""
    return await ops.metric(mesh, "frontend", "catenary_slow_readers_total")


class Sipping:
    """Reads one byte a second."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._loop = connection, asyncio.get_running_loop()
        self._next = self._loop.call_later(1, self._sip)

    def _sip(self) -> None:
        with suppress(BlockingIOError):
            self._connection.recv(1)
        self._next = self._loop.call_later(1, self._sip)

    def close(self) -> None:
        """Hang up."""
        self._next.cancel()
        self._connection.close()
