"""Log probabilities from the engine to the client, on each API that knows them; several choices; a model that has none."""

from typing import Any

import httpx
import pytest

from tests.mesh.harness import MODEL, WEATHER, Script, stream

SAID = "<think>\nHm.\n</think>\n\nIt rains 🌊 in Bergen."
TEXT = "It rains 🌊 in Bergen."
CHAT: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "logprobs-please"}]}


def spelled(told: list[dict[str, Any]]) -> str:
    return b"".join(bytes(one["bytes"]) for one in told).decode().strip()


async def test_chat_tells_of_the_visible_tokens_alone_streamed_and_whole(
    client: httpx.AsyncClient, script: Script
) -> None:
    await script.say(SAID, match="logprobs-please")
    request = {**CHAT, "logprobs": True, "top_logprobs": 3, "seed": 5}
    whole = (await client.post("/v1/chat/completions", json=request)).json()["choices"][0]
    told = whole["logprobs"]["content"]
    assert whole["message"]["content"] == TEXT == spelled(told)
    assert all(len(one["top_logprobs"]) == 3 and one["top_logprobs"][0]["token"] == one["token"] for one in told)
    assert all(one["logprob"] < 0 for one in told)
    events = await stream(client, request)
    chunks = [choice for event in events if event.data != "[DONE]" for choice in event.data["choices"]]
    assert [one for choice in chunks if choice.get("logprobs") for one in choice["logprobs"]["content"]] == told


async def test_completions_and_responses_tell_of_the_same_tokens(client: httpx.AsyncClient, script: Script) -> None:
    await script.say("It rains.", match="logprobs-please")
    plain = await client.post(
        "/v1/completions",
        json={"model": MODEL, "prompt": "logprobs-please", "logprobs": 2, "max_tokens": 40, "seed": 1},
    )
    lists = plain.json()["choices"][0]["logprobs"]
    assert "".join(lists["tokens"]) == "It rains."
    include = ["message.output_text.logprobs"]
    kept = await client.post("/v1/responses", json={"model": MODEL, "input": "logprobs-please", "include": include})
    (part,) = kept.json()["output"][0]["content"]
    assert [one["token"] for one in part["logprobs"]] == lists["tokens"]
    assert not any(one["top_logprobs"] for one in part["logprobs"])


async def test_each_choice_tells_of_its_own_tokens(client: httpx.AsyncClient) -> None:
    request = {**CHAT, "n": 2, "logprobs": True, "seed": 3, "max_tokens": 30, "reasoning_effort": "none"}
    choices = (await client.post("/v1/chat/completions", json=request)).json()["choices"]
    for choice in choices:
        assert spelled(choice["logprobs"]["content"]) == choice["message"]["content"].strip() != ""
    assert choices[0]["logprobs"] != choices[1]["logprobs"]


async def test_calls_are_not_told_of(client: httpx.AsyncClient, script: Script) -> None:
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
    await script.say(f"Look.\n{call}", match="logprobs-please")
    answer = await client.post("/v1/chat/completions", json={**CHAT, "tools": [WEATHER], "logprobs": True})
    choice = answer.json()["choices"][0]
    assert choice["message"]["tool_calls"]
    assert spelled(choice["logprobs"]["content"]) == choice["message"]["content"].strip() == "Look."


@pytest.mark.parametrize(("path", "more"), [("/v1/chat/completions", {"logprobs": True, "top_logprobs": 21})])
async def test_more_alternatives_than_there_may_be_are_refused(
    client: httpx.AsyncClient, path: str, more: dict[str, Any]
) -> None:
    answer = await client.post(path, json={**CHAT, **more})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "top_logprobs")
