"""Connections that never become a request: each is closed in its time, and others are served meanwhile."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from catenary_frontend.testing import Stand, running_frontend
from catenary_protocols.bus.subjects import Subjects
from catenary_protocols.turn_events import Accepted, Finished, TextDelta, Usage
from catenary_runtime.testing import NatsServer

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
PATIENCE_S = 10
DRIP_S = 0.02


@pytest.fixture
async def stand(nats_server: NatsServer, subjects: Subjects) -> AsyncIterator[Stand]:
    bounds = {"head_s": 0.3, "body_s": 0.6, "max_connections": 40}
    async with running_frontend(nats_server, subjects, **bounds) as one:
        yield one


class Client:
    """A connection by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def to(cls, stand: Stand) -> "Client":
        host, port = stand.url.removeprefix("http://").split(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def drip(self, data: bytes) -> bytes:
        """Send it byte by byte until the other side closes; all it said."""

        closed = asyncio.create_task(self.rest())
        for byte in data:
            if closed.done():
                break
            self.writer.write(bytes((byte,)))
            await asyncio.wait([closed], timeout=DRIP_S)
        return await closed

    async def rest(self) -> bytes:
        """What comes until the other side closes, which it does in time."""
        async with asyncio.timeout(PATIENCE_S):
            try:
                return await self.reader.read()
            except ConnectionResetError:  # it closed while we were still sending
                return b""
            finally:
                self.writer.close()


@pytest.mark.parametrize("sent", [b"", HEAD + b"x-a: " + b"a" * 4000, b"\r\n" * 2000])
async def test_a_head_that_drips_is_given_up_in_time(stand: Stand, sent: bytes) -> None:
    one = await Client.to(stand)
    said = await one.drip(sent)
    assert said == b"" or b" 408 " in said.splitlines()[0]


async def test_a_body_that_drips_is_given_up_in_time(stand: Stand) -> None:
    one = await Client.to(stand)
    one.writer.write(HEAD + b"content-length: 5000\r\n\r\n")
    said = await one.drip(b"a" * 5000)  # it ends; a reset may overtake the answer
    assert said == b"" or b" 408 " in said.splitlines()[0]


async def test_a_second_request_on_the_connection_has_the_same_bounds(stand: Stand) -> None:
    one = await Client.to(stand)
    one.writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\nGET /hea")
    said = await one.rest()
    assert said.startswith(b"HTTP/1.1 200")
    assert b"HTTP/1.1 408" in said


async def test_headers_without_end_are_refused(stand: Stand) -> None:
    one = await Client.to(stand)
    one.writer.write(HEAD + b"".join(b"x-%d: %s\r\n" % (n, b"a" * 1000) for n in range(80)))
    assert b" 431 " in (await one.rest()).splitlines()[0]


async def test_many_slow_connections_keep_nobody_out_for_long_and_leave_nothing(stand: Stand) -> None:
    slow = [await Client.to(stand) for _ in range(40)]
    for one in slow:
        one.writer.write(HEAD)
    late = await Client.to(stand)
    said = await late.rest()
    assert b" 503 " in said.splitlines()[0]
    assert b"retry-after: 1" in said
    async with asyncio.timeout(PATIENCE_S):
        for one in slow:
            assert b" 408 " in (await one.rest()).splitlines()[0]
    assert (await stand.http.get("/health")).status_code == 200
    told = (await stand.http.get("/metrics")).text
    assert 'catenary_connections_refused_total{why="slow"}' in told


async def test_the_bounds_end_with_the_request(stand: Stand) -> None:
    """Its answer may take as long as it takes."""
    ask = {"model": "org/m", "messages": [{"role": "user", "content": "hi"}]}
    async with stand.tokenizer() as tokenizer, asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(stand.http.post("/v1/chat/completions", json=ask))
        request = await tokenizer.request()
        clock = await Client.to(stand)  # closed when the longest bound is over
        clock.writer.write(HEAD + b"content-length: 5000\r\n\r\n")
        await clock.rest()
        end = Finished(reason="stop", usage=Usage(prompt_tokens=5, completion_tokens=1))
        tokenizer.say(request.turn.turn_id, Accepted(prompt_tokens=5), TextDelta(text="hi"), end)
    assert asking.result().status_code == 200
