"""Bytes that are no request, or half of one: each is answered by a 4xx or closed, never a 500, and others are served."""

import asyncio
import json
import random
import re
from collections.abc import AsyncIterator

import pytest
from catenary_frontend.testing import Stand, running_frontend
from catenary_protocols.bus.subjects import Subjects
from catenary_runtime.testing import NatsServer

PATIENCE_S = 20
PATHS = ("/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/completions", "/v1/messages/count_tokens")
BODY = json.dumps({"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}], "input": "hi"})
STATUS = re.compile(rb"HTTP/1\.1 (\d{3})")


@pytest.fixture
async def stand(nats_server: NatsServer, subjects: Subjects) -> AsyncIterator[Stand]:
    async with running_frontend(nats_server, subjects, head_s=1.0, body_s=1.0) as one:
        yield one


def head(path: str, *lines: str) -> bytes:
    return "\r\n".join([f"POST {path} HTTP/1.1", "host: x", "content-type: application/json", *lines, "", ""]).encode()


def whole(path: str, body: bytes) -> bytes:
    return head(path, f"content-length: {len(body)}", "connection: close") + body


def chunked(path: str, chunks: bytes) -> bytes:
    return head(path, "transfer-encoding: chunked", "connection: close") + chunks


def odd(path: str) -> list[bytes]:
    """What nobody sends on purpose."""
    data = BODY.encode()
    return [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
        b"\x00" * 100,
        b"GET\r\n\r\n",
        f"BREW {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode(),
        f"POST {path} HTTP/9.9\r\n\r\n".encode(),
        head(path, "content-length: -1"),
        head(path, "content-length: 1", "content-length: 2") + data,
        head(path, "content-length: 99999999999999999999"),
        head(path, f"content-length: {len(data) + 50}") + data,
        head(path, "x-big: " + "a" * 70_000),
        head(path, *(f"x-{number}: y" for number in range(5000))),
        head(path, "x-\x00: \x7f", "connection: close"),
        chunked(path, b"zz\r\n" + data),
        chunked(path, b"5\r\nab"),
        chunked(path, b"ffffffffffffffff\r\n" + data),
        chunked(path, b"2;" + b"e" * 9000 + b"\r\n{}\r\n0\r\n\r\n"),
        chunked(path, b"%x\r\n%b\r\n0\r\nx-trailer: \x00\r\n\r\n" % (len(data), data[::-1])),
        whole(path, b""),
        whole(path, b"[" * 50_000),
        whole(path, b'{"model":' * 5000),
        whole(path, b'{"model":"m","messages":[{"role":"user","content":"\xff\xfe"}]}'),
        whole(path, b'{"model":"\\ud800","messages":[],"input":"\\udfff","max_tokens":1e999}'),
        whole(path, b"\xef\xbb\xbf" + data),
        whole(path, data + data),
        whole(path, b"1" * 100_000),
    ]


def cut_and_changed(rng: random.Random, path: str) -> list[bytes]:
    data = BODY.encode()
    bodies = [data[: rng.randrange(len(data))] for _ in range(20)]
    for _ in range(40):
        body = bytearray(data)
        at = rng.randrange(len(body))
        body[at : at + rng.randint(1, 3)] = rng.randbytes(rng.randint(1, 3))
        bodies.append(bytes(body))
    requests = [whole(path, body) for body in bodies]
    for _ in range(20):
        request = bytearray(whole(path, data))
        request[rng.randrange(len(request) - len(data))] = rng.randrange(256)
        requests.append(bytes(request))
    return requests


async def answers(stand: Stand, sent: bytes) -> list[int]:
    """Status of each answer; the connection is closed by the other side, or by us when half of a request was all."""
    host, port = stand.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    said = b""
    try:
        writer.write(sent)
        writer.write_eof()
        async with asyncio.timeout(PATIENCE_S):
            while piece := await reader.read(65536):
                said += piece
    except (ConnectionError, BrokenPipeError):  # it closed while we were still sending
        pass
    finally:
        writer.close()
    return [int(status) for status in STATUS.findall(said)]


@pytest.mark.parametrize("path", PATHS)
async def test_no_bytes_make_a_500(stand: Stand, path: str) -> None:
    rng = random.Random(path)  # noqa: S311  # a repeatable one
    for sent in [*odd(path), *cut_and_changed(rng, path)]:
        for status in await answers(stand, sent):
            assert 200 <= status < 500 or status == 503, (status, sent[:300])
    assert (await stand.http.get("/health")).status_code == 200
