"""Calls leave the mesh while the turn goes on; only those it was asked to run are run."""

import asyncio
from typing import Any

import httpx
import msgspec
from catenary_protocols.bus.codec import Decoder
from catenary_protocols.bus.tool_plane import ToolCall, ToolResult
from catenary_runtime.bus import Bus
from nats.aio.msg import Msg

from tests.mesh.harness import MODEL, PATIENCE_S, WEATHER, RunningMesh, Script, stream

ASK: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "What is the weather in `Oslo`?"}],
    "tools": [WEATHER],
}
MESH = {"run_tools": True, "tool_dispatch": True}
decode_call = Decoder(ToolCall, json=True)
decode_result = Decoder(ToolResult, json=True)


async def test_side_events_come_before_the_turn_ends(paced_mesh: RunningMesh) -> None:
    async with paced_mesh.client() as client:
        events = await stream(client, {**ASK, "nvext": MESH})
    names = [event.name for event in events]
    ended = next(
        at
        for at, event in enumerate(events)
        if not event.name and event.data != "[DONE]" and any(c["finish_reason"] for c in event.data["choices"])
    )
    assert names.index("tool_call_dispatch") < names.index("tool_result") < ended
    after = [event for event in events[names.index("tool_result") : ended] if not event.name]
    assert len(after) >= 20, "the model goes on talking"


async def test_a_call_the_mesh_runs_gets_one_result(client: httpx.AsyncClient, mesh_bus: Bus) -> None:
    calls: asyncio.Queue[ToolCall] = asyncio.Queue()
    results: asyncio.Queue[ToolResult] = asyncio.Queue()

    def on_call(msg: Msg) -> None:
        calls.put_nowait(decode_call(msg.data))

    def on_result(msg: Msg) -> None:
        results.put_nowait(decode_result(msg.data))

    await mesh_bus.subscribe(mesh_bus.subjects.to("tool_call", run_by="mesh"), on_call)
    await mesh_bus.subscribe(mesh_bus.subjects.to("tool_result"), on_result)
    await mesh_bus.nc.flush()
    await client.post("/v1/chat/completions", json={**ASK, "nvext": {"run_tools": ["get_weather"]}})
    async with asyncio.timeout(PATIENCE_S):
        call, result = await calls.get(), await results.get()
    assert msgspec.json.decode(call.arguments) == {"city": "Oslo"}
    assert result.key == call.key
    assert result.error is None
    assert "Oslo" in result.output


async def test_arguments_that_do_not_fit_the_schema_are_not_run(
    client: httpx.AsyncClient, script: Script, mesh_bus: Bus
) -> None:
    results: asyncio.Queue[ToolResult] = asyncio.Queue()

    def on_result(msg: Msg) -> None:
        results.put_nowait(decode_result(msg.data))

    await script.say(
        '<tool_call>\n{"name": "get_weather", "arguments": {"town": 3}}\n</tool_call>', match="wrong-arguments"
    )
    await mesh_bus.subscribe(mesh_bus.subjects.to("tool_result"), on_result)
    await mesh_bus.nc.flush()
    messages = [{"role": "user", "content": "wrong-arguments"}]
    await client.post("/v1/chat/completions", json={**ASK, "messages": messages, "nvext": MESH})
    async with asyncio.timeout(PATIENCE_S):
        result = await results.get()
    assert result.error is not None
    assert result.error.code == "invalid_arguments"


async def test_a_tool_the_request_did_not_declare_stays_off_the_bus(
    client: httpx.AsyncClient, script: Script, mesh_bus: Bus
) -> None:
    seen: list[str] = []

    def on_call(msg: Msg) -> None:
        seen.append(decode_call(msg.data).tool)

    await script.say(
        '<tool_call>\n{"name": "calculator", "arguments": {"expression": "1+1"}}\n</tool_call>', match="undeclared-tool"
    )
    await mesh_bus.subscribe(mesh_bus.subjects.to("tool_call"), on_call)
    await mesh_bus.nc.flush()
    messages = [{"role": "user", "content": "undeclared-tool"}]
    answer = await client.post("/v1/chat/completions", json={**ASK, "messages": messages, "nvext": MESH})
    assert [c["function"]["name"] for c in answer.json()["choices"][0]["message"]["tool_calls"]] == ["calculator"]
    await client.post("/v1/chat/completions", json={**ASK, "nvext": MESH})
    while "get_weather" not in seen:
        await mesh_bus.nc.flush()
    assert "calculator" not in seen
