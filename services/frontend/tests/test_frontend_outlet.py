import asyncio
from collections.abc import Coroutine
from typing import Any

from catenary_frontend.outlet import Message, Outlet


class Connection:
    """An ASGI `send` with uvicorn's flow control: it waits before it writes, while the transport is full."""

    def __init__(self) -> None:
        self.room = asyncio.Event()
        self.room.set()
        self.sent: list[Message] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def send(self, message: Message) -> None:
        if not self.room.is_set():
            await self.room.wait()
        self.sent.append(message)

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work, name=name))

    async def drained(self) -> None:
        self.room.set()
        await asyncio.gather(*self.tasks)

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)


async def test_with_room_everything_is_sent_at_once_and_no_task_is_made() -> None:
    connection = Connection()
    outlet = Outlet(connection.send, connection.spawn, limit=100)
    outlet.start(200, [])
    outlet.write(b"a")
    outlet.write(b"b", last=True)
    assert [message["type"] for message in connection.sent] == ["http.response.start"] + ["http.response.body"] * 2
    assert [message.get("more_body") for message in connection.sent] == [None, True, False]
    assert not connection.tasks
    assert outlet.ended


async def test_a_full_connection_holds_what_comes_and_sends_it_in_order_and_in_one_piece() -> None:
    connection = Connection()
    outlet = Outlet(connection.send, connection.spawn, limit=100)
    outlet.start(200, [])
    connection.room.clear()
    for piece in (b"1", b"2", b"3"):
        outlet.write(piece)
    assert outlet.full
    outlet.write(b"4", last=True)
    await connection.drained()
    assert connection.body == b"1234"
    assert [message["more_body"] for message in connection.sent[1:]] == [True, False]
    assert len(connection.tasks) == 1
    assert not outlet.full


async def test_after_it_has_drained_writing_goes_on_directly() -> None:
    connection = Connection()
    outlet = Outlet(connection.send, connection.spawn, limit=100)
    connection.room.clear()
    outlet.start(200, [])
    await connection.drained()
    outlet.write(b"a", last=True)
    assert connection.body == b"a"
    assert connection.sent[-1]["more_body"] is False


async def test_it_tells_when_more_is_held_than_may_be() -> None:
    connection = Connection()
    outlet = Outlet(connection.send, connection.spawn, limit=10)
    outlet.start(200, [])
    connection.room.clear()
    outlet.write(b"x")
    outlet.write(b"y" * 10)
    seen = [outlet.overrun]
    outlet.write(b"z")
    seen.append(outlet.overrun)
    await connection.drained()
    assert [*seen, outlet.overrun] == [False, True, False]


async def test_the_end_of_a_task_that_is_cancelled_is_quiet() -> None:
    connection = Connection()
    outlet = Outlet(connection.send, connection.spawn, limit=10)
    connection.room.clear()
    outlet.start(200, [])
    (task,) = connection.tasks
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert connection.sent == []
