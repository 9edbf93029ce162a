"""One agent turn through six processes: streamed and not, by plain HTTP and by the official SDK."""

import json
import secrets
from typing import Any

import httpx
import openai
import pytest

from tests.mesh.harness import MODEL, WEATHER, RunningMesh, Script, SseEvent, stream

BLOCK = 16
LAST_STEP = 2
"""Tokens that a script's last step gives: the end of the call and the end of the message. Nothing has read them."""
ASK: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "What is the weather in `Oslo`?"}],
    "tools": [WEATHER],
    "stream_options": {"include_usage": True},
}


def deltas(events: list[SseEvent]) -> list[dict[str, Any]]:
    return [
        choice["delta"]
        for event in events
        if not event.name and event.data != "[DONE]"
        for choice in event.data["choices"]
    ]


def joined(events: list[SseEvent], key: str) -> str:
    return "".join(delta.get(key) or "" for delta in deltas(events))


async def test_a_streamed_turn_has_reasoning_a_call_and_text(client: httpx.AsyncClient) -> None:
    events = await stream(client, ASK)
    calls = [call for delta in deltas(events) for call in delta.get("tool_calls") or ()]
    assert joined(events, "reasoning_content").strip()
    assert joined(events, "content").strip()
    assert calls[0]["function"]["name"] == "get_weather"
    assert json.loads("".join(call["function"].get("arguments") or "" for call in calls)) == {"city": "Oslo"}
    reasons = [
        c["finish_reason"] for e in events if e.data != "[DONE]" for c in e.data["choices"] if c["finish_reason"]
    ]
    assert reasons == ["tool_calls"]
    assert events[-1].data == "[DONE]"
    assert events[-2].data["usage"]["completion_tokens"] > 20


async def test_the_streamed_and_the_whole_answer_agree(client: httpx.AsyncClient) -> None:
    request = {key: value for key, value in ASK.items() if key != "stream_options"}
    events = await stream(client, request)
    whole = (await client.post("/v1/chat/completions", json=request)).json()["choices"][0]["message"]
    assert joined(events, "content") == whole["content"]
    assert joined(events, "reasoning_content") == whole["reasoning_content"]


async def test_text_that_was_scripted_arrives_as_it_was_written(client: httpx.AsyncClient, script: Script) -> None:
    said = "Fjord – 波 🌊 and\n\ta tab"
    await script.say(said, match="scripted-arrival")
    answer = await client.post(
        "/v1/chat/completions", json={"model": MODEL, "messages": [{"role": "user", "content": "scripted-arrival"}]}
    )
    assert answer.json()["choices"][0]["message"]["content"] == said
    assert answer.json()["choices"][0]["finish_reason"] == "stop"


async def test_stop_strings_and_limits_end_a_turn(client: httpx.AsyncClient, script: Script) -> None:
    await script.say("one two three four five six seven", match="stops-and-limits")
    request = {"model": MODEL, "messages": [{"role": "user", "content": "stops-and-limits"}]}
    stopped = (await client.post("/v1/chat/completions", json={**request, "stop": [" four"]})).json()["choices"][0]
    assert (stopped["message"]["content"], stopped["finish_reason"]) == ("one two three", "stop")
    cut = (await client.post("/v1/chat/completions", json={**request, "max_tokens": 2})).json()
    assert (cut["choices"][0]["finish_reason"], cut["usage"]["completion_tokens"]) == ("length", 2)


async def test_the_official_sdk_streams(mesh: RunningMesh) -> None:
    async with openai.AsyncOpenAI(base_url=f"{mesh.api}/v1", api_key="none") as sdk:
        text, arguments, names, reasoning = "", "", [], ""
        async for chunk in await sdk.chat.completions.create(**ASK, stream=True):
            for choice in chunk.choices:
                text += choice.delta.content or ""
                reasoning += getattr(choice.delta, "reasoning_content", None) or ""
                for call in choice.delta.tool_calls or ():
                    assert call.function
                    names += [call.function.name] if call.function.name else []
                    arguments += call.function.arguments or ""
    assert names == ["get_weather"]
    assert json.loads(arguments) == {"city": "Oslo"}
    assert text.strip()
    assert reasoning.strip()


@pytest.mark.parametrize("left_out", [set(), {"reasoning_content"}], ids=["sent back", "left out"])
async def test_the_official_sdk_runs_an_agents_loop(mesh: RunningMesh, script: Script, left_out: set[str]) -> None:
    topic = f"loop-{secrets.token_hex(8)}"
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city":  "Oslo"}}\n</tool_call>'
    await script.say(f"<think>\nThe city is Oslo.\n</think>\n\nOne moment.\n{call}", match=topic, times=1)
    asked = [{"role": "system", "content": topic}, *ASK["messages"]]
    request: dict[str, Any] = {"model": MODEL, "messages": asked, "tools": [WEATHER]}
    request["extra_body"] = {"nvext": {"routing": {"workers": mesh.workers[:1]}}}
    async with openai.AsyncOpenAI(base_url=f"{mesh.api}/v1", api_key="none") as sdk:
        first = await sdk.chat.completions.create(**request)
        message = first.choices[0].message
        assert message.tool_calls
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "eleven degrees and rain"}
        messages = [*asked, message.model_dump(exclude_none=True, exclude=left_out), result]
        second = await sdk.chat.completions.create(**{**request, "messages": messages})
        assert [model.id async for model in sdk.models.list()] == [MODEL]
    assert "eleven degrees and rain" in (second.choices[0].message.content or "")
    assert second.choices[0].finish_reason == "stop"
    assert first.usage
    assert second.usage
    assert second.usage.prompt_tokens_details
    cached = second.usage.prompt_tokens_details.cached_tokens
    assert cached == (first.usage.total_tokens - LAST_STEP) // BLOCK * BLOCK, "all whole blocks of prompt and answer"


@pytest.mark.parametrize(
    ("change", "status", "named"),
    [
        ({"model": "nobody/serves-this"}, 404, "model"),
        ({"messages": []}, 400, "messages"),
        ({"messages": "hello"}, 400, "messages"),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"max_tokens": 200_000}, 400, "max_tokens"),
        ({"temperature": "hot"}, 400, "temperature"),
        ({"tools": [{"type": "function", "function": {"name": "x", "parameters": {"type": 3}}}]}, 400, "tools"),
        ({"tool_choice": {"type": "function", "function": {"name": "absent"}}}, 400, "tool_choice"),
    ],
)
async def test_a_wrong_request_is_told_which_field(
    client: httpx.AsyncClient, script: Script, change: dict[str, Any], status: int, named: str
) -> None:
    before = sum(report["calls"] for report in await script.reports())
    answer = await client.post("/v1/chat/completions", json={**ASK, "stream_options": None, **change})
    error = answer.json()["error"]
    assert answer.status_code == status, error
    assert named in f"{error.get('param')} {error['message']}"
    assert sum(report["calls"] for report in await script.reports()) == before


@pytest.mark.parametrize("body", [b"{", b"\xff\xfe", b"[]", b"null", b'{"a":' * 2000, b""])
async def test_a_body_that_is_no_request_is_a_400(client: httpx.AsyncClient, body: bytes) -> None:
    answer = await client.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"
