"""The documentation's executor and observer, as strangers run them beside a mesh."""

import asyncio
import json
import re
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from nats.aio.msg import Msg

from tests.mesh.harness import PATIENCE_S, RunningMesh, stream

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "write-an-executor.md").read_text()
(BODY,) = re.findall(r"^curl .* -d '(.*?)'", PAGE, re.MULTILINE | re.DOTALL)
REQUEST: dict[str, Any] = json.loads(BODY)
"""What the page has a reader ask."""
LOOKUP = REQUEST["tools"][0]


@asynccontextmanager
async def python(*arguments: str) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=PIPE)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def line_of(process: Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE_S):
        return (await process.stdout.readline()).decode()


async def test_the_example_executor_answers_twenty_tokens_before_decode_ends(paced_mesh: RunningMesh) -> None:
    provision = ["-m", "catenary_cli", "provision", "--tool", "lookup", "--nats", paced_mesh.broker]
    async with python(*provision) as provisioning:
        assert provisioning.stdout is not None
        await provisioning.stdout.read()
        assert await provisioning.wait() == 0
    examples = ROOT / "docs" / "examples"
    async with (
        python(str(examples / "observer.py"), paced_mesh.broker) as observer,
        python(str(examples / "executor.py"), paced_mesh.broker, "lookup"),
        paced_mesh.client() as client,
        paced_mesh.bus() as bus,
    ):
        results: asyncio.Queue[Msg] = asyncio.Queue()
        await bus.subscribe(bus.subjects.to("tool_result", tool="lookup"), results.put_nowait)
        await bus.nc.flush()
        assert "watching" in await line_of(observer)
        for _ in range(2):  # the first time, the executor's interpreter may still be starting
            events = await stream(client, REQUEST)
            assert "tool.call.lookup.mesh" in await line_of(observer)
            async with asyncio.timeout(PATIENCE_S):
                await results.get()
    names = [event.name for event in events]
    at = names.index("tool_result")
    assert events[at].data["content"] == "looked up {'word': 'catenary'}"
    assert not events[at].data["is_error"]
    assert sum(not event.name for event in events[at:]) >= 20
