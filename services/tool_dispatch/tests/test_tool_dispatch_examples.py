"""The examples of the documentation, as a stranger would run them, against a mesh's stream."""

import ast
import asyncio
import json
import re
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from catenary_runtime.provision import ensure_consumer
from catenary_runtime.testing import NatsServer
from catenary_tool_dispatch.reading import read_approval, read_call, read_result
from catenary_tool_dispatch.registry import read
from catenary_tool_dispatch.specs import McpSpec, ToolSpec
from catenary_tool_dispatch.testing import Caller, registry_file, serving

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"


@asynccontextmanager
async def example(name: str, *arguments: str) -> AsyncIterator[Process]:
    argv = [sys.executable, str(EXAMPLES / name), *arguments]
    process = await asyncio.create_subprocess_exec(*argv, stdin=PIPE, stdout=PIPE)
    try:
        yield process
    finally:
        process.kill()
        await process.wait()


async def test_the_executor_answers_calls_and_leaves_expired_ones(server: NatsServer, caller: Caller) -> None:
    namespace = caller.bus.subjects.namespace
    await ensure_consumer(caller.bus.js, caller.bus.subjects, "lookup")
    async with serving(server, caller), example("executor.py", server.url, "lookup", namespace):
        old = caller.make("lookup", {"word": "old"}, left_s=-1)
        await caller.publish(old)
        result = await caller.call("lookup", {"word": "catenary"})
        expired = await caller.result(old.key)
    assert (result.output, result.error) == ("looked up {'word': 'catenary'}", None)
    assert expired.error is not None
    assert expired.error.code == "expired"


async def test_the_observer_prints_calls_of_every_kind(server: NatsServer, caller: Caller) -> None:
    async with example("observer.py", server.url, caller.bus.subjects.namespace) as observer:
        assert observer.stdout is not None
        assert b"watching" in await observer.stdout.readline()
        for run_by in ("client", "mesh"):
            call = caller.make("lookup", {}, run_by=run_by)
            await caller.publish(call)
            line = (await observer.stdout.readline()).decode()
            assert f"tool.call.lookup.{run_by} " in line
            assert call.key in line


@pytest.mark.parametrize(("name", "most"), [("executor.py", 20), ("observer.py", 10)])
def test_the_examples_stay_short_and_need_only_nats(name: str, most: int) -> None:
    tree = ast.parse((EXAMPLES / name).read_text())
    body = tree.body[1:]
    lines = {node.lineno for part in body for node in ast.walk(part) if isinstance(node, ast.stmt)}
    assert len(lines) <= most
    roots = {
        alias.name.partition(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
    }
    assert roots - sys.stdlib_module_names == {"nats"}


def blocks(page: str, language: str) -> list[str]:
    text = (EXAMPLES.parent / "how-to" / page).read_text()
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def test_the_messages_of_the_how_to_are_messages() -> None:
    call, result = blocks("write-an-executor.md", "json")
    assert read_call(call.encode()).arguments == msgspec.Raw(b'{"word": "catenary"}')
    assert read_result(result.encode()).key == read_call(call.encode()).key
    (approval,) = blocks("run-tools.md", "json")
    assert read_approval(approval.encode()).reason == "not on a Friday"


def test_the_registries_of_the_how_to_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deploy.schema.json").write_text("{}")
    for variable in ("FORECAST_AUTHORIZATION", "SEARCH_AUTHORIZATION"):
        monkeypatch.setenv(variable, "Bearer 12345")
    names = []
    for text in blocks("run-tools.md", "toml"):
        (tmp_path / "tools.toml").write_text(text)
        registry = read(tmp_path / "tools.toml")
        names += [*registry.tools, *registry.servers]
    assert names == ["disk_usage", "deploy", "letters", "forecast", "words", "search"]


def test_the_how_to_names_every_key_of_a_registry() -> None:
    table = (EXAMPLES.parent / "how-to" / "run-tools.md").read_text().partition("## All keys")[2]
    for kind, spec in (("tools", ToolSpec), ("mcp", McpSpec)):
        rows = [line.split("|") for line in table.splitlines() if line.startswith("| `")]
        named = {key for row in rows if row[2].strip() in {kind, "both"} for key in re.findall(r"`(\w+)`", row[1])}
        assert named == set(spec.__struct_fields__)


def registry(folder: Path, number: int, **changes: str) -> Path:
    """One of the page's registries, up to the first empty line."""
    text = blocks("run-tools.md", "toml")[number].partition("\n\n")[0]
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    (folder / "tools.toml").write_text(text)
    return folder / "tools.toml"


async def test_the_url_of_the_how_to_is_called(server: NatsServer, caller: Caller, tmp_path: Path) -> None:
    async with example("http_tool.py", "0") as tool:
        assert tool.stdout is not None
        port = (await tool.stdout.readline()).decode().split()[-1]
        async with serving(server, caller, registry(tmp_path, 1, **{"8900": port})):
            result = await caller.call("letters", {"word": "catenary"})
    assert (json.loads(result.output), result.error) == ({"word": "catenary", "letters": 8}, None)


async def test_the_mcp_server_of_the_how_to_is_run(server: NatsServer, caller: Caller, tmp_path: Path) -> None:
    here = {".venv/bin/python": sys.executable, "docs/examples": str(EXAMPLES)}
    async with serving(server, caller, registry(tmp_path, 3, **here)):
        result = await caller.call("words_letters", {"word": "catenary"})
    assert (result.output, result.error) == ("catenary has 8 letters", None)


@pytest.mark.parametrize(("said", "code"), [("y", "ok"), ("n", "denied")])
async def test_the_approver_lets_a_call_run_or_not(
    server: NatsServer, caller: Caller, tmp_path: Path, said: str, code: str
) -> None:
    path = registry_file(tmp_path, {"name": "deploy", "command": ["cat"], "approval": True})
    async with (
        serving(server, caller, path),
        example("approver.py", server.url, "deploy", caller.bus.subjects.namespace) as approver,
    ):
        assert approver.stdout is not None
        assert approver.stdin is not None
        assert b"waiting for calls" in await approver.stdout.readline()
        call = caller.make("deploy", {"to": "production"})
        await caller.publish(call)
        assert b"production" in await approver.stdout.readuntil(b"[y/n] ")
        approver.stdin.write(said.encode() + b"\n")
        result = await caller.result(call.key)
    assert (result.error.code if result.error else "ok") == code
