"""Connections that never become a request: each is closed in its time, and others are served meanwhile."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

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


def refused(said: bytes, status: int) -> dict[str, Any]:
    """The error in the one answer that the other side has given before it closed."""
    head, _, body = said.partition(b"\r\n\r\n")
    assert f" {status} ".encode() in head.splitlines()[0], said
    assert b"content-type: application/json" in head
    assert b"x-request-id: req_" in head
    error: dict[str, Any] = json.loads(body)
    return error


@pytest.mark.parametrize("sent", [b"", HEAD + b"x-a: " + b"a" * 4000, b"\r\n" * 2000])
async def test_a_head_that_drips_is_refused_in_time(stand: Stand, sent: bytes) -> None:
    one = await Client.to(stand)
    assert refused(await one.drip(sent), 408)["error"]["code"] == "slow_request"


async def test_a_body_that_drips_is_refused_in_time(stand: Stand) -> None:
    one = await Client.to(stand)
    one.writer.write(HEAD + b"content-length: 5000\r\n\r\n")
    assert refused(await one.drip(b"a" * 5000), 408)["error"]["code"] == "slow_request"


async def test_a_body_that_floods_after_its_time_does_not_keep_the_client_from_the_answer(stand: Stand) -> None:
    one = await Client.to(stand)
    one.writer.write(HEAD + b"content-length: 7000000\r\n\r\n")
    closed = asyncio.create_task(one.rest())
    while not closed.done():
        one.writer.write(b"a" * 8192)
        await asyncio.wait([closed], timeout=DRIP_S / 10)
    refused(closed.result(), 408)


async def test_a_client_that_goes_on_sending_is_cut_in_the_end(stand: Stand) -> None:
    one = await Client.to(stand)
    refused(await one.reader.read(), 408)

    def is_cut() -> bool:
        one.writer.write(b"a")
        return one.writer.is_closing()

    await stand.until(is_cut)


@pytest.mark.parametrize("more", [b"\r\n\r\n\x00", b"content-length: x\r\n\r\n"])
@pytest.mark.parametrize(("path", "version"), [("/v1/messages", b""), ("/v1/models", b"anthropic-version: 1\r\n")])
async def test_what_is_no_request_is_refused_in_the_shape_of_its_api(
    stand: Stand, path: str, version: bytes, more: bytes
) -> None:
    one = await Client.to(stand)
    one.writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\n".encode() + version + b"x: y\r\n\x00" + more)
    error = refused(await one.rest(), 400)
    assert (error["type"], error["error"]["type"]) == ("error", "invalid_request_error")
    assert error["request_id"].startswith("req_")
    other = await Client.to(stand)
    other.writer.write(b"GET /v1/responses HTTP/1.1\r\n\x00" + more)
    assert refused(await other.rest(), 400)["error"]["code"] == "invalid_request"


async def test_a_second_request_on_the_connection_has_the_same_bounds(stand: Stand) -> None:
    one = await Client.to(stand)
    one.writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\nGET /hea")
    said = await one.rest()
    assert said.startswith(b"HTTP/1.1 200")
    assert b"HTTP/1.1 408" in said


async def test_headers_without_end_are_refused(stand: Stand) -> None:
    one = await Client.to(stand)
    one.writer.write(HEAD + b"".join(b"x-%d: %s\r\n" % (n, b"a" * 1000) for n in range(80)))
    assert refused(await one.rest(), 431)["error"]["code"] == "headers_too_large"


@pytest.mark.parametrize(
    ("kind", "status", "code"),
    [(b"application/json", 413, "request_too_large"), (b"text/plain", 415, "unsupported_media_type")],
)
async def test_a_refusal_is_read_by_a_client_that_is_still_sending(
    stand: Stand, kind: bytes, status: int, code: str
) -> None:
    """Also when nothing else is to come on the connection."""
    body = b" " * (16 << 20)
    for _ in range(3):
        one = await Client.to(stand)
        one.writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n")
        one.writer.write(b"content-type: %b\r\ncontent-length: %d\r\n\r\n" % (kind, len(body)))
        one.writer.write(body)
        assert refused(await one.rest(), status)["error"]["code"] == code


async def test_many_slow_connections_keep_nobody_out_for_long_and_leave_nothing(
    nats_server: NatsServer, subjects: Subjects
) -> None:
    async with running_frontend(nats_server, subjects, head_s=2.0, max_connections=40) as stand:
        slow = [await Client.to(stand) for _ in range(40)]
        for one in slow:
            one.writer.write(HEAD)
        late = await Client.to(stand)
        said = await late.rest()
        assert refused(said, 503)["error"]["code"] == "overloaded"
        assert b"retry-after: 1" in said
        for one in slow:
            refused(await one.rest(), 408)
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


@pytest.mark.parametrize(("version", "chunked"), [(b"1.1", True), (b"1.0", False)])
async def test_a_stream_to_a_client_of_http_1_0_has_no_chunks_and_ends_with_the_connection(
    stand: Stand, version: bytes, chunked: bool
) -> None:
    body = b'{"model": "org/m", "stream": true, "messages": [{"role": "user", "content": "hi"}]}'
    async with stand.tokenizer() as tokenizer:
        one = await Client.to(stand)
        head = HEAD.replace(b"1.1", version) + b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
        one.writer.write(head + body)
        request = await tokenizer.request()
        tokenizer.say(request.turn.turn_id, Accepted(prompt_tokens=5), TextDelta(text="one "))
        start = await one.reader.readuntil(b"one ")
        end = Finished(reason="stop", usage=Usage(prompt_tokens=5, completion_tokens=2))
        tokenizer.say(request.turn.turn_id, TextDelta(text="two"), end)
        said = start + await one.rest()
    headers, _, told = said.partition(b"\r\n\r\n")
    assert (b"transfer-encoding: chunked" in headers) is chunked
    assert b"connection: close" in headers
    assert told.startswith(b"data: ") is not chunked
    assert told.endswith(b"0\r\n\r\n" if chunked else b"data: [DONE]\n\n")


async def test_what_has_a_length_has_it_in_http_1_0_too(stand: Stand) -> None:
    one = await Client.to(stand)
    one.writer.write(b"GET /health HTTP/1.0\r\n\r\n")
    headers, _, told = (await one.rest()).partition(b"\r\n\r\n")
    assert f"content-length: {len(told)}".encode() in headers
    assert json.loads(told)["alive"]
