"""Several answers to one request: whole and as a stream, and no call of theirs on the bus."""

import asyncio
from typing import Any

import httpx
from catenary_protocols.bus.codec import Decoder
from catenary_protocols.bus.tool_plane import ToolCall
from catenary_runtime.bus import Bus
from nats.aio.msg import Msg

from tests.mesh.harness import MODEL, PATIENCE_S, WEATHER, stream

Json = dict[str, Any]
CHAT: Json = {"model": MODEL, "messages": [{"role": "user", "content": "Tell me something."}], "max_tokens": 60}
WEATHERED: Json = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "What is the weather in `Oslo`?"}],
    "tools": [WEATHER],
    "nvext": {"run_tools": True},
}
PLAIN: Json = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 20}


async def test_chat_tells_each_choice_apart_whole_and_as_a_stream(client: httpx.AsyncClient) -> None:
    request = {**CHAT, "n": 3, "seed": 11, "stream_options": {"include_usage": True}}
    whole = (await client.post("/v1/chat/completions", json={**request, "stream_options": None})).json()
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
    events = await stream(client, request)
    chunks = [choice for event in events if event.data != "[DONE]" for choice in event.data["choices"]]
    for choice in whole["choices"]:
        own = [one for one in chunks if one["index"] == choice["index"]]
        said = "".join(one["delta"].get("content") or "" for one in own)
        thought = "".join(one["delta"].get("reasoning_content") or "" for one in own)
        assert (said, thought) == (choice["message"]["content"], choice["message"].get("reasoning_content", ""))
        assert [one["finish_reason"] for one in own if one["finish_reason"]] == [choice["finish_reason"]]
    assert events[-2].data["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert events[-2].data["usage"]["prompt_tokens"] == whole["usage"]["prompt_tokens"]
    assert len({choice["message"].get("reasoning_content") for choice in whole["choices"]}) > 1


async def test_completions_tells_each_choice_apart_whole_and_as_a_stream(client: httpx.AsyncClient) -> None:
    request = {**PLAIN, "n": 2, "seed": 11}
    whole = (await client.post("/v1/completions", json=request)).json()
    events = await stream(client, request, "/v1/completions")
    chunks = [choice for event in events if event.data != "[DONE]" for choice in event.data["choices"]]
    for choice in whole["choices"]:
        own = [one for one in chunks if one["index"] == choice["index"]]
        assert "".join(one["text"] for one in own) == choice["text"] != ""
        assert [one["finish_reason"] for one in own if one["finish_reason"]] == [choice["finish_reason"]]
    assert [choice["index"] for choice in whole["choices"]] == [0, 1]


async def test_calls_of_several_choices_are_the_clients_alone(client: httpx.AsyncClient, mesh_bus: Bus) -> None:
    called: asyncio.Queue[ToolCall] = asyncio.Queue()
    decode: Decoder[ToolCall] = Decoder(ToolCall, json=True)

    def heard(msg: Msg) -> None:
        called.put_nowait(decode(msg.data))

    await mesh_bus.subscribe(mesh_bus.subjects.to("tool_call"), heard)
    await mesh_bus.nc.flush()
    many = await client.post("/v1/chat/completions", json={**WEATHERED, "n": 2})
    calls = [call for choice in many.json()["choices"] for call in choice["message"]["tool_calls"]]
    assert len(calls) >= 2
    one = await client.post("/v1/chat/completions", json=WEATHERED)
    (own,) = one.json()["choices"][0]["message"]["tool_calls"]
    async with asyncio.timeout(PATIENCE_S):
        first = await called.get()
    assert first.id == own["id"]
