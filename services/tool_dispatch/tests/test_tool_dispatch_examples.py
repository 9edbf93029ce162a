"""The examples of the documentation, as a stranger would run them, against a mesh's stream."""

import ast
import asyncio
import re
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from catenary_runtime.provision import ensure_consumer
from catenary_runtime.testing import NatsServer, temporary_nats
from catenary_tool_dispatch.reading import read_call, read_result
from catenary_tool_dispatch.registry import load
from catenary_tool_dispatch.testing import Caller, caller_on, serving

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"


@pytest.fixture
async def server() -> AsyncIterator[NatsServer]:
    async with temporary_nats() as one:
        yield one


@pytest.fixture
async def caller(server: NatsServer) -> AsyncIterator[Caller]:
    async with caller_on(server) as one:
        yield one


@asynccontextmanager
async def example(name: str, *arguments: str) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(sys.executable, str(EXAMPLES / name), *arguments, stdout=PIPE)
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


def blocks(language: str) -> list[str]:
    page = (EXAMPLES.parent / "how-to" / "write-an-executor.md").read_text()
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def test_the_registry_of_the_how_to_can_be_loaded(tmp_path: Path) -> None:
    (text,) = blocks("toml")
    (tmp_path / "deploy.schema.json").write_text("{}")
    (tmp_path / "tools.toml").write_text(text)
    assert list(load(tmp_path / "tools.toml")) == ["disk_usage", "deploy"]


def test_the_messages_of_the_how_to_are_messages() -> None:
    call, result = blocks("json")
    assert read_call(call.encode()).arguments == msgspec.Raw(b'{"word": "catenary"}')
    assert read_result(result.encode()).key == read_call(call.encode()).key
