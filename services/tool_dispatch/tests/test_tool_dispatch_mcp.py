"""MCP servers as processes, over stdin and stdout and over HTTP, behind a real broker."""

import asyncio
import json
import os
import re
import shlex
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from catenary_protocols.bus.messages import Beat
from catenary_runtime.testing import NatsServer
from catenary_tool_dispatch import servers
from catenary_tool_dispatch.executors import mcp
from catenary_tool_dispatch.service import ToolDispatchService
from catenary_tool_dispatch.testing import Caller, registry_file, serving

HERE = Path(__file__).parent
STDIO = [sys.executable, str(HERE / "tool_dispatch_mcp_server.py"), "stdio"]
OLD = [sys.executable, str(HERE / "tool_dispatch_old_mcp_server.py")]


@asynccontextmanager
async def over_http(port: int = 0, *more: str) -> AsyncIterator[tuple[Process, int]]:
    process = await asyncio.create_subprocess_exec(*STDIO[:2], "http", str(port), *more, stderr=PIPE)
    assert process.stderr is not None
    try:
        while not (listening := re.search(rb"running on http://127.0.0.1:(\d+)", await process.stderr.readline())):
            assert process.returncode is None
        yield process, int(listening[1])
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def until(caller: Caller, holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():
            await caller.bus.nc.flush()


async def pulled(caller: Caller, service: ToolDispatchService, tool: str) -> None:
    await until(caller, lambda: tool in service.lanes)
    await service.lanes[tool].puller.bound.wait()


def stdio(folder: Path, **more: Any) -> Path:
    return registry_file(folder, mcp=[{"name": "s", "command": STDIO, **more}])


def code(result: Any) -> str:
    return result.error.code if result.error else "ok"


async def test_the_tools_of_a_server_are_found_checked_and_run(
    server: NatsServer, caller: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIVEN_TO_THE_SERVER", "given")
    monkeypatch.setenv("KEPT_FROM_THE_SERVER", "secret")
    registry = stdio(tmp_path, env=["GIVEN_TO_THE_SERVER"], max_output_bytes=1001)
    async with serving(server, caller, registry) as service:
        assert service.servers.state() == (True, f"s: {len(service.lanes)} tools")
        call = caller.call
        added, wrong, failed, given, kept, mixed, numbers, long = await asyncio.gather(
            call("s_add", {"a": 2, "b": 3}),
            call("s_add", {"a": 2}),
            call("s_fail", {"why": "out of paper"}),
            call("s_environment", {"name": "GIVEN_TO_THE_SERVER"}),
            call("s_environment", {"name": "KEPT_FROM_THE_SERVER"}),
            call("s_mixed", {}),
            call("s_numbers", {}),
            call("s_long", {"size": 100_000}),
        )
    assert (code(added), added.output) == ("ok", "5")
    assert code(wrong) == "invalid_arguments"
    assert "'b' is a required property" in wrong.output
    assert code(failed) == "failed"
    assert "out of paper" in failed.output
    assert (given.output, kept.output) == ("given", "not there")
    assert mixed.output.split("\n") == [
        "first",
        "[image, image/png, 5 bytes: not shown]",
        "from a.txt",
        "[resource file:///b.bin, application/x-b, 3 bytes: not shown]",
        "[resource report, application/pdf: file:///r.pdf]",
    ]
    assert json.loads(numbers.output) == {"one": 1}
    assert (long.output, long.truncated) == ("ä" * 500, True)


async def test_names_are_prefixed_chosen_and_never_taken_from_others(
    server: NatsServer, caller: Caller, tmp_path: Path
) -> None:
    registry = registry_file(
        tmp_path,
        {"name": "add", "command": ["echo", "the registry's"]},
        mcp=[{"name": "s", "command": STDIO, "prefix": "", "tools": ["add", "pid"]}],
    )
    async with serving(server, caller, registry) as service:
        assert list(service.lanes) == ["add", "pid"]
        assert (await caller.call("add", {})).output == "the registry's\n"
        assert code(await caller.call("environment", {"name": "PATH"})) == "unknown_tool"


async def test_tools_beyond_a_bound_are_left_out(
    server: NatsServer, caller: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "_MOST", 2)
    async with serving(server, caller, stdio(tmp_path)) as service:
        assert list(service.lanes) == ["s_add", "s_pid"]


async def test_a_server_over_http_gets_its_headers_and_comes_back_after_its_death(
    server: NatsServer, caller: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEARCH_AUTHORIZATION", "Bearer 12345")
    async with over_http() as (process, port):
        spec = {
            "name": "web",
            "url": f"http://127.0.0.1:{port}/mcp",
            "private_host": "127.0.0.1",
            "headers": {"Authorization": "SEARCH_AUTHORIZATION"},
        }
        async with serving(server, caller, registry_file(tmp_path, mcp=[spec])):
            assert (await caller.call("web_header", {"name": "authorization"})).output == "Bearer 12345"
            first = await caller.call("web_pid", {})
            process.kill()
            await process.wait()
            call = caller.make("web_pid", {})
            await caller.publish(call)
            async with over_http(port):
                second = await caller.result(call.key)
    assert (code(first), code(second)) == ("ok", "ok")
    assert first.output != second.output


async def test_a_server_on_a_private_address_is_not_asked_unless_the_registry_says_so(
    server: NatsServer, caller: Caller, tmp_path: Path
) -> None:
    asked = asyncio.Event()

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        writer.close()

    listener = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    lost = asyncio.Event()
    registry = registry_file(tmp_path, mcp=[{"name": "web", "url": f"http://localhost:{port}/mcp"}])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mcp, "log", Said(lost))
        async with listener, serving(server, caller, registry, wait=False) as service:
            await lost.wait()
            ok, detail = service.servers.state()
            assert not ok
            assert detail.startswith("web: not connected: ")
    assert not asked.is_set()


class Said:
    """A log that tells when a server was lost."""

    def __init__(self, lost: asyncio.Event) -> None:
        self._lost = lost

    def info(self, *_: object, **__: object) -> None:
        """Nothing is waited for."""

    def warning(self, event: str, *, error: str = "", **_: object) -> None:
        if event == "mcp.lost" and "not public" in error:
            self._lost.set()


async def test_a_call_in_which_the_server_dies_is_run_by_its_successor(
    server: NatsServer, caller: Caller, tmp_path: Path
) -> None:
    async with serving(server, caller, stdio(tmp_path)):
        result = await caller.call("s_die", {"times": 1, "log": str(tmp_path / "log")})
    assert (code(result), result.output) == ("ok", "xx")


@pytest.mark.slow
async def test_an_at_most_once_call_in_which_the_server_dies_fails_and_is_not_run_again(
    server: NatsServer, caller: Caller, tmp_path: Path
) -> None:
    async with serving(server, caller, stdio(tmp_path, at_most_once=True)):
        result = await caller.call("s_die", {"times": 9, "log": str(tmp_path / "log")})
        again = await caller.call("s_add", {"a": 1, "b": 1})
    assert (code(result), code(again)) == ("failed", "ok")
    assert (tmp_path / "log").read_text() == "x"


@pytest.mark.slow
async def test_a_call_that_takes_its_server_down_each_time_becomes_a_dead_letter(
    server: NatsServer, caller: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp, "_AGAIN_MOST_S", 0.5)
    async with serving(server, caller, stdio(tmp_path)):
        call = caller.make("s_die", {"times": 99, "log": str(tmp_path / "log")}, left_s=60)
        await caller.publish(call)
        result = await caller.result(call.key, within_s=50)
    assert code(result) == "failed"
    assert (tmp_path / "log").read_text() == "xxxx"
    assert await caller.stored("tool_dead") == 1


async def test_the_death_of_an_idle_server_is_noticed(
    server: NatsServer, caller: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp, "CHECK_S", 0.1)
    async with serving(server, caller, stdio(tmp_path)) as service:
        first = await caller.call("s_pid", {})
        os.kill(int(first.output), signal.SIGKILL)
        await until(caller, lambda: not service.servers.state()[0])
        assert service.health.ready()[0]
        assert service.health.warning().startswith("mcp: s: not connected")
        second = await caller.call("s_pid", {})
    assert code(second) == "ok"
    assert second.output != first.output


@pytest.mark.parametrize("way", ["stdio", "events", "json"])
async def test_an_answer_that_is_too_long_is_dropped_and_fails_its_call_alone(
    server: NatsServer, caller: Caller, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp, "MESSAGE_BYTES", 100_000)
    async with over_http(0, way) as (_, port):
        spec = {"url": f"http://127.0.0.1:{port}/mcp", "private_host": "127.0.0.1"}
        registry = registry_file(tmp_path, mcp=[{"name": "s", **({"command": STDIO} if way == "stdio" else spec)}])
        async with serving(server, caller, registry):
            before = await caller.call("s_pid", {})
            long, short = await asyncio.gather(
                caller.call("s_long", {"size": 3_000_000}), caller.call("s_long", {"size": 5_000})
            )
            after = await caller.call("s_pid", {})
    assert (code(long), code(short)) == ("failed", "ok")
    assert "100000" in long.output or "SSE" in long.output
    assert before.output == after.output, "its server was not restarted for it"


@pytest.mark.parametrize("way", ["stdio", "http"])
async def test_a_change_of_the_tools_is_followed(
    server: NatsServer, caller: Caller, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp, "CHECK_S", 60.0)
    async with over_http() as (_, port):
        spec = {"url": f"http://127.0.0.1:{port}/mcp", "private_host": "127.0.0.1"}
        registry = registry_file(tmp_path, mcp=[{"name": "s", **(spec if way == "http" else {"command": STDIO})}])
        async with serving(server, caller, registry) as service:
            await caller.call("s_change", {"add_tool": "more", "remove": "numbers"})
            await pulled(caller, service, "s_more")
            more = await caller.call("s_more", {})
            less = await caller.call("s_numbers", {})
    assert more.output == "here"
    assert code(less) == "unknown_tool"


@pytest.mark.parametrize("way", [pytest.param("stdio", marks=pytest.mark.slow), "http"])
@pytest.mark.parametrize("by", ["cancel", "time"])
async def test_the_server_is_told_when_a_call_is_cancelled_or_its_time_is_over(
    server: NatsServer, caller: Caller, tmp_path: Path, way: str, by: str
) -> None:
    begun, ended = tmp_path / "begun", tmp_path / "ended"
    os.mkfifo(begun)
    os.mkfifo(ended)
    async with over_http() as (_, port):
        spec = {"url": f"http://127.0.0.1:{port}/mcp", "private_host": "127.0.0.1"}
        more = spec if way == "http" else {"command": STDIO}
        limit = 1.0 if by == "time" else 30.0
        registry = registry_file(tmp_path, mcp=[{"name": "s", "timeout_s": limit, **more}])
        async with serving(server, caller, registry):
            call = caller.make("s_hang", {"begun": str(begun), "ended": str(ended)})
            await caller.publish(call)
            assert await asyncio.to_thread(begun.read_text) == "begun"
            if by == "cancel":
                await caller.cancel(call)
            assert await asyncio.to_thread(ended.read_text) == "cancelled"
            result = await caller.result(call.key)
    assert code(result) == ("cancelled" if by == "cancel" else "timeout")


async def test_asked_to_stop_it_ends_what_runs_first_and_then_the_server(
    server: NatsServer, caller: Caller, tmp_path: Path
) -> None:
    begun, told = tmp_path / "begun", tmp_path / "told"
    os.mkfifo(begun)
    os.mkfifo(told)
    async with serving(server, caller, stdio(tmp_path)) as service:
        pid = int((await caller.call("s_pid", {})).output)
        call = caller.make("s_wait", {"begun": str(begun), "told": str(told)})
        await caller.publish(call)
        assert await asyncio.to_thread(begun.read_text) == "begun"
        service.stopping.set()
        await until(caller, lambda: service.draining)
        await asyncio.to_thread(told.write_text, "go on")
        result = await caller.result(call.key)
    assert (code(result), result.output) == ("ok", "go on")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_server_of_last_year_is_understood(
    server: NatsServer, caller: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp, "CHECK_S", 60.0)
    async with serving(server, caller, registry_file(tmp_path, mcp=[{"name": "old", "command": OLD}])) as service:
        assert (await caller.call("old_first", {})).output == "one more"
        await pulled(caller, service, "old_second")
        said = (await caller.call("old_second", {})).output
    assert "initialize notifications/initialized tools/list tools/call tools/list" in said


ABSENT = ["/no/such/program"], ": FileNotFoundError: [Errno 2] No such file or directory: '/no/such/program'"
ENDS, SILENT = (["true"], ": "), (["sleep", "600"], "")


@pytest.mark.parametrize("dead", [ABSENT, ENDS, SILENT])
async def test_a_server_that_does_not_start_stops_nothing_and_is_told_of(
    server: NatsServer, caller: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dead: tuple[list[str], str]
) -> None:
    command, why = dead
    monkeypatch.setattr(servers, "FIRST_S", 0.5)
    registry = registry_file(tmp_path, {"name": "echo", "command": ["cat"]}, mcp=[{"name": "none", "command": command}])
    async with asyncio.timeout(mcp.START_S / 2), serving(server, caller, registry) as service:
        assert (await caller.call("echo", {"a": 1})).output == '{"a": 1}'
        assert code(await caller.call("none_tool", {})) == "unknown_tool"
        ready, rows = service.health.ready()
        assert ready
        mcp_row = next(row for row in rows if row["check"] == "mcp")
        assert not mcp_row["ok"]
        assert str(mcp_row["detail"]).startswith(f"none: not connected{why}")
        beat = service.beat()
        assert isinstance(beat, Beat)
        assert beat.ready
        assert beat.warning == f"mcp: {mcp_row['detail']}"


async def test_a_server_that_comes_up_later_has_its_tools_then(
    server: NatsServer, caller: Caller, tmp_path: Path
) -> None:
    program = tmp_path / "server"
    registry = registry_file(tmp_path, mcp=[{"name": "s", "command": [str(program)]}])
    async with serving(server, caller, registry) as service:
        assert not service.lanes
        assert code(await caller.call("s_pid", {})) == "unknown_tool"
        await asyncio.to_thread(program.write_text, f"#!/bin/sh\nexec {shlex.join(STDIO)}\n")
        await asyncio.to_thread(program.chmod, 0o700)
        await pulled(caller, service, "s_pid")
        assert code(await caller.call("s_pid", {})) == "ok"
        assert service.health.warning() == ""
