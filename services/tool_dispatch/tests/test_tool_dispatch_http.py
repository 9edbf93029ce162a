"""Tools behind a URL: a real server, and names that lead where they should not."""

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trustme
from catenary_runtime import telemetry
from catenary_tool_dispatch.executors.base import Invocation, Outcome
from catenary_tool_dispatch.executors.guard import client_for
from catenary_tool_dispatch.executors.http import HttpExecutor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import use_span

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Site:
    """A server that gives one answer to everything, and keeps what it was asked."""

    port: int = 0
    heads: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)


@asynccontextmanager
async def site(answer: bytes | Answer, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[Site]:
    seen = Site()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode():
                size = next(int(line[15:]) for line in head.lower().splitlines() if line.startswith("content-length:"))
                seen.heads.append(head)
                seen.bodies.append(await reader.readexactly(size))
                if isinstance(answer, bytes):
                    writer.write(answer)
                else:
                    await answer(writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls) as listener:
        seen.port = listener.sockets[0].getsockname()[1]
        yield seen


def said(body: bytes, *, status: str = "200 OK", kind: str = "application/json", more: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


async def post(
    url: str,
    values: dict[str, Any] | None = None,
    *,
    private_host: str = "127.0.0.1",
    seconds: float = 10,
    max_output: int = 1000,
    headers: dict[str, str] | None = None,
) -> Outcome:
    executor = HttpExecutor(url, headers=headers or {}, private_host=private_host, max_output=max_output)
    try:
        values = values or {}
        return await executor.run(Invocation("turn-0-0", values, json.dumps(values).encode()), seconds)
    finally:
        await executor.close()


async def test_arguments_go_out_as_json_and_the_body_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEATHER_KEY", "Bearer 12345")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    async with site(said('{"sky": "grå"}'.encode())) as one:
        outcome = await post(
            f"http://127.0.0.1:{one.port}/w?units=si", {"city": "Ås"}, headers={"Authorization": "WEATHER_KEY"}
        )
    assert outcome == Outcome('{"sky": "grå"}')
    assert json.loads(one.bodies[0]) == {"city": "Ås"}
    head = one.heads[0].splitlines()
    assert head[0] == "POST /w?units=si HTTP/1.1"
    for line in (
        f"host: 127.0.0.1:{one.port}",
        "content-type: application/json",
        "accept-encoding: identity",
        "idempotency-key: turn-0-0",
        "authorization: bearer 12345",
    ):
        assert line in [header.lower() for header in head]


async def test_the_connection_is_kept_and_the_trace_goes_along() -> None:
    span = TracerProvider().get_tracer("test").start_span("run")
    async with site(said(b"{}")) as one:
        executor = HttpExecutor(f"http://127.0.0.1:{one.port}", headers={}, private_host="127.0.0.1", max_output=10)
        with use_span(span):
            for _ in range(2):
                assert (await executor.run(Invocation("k", {}, b"{}"), 5)).output == "{}"
        await executor.close()
    assert f"traceparent: {telemetry.headers_of(span)['traceparent']}" in one.heads[1]


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (
            said(b"no such city", status="404 Not Found", kind="text/plain"),
            Outcome("no such city", "failed", "the server answered 404"),
        ),
        (
            said(b"", status="302 Found", more="location: http://127.0.0.1:1/\r\n"),
            Outcome("", "failed", "the server answered 302, a redirect, which is not followed"),
        ),
        (
            said(b"\x1f\x8b", more="content-encoding: gzip\r\n"),
            Outcome("", "failed", "the server compressed its answer, which was not asked for"),
        ),
        (said(b"\x89PNG", kind="image/png"), Outcome("[answer, image/png, 4 bytes: not shown]")),
        (
            said(b"x" * 5000, kind="application/octet-stream"),
            Outcome("[answer, application/octet-stream, too large: not shown]"),
        ),
        (said(b"a\xffb", kind="text/plain; charset=utf-8"), Outcome("a\ufffdb")),
        (said(b"", status="204 No Content"), Outcome("")),
        (said(b"y" * 3000, kind="text/plain"), Outcome("y" * 1000, truncated=True)),
        (b"SSH-2.0-x\r\n\r\n", Outcome("", "failed", "the server's answer broke off: RemoteProtocolError")),
        (said(b"short").replace(b"5", b"9"), Outcome("", "failed", "the server's answer broke off: ReadTimeout")),
    ],
    ids=["404", "302", "gzip", "png", "large", "bad bytes", "204", "long", "no http", "cut"],
)
async def test_each_answer_is_an_outcome(answer: bytes, outcome: Outcome) -> None:
    async def write_and_close(writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        writer.close()

    async with site(write_and_close) as one:
        got = await post(f"http://127.0.0.1:{one.port}")
    if "broke off" in outcome.message:
        assert (got.code, got.message.partition(":")[0]) == (outcome.code, "the server's answer broke off")
    else:
        assert got == outcome


async def test_an_endless_answer_is_cut_and_a_silent_one_times_out() -> None:
    async def endless(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"4\r\nyyyy\r\n")
            await writer.drain()

    async def silent(_: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async with site(endless) as one:
        outcome = await post(f"http://127.0.0.1:{one.port}", max_output=10)
    assert outcome == Outcome("y" * 10, truncated=True)
    async with site(silent) as one:
        outcome = await post(f"http://127.0.0.1:{one.port}", seconds=0.2)
    assert outcome.code == "timeout"


@pytest.mark.parametrize("url", ["http://localhost:{}", "http://127.0.0.1:{}", "http://2130706433:{}", "http://0:{}"])
async def test_a_private_address_is_not_connected_to_without_leave(url: str) -> None:
    async with site(said(b"secret")) as one:
        outcome = await post(url.format(one.port), private_host="")
    assert not one.heads
    assert (outcome.code, outcome.output) == ("failed", "")
    assert outcome.message.endswith("leads to an address that is not public")


class Names:
    """A resolver that gives each look-up its own answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> None:
        self.left = list(answers)
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", self.resolve)

    async def resolve(self, host: str, port: int, **_: Any) -> list[tuple[Any, ...]]:
        if host != "tool.example":
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in self.left.pop(0)]


async def test_a_name_is_looked_up_once_and_what_was_checked_is_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    async with site(said(b'"ok"')) as one:
        names = Names(monkeypatch, ["169.254.169.254", "127.0.0.1"])
        outcome = await post(f"http://tool.example:{one.port}", private_host="tool.example")
        async with client_for({}, "tool.example") as client:
            names.left.append(["127.0.0.1"])
            answer = await client.post(f"http://tool.example:{one.port}/a")
    assert (outcome.output, names.left) == ('"ok"', [])
    assert answer.url == f"http://tool.example:{one.port}/a"  # what a redirect within the host is measured by
    assert f"host: tool.example:{one.port}" in one.heads[0].lower()


async def test_a_name_that_leads_elsewhere_later_is_checked_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    async with site(said(b'"ok"')) as one:
        Names(monkeypatch, ["127.0.0.1"], ["169.254.169.254"])
        executor = HttpExecutor(
            f"http://tool.example:{one.port}", headers={}, private_host="tool.example", max_output=10
        )
        outcomes = [await executor.run(Invocation("k", {}, b"{}"), 5) for _ in range(2)]
        await executor.close()
    assert [outcome.code for outcome in outcomes] == ["", "failed"]
    assert len(one.heads) == 1


async def test_the_next_address_is_tried_where_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    async with site(said(b'"ok"')) as one:
        Names(monkeypatch, ["127.0.0.2", "127.0.0.1"])
        outcome = await post(f"http://tool.example:{one.port}", private_host="tool.example")
    assert outcome.output == '"ok"'


async def test_a_server_that_is_not_there_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    async with site(b"") as one:
        pass
    assert "cannot be reached" in (await post(f"http://127.0.0.1:{one.port}")).message
    outcome = await post("http://name.invalid")
    assert (outcome.code, outcome.message) == (
        "failed",
        "the server cannot be reached: name.invalid cannot be resolved",
    )


async def test_a_certificate_must_be_of_the_hosts_name_though_its_address_is_connected_to(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("tool.example").configure_cert(context)
    async with site(said(b'"ok"'), tls=context) as one:
        Names(monkeypatch, ["127.0.0.1"])
        right = await post(f"https://tool.example:{one.port}", private_host="tool.example")
        wrong = await post(f"https://127.0.0.1:{one.port}")
    assert right.output == '"ok"'
    assert (wrong.code, wrong.output) == ("failed", "")
    assert "certificate" in wrong.message
    assert len(one.heads) == 1
