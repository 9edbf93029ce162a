"""The examples of the documentation, against a real mesh: an executor and an observer in plain nats-py."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from tests.mesh.harness import MODEL, PATIENCE_S, RunningMesh, stream

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
LOOKUP = {
    "type": "function",
    "function": {
        "name": "lookup",
        "description": "Look a word up.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
    },
}
ASK: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Look up the word `catenary`."}],
    "tools": [LOOKUP],
    "nvext": {"run_tools": ["lookup"], "tool_dispatch": True},
}


@contextmanager
def example(name: str, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-u", str(EXAMPLES / name), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_the_examples_are_short() -> None:
    for name, limit in (("executor.py", 20), ("observer.py", 10)):
        text = (EXAMPLES / name).read_text()
        code = text.split('"""', 2)[2]
        lines = [line for line in code.splitlines() if line.strip() and not line.startswith(("import", "asyncio.run"))]
        assert len(lines) <= limit
        assert "catenary_" not in text


async def test_the_executor_has_the_call_twenty_tokens_before_the_turn_ends(paced_mesh: RunningMesh) -> None:
    provision = [sys.executable, "-m", "catenary_cli", "provision", "--nats", paced_mesh.broker, "--tool", "lookup"]
    made = await asyncio.to_thread(subprocess.run, provision, capture_output=True, text=True, check=True)
    assert "exec-lookup" in made.stdout
    with example("executor.py", paced_mesh.broker, "lookup"):
        async with paced_mesh.client() as client:
            events = await stream(client, ASK)
    names = [event.name for event in events]
    result = names.index("tool_result")
    ends = [at for at, event in enumerate(events) if not event.name and event.data != "[DONE]" and _ended(event.data)]
    spoken = [event for event in events[result : ends[0]] if not event.name]
    assert len(spoken) >= 20
    assert "catenary" in msgspec.json.encode(events[result].data).decode()


def _ended(chunk: dict[str, Any]) -> bool:
    return any(choice["finish_reason"] for choice in chunk["choices"])


async def test_the_observer_sees_the_call(mesh: RunningMesh) -> None:
    with example("observer.py", mesh.broker) as observer:
        assert observer.stdout is not None
        assert "watching" in await asyncio.wait_for(asyncio.to_thread(observer.stdout.readline), PATIENCE_S)
        async with mesh.client() as client:
            await client.post("/v1/chat/completions", json={**ASK, "nvext": None})
        line = await asyncio.wait_for(asyncio.to_thread(observer.stdout.readline), PATIENCE_S)
    subject, _, data = line.partition(" ")
    assert subject == mesh.subjects.to("tool_call", tool="lookup", run_by="client")
    assert msgspec.json.decode(data)["arguments"] == {"word": "catenary"}
