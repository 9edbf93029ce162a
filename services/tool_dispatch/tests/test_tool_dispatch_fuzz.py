"""Arguments of every shape, through every kind of executor: each call has one result, and the service lives on."""

import asyncio
import json
import re
import sys
from pathlib import Path

import msgspec
import pytest
from catenary_protocols.apis.reading import mended
from catenary_protocols.bus.tool_plane import ToolCall
from catenary_runtime.testing import NatsServer
from catenary_tool_dispatch.testing import Caller, caller_on, registry_file, serving
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from msgspec import structs

HERE = Path(__file__).parent
ECHO = """
def echo(**values):
    return values
"""
TEXT = st.text(alphabet=st.characters(exclude_categories=()), max_size=30)
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.just(10**400)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)
DEEP = st.integers(1, 60_000).map(lambda depth: ('{"a":', "[", "]", depth))
HUGE = st.integers(1, 1_500_000).map(lambda size: ('{"a":"', "ä", "", size))
ODD = st.sampled_from([b'{"a":1,"a":2}', b'{"a":1e999}', b'{"a":-0}', b'{"":{"":{}}}', b'"x"', b"null", b"{}", b"[{}]"])
ARGUMENTS = (
    st.dictionaries(TEXT, JSON, max_size=5).map(lambda values: json.dumps(values).encode())
    | JSON.map(lambda value: json.dumps(value).encode())
    | ODD
    | DEEP
    | HUGE
)
QUOTE = '"'
Shape = bytes | tuple[str, str, str, int]
KEYS = st.none() | st.text(alphabet=st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
NAMES = re.compile("[!-~]+")
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "array", "items": {"$ref": "#"}, "uniqueItems": True}, "b": {"type": "integer"}},
    "patternProperties": {"^x": {"type": "string", "maxLength": 3}},
}

WHOLE = settings(
    phases=[Phase.generate],  # an example takes a service's life: what fails is better shrunk by hand
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tools_for_fuzzing.py").write_text(ECHO)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    size = next(int(line[15:]) for line in head.splitlines() if line.startswith("content-length:"))
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n")
    writer.write(await reader.readexactly(size))
    writer.close()


def registry(folder: Path, port: int) -> Path:
    old = [sys.executable, str(HERE / "tool_dispatch_old_mcp_server.py")]
    return registry_file(
        folder,
        {"name": "run", "command": ["cat"]},
        {"name": "call", "python": "tools_for_fuzzing:echo"},
        {"name": "post", "url": f"http://127.0.0.1:{port}/", "private_host": "127.0.0.1"},
        {"name": "strict", "command": ["cat"], "schema": SCHEMA},
        mcp=[{"name": "old", "command": old, "prefix": "", "tools": ["first"]}],
    )


def written(shape: Shape) -> bytes:
    """As JSON; what is too long to be shown in a report is made here."""
    if isinstance(shape, bytes):
        return shape
    head, opening, closing, times = shape
    return f"{head}{opening * times}{closing * times}{'' if closing else QUOTE}}}".encode()


def made(caller: Caller, tool: str, arguments: bytes, key: str | None) -> ToolCall:
    call = caller.make(tool, {})
    return structs.replace(call, arguments=msgspec.Raw(arguments), key=call.key if key is None else key + call.key)


Calls = list[tuple[str, Shape, str | None]]
CALLS = st.lists(st.tuples(st.sampled_from(["run", "call", "post", "first", "strict"]), ARGUMENTS, KEYS), max_size=12)


async def publish_all(server: NatsServer, folder: Path, calls: Calls) -> None:
    async with await asyncio.start_server(echo, "127.0.0.1", 0) as site, caller_on(server) as caller:
        port = site.sockets[0].getsockname()[1]
        async with serving(server, caller, registry(folder, port)):
            published = [made(caller, tool, written(shape), key) for tool, shape, key in calls]
            for call in published:
                await caller.publish(call)
            refused = [call for call in published if not NAMES.fullmatch(call.key)]
            for call in published:
                if call in refused:
                    continue
                result = await caller.result(call.key)
                if result.error is None and call.tool in {"run", "post"} and not result.truncated:
                    assert json.loads(result.output) == json.loads(mended(bytes(call.arguments)))
                else:
                    assert result.error is None or result.error.code in {"invalid_arguments", "failed"}
            assert (await caller.call("run", {})).output == "{}"
        unread = [key for key, (one,) in caller.results.items() if one.output == "the arguments cannot be read"]
        assert await caller.stored("tool_dead") == len(refused) + len(unread)


@given(CALLS)
@settings(WHOLE, max_examples=6)
def test_whatever_the_arguments_are_each_call_has_one_result(server: NatsServer, folder: Path, calls: Calls) -> None:
    asyncio.run(publish_all(server, folder, calls))


@pytest.mark.slow
@given(CALLS)
@settings(WHOLE, max_examples=100)
def test_the_same_for_longer(server: NatsServer, folder: Path, calls: Calls) -> None:
    asyncio.run(publish_all(server, folder, calls))
