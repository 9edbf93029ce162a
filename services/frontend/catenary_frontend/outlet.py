"""Writes one HTTP answer from a callback: no task and no queue, unless the client's connection is full.

ASGI's `send` is a coroutine that, on a connection with room, ends at its first step; so it is stepped by hand. When it
waits instead, one task finishes it, and what comes meanwhile is held, up to a bound, and leaves in one piece.
"""

from collections.abc import Awaitable, Callable, Coroutine, Generator, MutableMapping
from types import coroutine
from typing import Any

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]
Spawn = Callable[[Coroutine[Any, Any, None], str], object]


class Outlet:
    """One answer on its way.

    Attributes:
        started: the status line is out.
        ended: the last byte was handed over.
        full: the client reads too slowly just now.
    """

    __slots__ = ("_held", "_held_bytes", "_send", "_spawn", "ended", "full", "limit", "started")

    def __init__(self, send: Send, spawn: Spawn, limit: int) -> None:
        self._send = send
        self._spawn = spawn
        self._held: list[bytes] = []
        self._held_bytes = 0
        self.limit = limit
        self.started = self.ended = self.full = False

    def start(self, status: int, headers: Headers) -> None:
        """Send the status line and headers."""
        self.started = True
        self._step({"type": "http.response.start", "status": status, "headers": headers})

    def write(self, data: bytes, *, last: bool = False) -> None:
        """Send a piece of the body."""
        self.ended = self.ended or last
        if self.full:
            self._held.append(data)
            self._held_bytes += len(data)
        else:
            self._step({"type": "http.response.body", "body": data, "more_body": not last})

    @property
    def overrun(self) -> bool:
        """More waits for the client than may."""
        return self._held_bytes > self.limit

    def _step(self, message: Message) -> None:
        if self.full:
            raise RuntimeError("an answer cannot start behind its own body")
        sending = self._send(message).__await__()
        try:
            waits_for = next(sending)
        except StopIteration:
            return
        self.full = True
        self._spawn(self._finish(sending, waits_for), "slow reader")

    async def _finish(self, sending: Generator[Any, Any, None], waits_for: object) -> None:
        await _rest_of(sending, waits_for)
        while self._held:
            data = b"".join(self._held)
            self._held.clear()
            self._held_bytes = 0
            await self._send({"type": "http.response.body", "body": data, "more_body": not self.ended})
        self.full = False


@coroutine
def _rest_of(sending: Generator[Any, Any, None], waits_for: object) -> Generator[Any, Any, None]:
    """Await the rest of a coroutine that was stepped once and waits for `waits_for`."""
    yield waits_for
    yield from sending
