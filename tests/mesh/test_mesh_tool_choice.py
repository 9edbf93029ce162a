"""A call that is demanded, on each API: from an engine that is held to it, and from one that says something else."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.mesh.harness import MODEL, WEATHER, Script, stream

TIME: dict[str, Any] = {"type": "function", "function": {**WEATHER["function"], "name": "get_time"}}  # type: ignore[dict-item]
FUNCTIONS: list[dict[str, Any]] = [WEATHER["function"], TIME["function"]]  # type: ignore[list-item]
Json = dict[str, Any]


@dataclass(frozen=True)
class Api:
    """How an API asks for a call, and how it tells of the calls that were made."""

    path: str
    body: Callable[[str], Json]
    required: Any
    named: Any
    calls: Callable[[Json], list[tuple[str, Json]]]
    streamed: Callable[[Any], list[str]]


CHAT = Api(
    path="/v1/chat/completions",
    body=lambda text: {"messages": [{"role": "user", "content": text}], "tools": [WEATHER, TIME]},
    required="required",
    named={"type": "function", "function": {"name": "get_time"}},
    calls=lambda told: [
        (call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in told["choices"][0]["message"].get("tool_calls", ())
    ],
    streamed=lambda data: [
        call["function"]["name"]
        for choice in data["choices"]
        for call in choice["delta"].get("tool_calls", ())
        if "name" in call["function"]
    ],
)
RESPONSES = Api(
    path="/v1/responses",
    body=lambda text: {"input": text, "tools": [{"type": "function", **one} for one in FUNCTIONS]},
    required="required",
    named={"type": "function", "name": "get_time"},
    calls=lambda told: [
        (item["name"], json.loads(item["arguments"])) for item in told["output"] if item["type"] == "function_call"
    ],
    streamed=lambda data: (
        [data["item"]["name"]]
        if data["type"] == "response.output_item.done" and data["item"]["type"] == "function_call"
        else []
    ),
)
MESSAGES = Api(
    path="/v1/messages",
    body=lambda text: {
        "max_tokens": 400,
        "messages": [{"role": "user", "content": text}],
        "tools": [
            {"name": one["name"], "description": one["description"], "input_schema": one["parameters"]}
            for one in FUNCTIONS
        ],
    },
    required={"type": "any"},
    named={"type": "tool", "name": "get_time"},
    calls=lambda told: [(block["name"], block["input"]) for block in told["content"] if block["type"] == "tool_use"],
    streamed=lambda data: (
        [data["content_block"]["name"]]
        if data["type"] == "content_block_start" and data["content_block"]["type"] == "tool_use"
        else []
    ),
)
APIS = pytest.mark.parametrize("api", [CHAT, RESPONSES, MESSAGES], ids=["chat", "responses", "messages"])
IDLE = "Nothing in particular."


@APIS
async def test_a_demanded_call_is_made_even_when_nothing_asks_for_it(client: httpx.AsyncClient, api: Api) -> None:
    for choice, names in ((api.required, {"get_weather", "get_time"}), (api.named, {"get_time"})):
        request = {"model": MODEL, **api.body(IDLE), "tool_choice": choice}
        whole = await client.post(api.path, json=request)
        calls = api.calls(whole.json())
        assert calls, whole.text
        assert {name for name, _ in calls} <= names
        assert all(isinstance(arguments["city"], str) for _, arguments in calls)
        events = await stream(client, request, api.path)
        told = [name for event in events if event.data != "[DONE]" for name in api.streamed(event.data)]
        assert told == [name for name, _ in calls]


@APIS
async def test_none_is_made_when_none_may_be(client: httpx.AsyncClient, api: Api) -> None:
    choice = {"type": "none"} if api is MESSAGES else "none"
    request = {"model": MODEL, **api.body("What is the weather in `Oslo`?"), "tool_choice": choice}
    whole = await client.post(api.path, json=request)
    assert (whole.status_code, api.calls(whole.json())) == (200, [])


@APIS
async def test_an_engine_that_is_not_held_to_it_makes_an_error_that_names_the_field(
    client: httpx.AsyncClient, script: Script, api: Api
) -> None:
    await script.say("I would rather talk.", match="unheld")
    for choice in (api.required, api.named):
        told = await client.post(api.path, json={"model": MODEL, **api.body("unheld"), "tool_choice": choice})
        assert told.status_code == 422
        assert "required to call" in told.json()["error"]["message"]
        if api is not MESSAGES:
            assert (told.json()["error"]["code"], told.json()["error"]["param"]) == ("tool_choice_unmet", "tool_choice")


@APIS
async def test_another_call_than_the_named_one_does_not_do(client: httpx.AsyncClient, script: Script, api: Api) -> None:
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
    await script.say(call, match="another-call")
    told = await client.post(api.path, json={"model": MODEL, **api.body("another-call"), "tool_choice": api.named})
    assert told.status_code == 422
    kept = await client.post(api.path, json={"model": MODEL, **api.body("another-call"), "tool_choice": api.required})
    assert api.calls(kept.json()) == [("get_weather", {"city": "Oslo"})]
