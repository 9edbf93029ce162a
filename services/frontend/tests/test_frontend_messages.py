import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pytest
from catenary_frontend.core.keys import hash_of
from catenary_frontend.testing import CARD, ScriptedTokenizer, Stand, running_frontend
from catenary_protocols.bus.messages import CountTokens, Refused
from catenary_protocols.bus.subjects import Subjects
from catenary_protocols.conversation import AssistantMessage, ReasoningPart
from catenary_protocols.errors import ErrorInfo
from catenary_protocols.turn_events import (
    Accepted,
    ArgumentsDelta,
    CallBegun,
    CallComplete,
    Failed,
    Finished,
    ReasoningDelta,
    Started,
    TextDelta,
    ToolResulted,
    TurnEvent,
    Usage,
)
from catenary_runtime.testing import NatsServer

ASK: dict[str, Any] = {"model": "org/m", "max_tokens": 64, "messages": [{"role": "user", "content": "Tide at Ayr?"}]}
TIDE: Any = {"name": "tide", "input_schema": {"type": "object", "properties": {}}}
USAGE = Usage(prompt_tokens=20, completion_tokens=3, cached_tokens=16)
OPENING = (Accepted(prompt_tokens=20), Started(cached_tokens=16, worker="w1"))
TURN: tuple[TurnEvent, ...] = (
    *OPENING,
    ReasoningDelta(text="hm"),
    CallBegun(index=0, id="c1", name="tide"),
    ArgumentsDelta(index=0, text='{"port":'),
    CallComplete(index=0, id="c1", name="tide", arguments='{"port":"Ayr"}', key="k", run_by="mesh"),
    TextDelta(text="One moment."),
    ToolResulted(key="k", name="tide", output="2.1 m"),
    Finished(reason="tool_calls", usage=USAGE),
)


@pytest.fixture
async def stand(nats_server: NatsServer, subjects: Subjects) -> AsyncIterator[Stand]:
    async with running_frontend(nats_server, subjects, heartbeat_s=0.2, hold_s=0.2) as one:
        yield one


@pytest.fixture
async def tokenizer(stand: Stand) -> AsyncIterator[ScriptedTokenizer]:
    async with stand.tokenizer() as one:
        yield one


@pytest.fixture
async def client(stand: Stand) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=stand.url, api_key="none", max_retries=0) as one:
        yield one


async def said_by(tokenizer: ScriptedTokenizer, *events: TurnEvent) -> None:
    tokenizer.say((await tokenizer.request()).turn.turn_id, *events)


async def test_the_official_client_assembles_from_a_stream_what_it_gets_whole(
    client: anthropic.AsyncAnthropic, tokenizer: ScriptedTokenizer
) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(said_by(tokenizer, *TURN))
        async with client.messages.stream(**ASK, tools=[TIDE], extra_body={"nvext": {"tool_dispatch": True}}) as stream:
            streamed = await stream.get_final_message()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(said_by(tokenizer, *TURN))
        whole = await client.messages.create(**ASK, tools=[TIDE])
    assert whole._request_id
    assert [block.type for block in whole.content] == ["thinking", "tool_use", "text"]
    assert (whole.stop_reason, whole.usage.input_tokens, whole.usage.cache_read_input_tokens) == ("tool_use", 4, 16)
    assert plain(streamed) == plain(whole)


def plain(message: anthropic.types.Message) -> dict[str, Any]:
    """What two answers must agree on: ids differ, and thinking is sealed anew each time."""
    value = message.model_dump(exclude_none=True, exclude={"id"})
    for block in value["content"]:
        assert block.pop("signature", "sealed")
    return value


async def test_the_beta_path_is_the_same(client: anthropic.AsyncAnthropic, tokenizer: ScriptedTokenizer) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(said_by(tokenizer, *TURN))
        async with client.beta.messages.stream(**ASK, betas=["interleaved-thinking-2025-05-14"]) as stream:
            streamed = await stream.get_final_message()
    assert [block.type for block in streamed.content] == ["thinking", "tool_use", "text"]


async def test_thinking_comes_back_from_its_signature_alone(
    client: anthropic.AsyncAnthropic, tokenizer: ScriptedTokenizer
) -> None:
    thinking: Any = {"type": "adaptive", "display": "omitted"}
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(said_by(tokenizer, *TURN))
        first = await client.messages.create(**ASK, thinking=thinking)
    assert first.content[0].type == "thinking"
    assert first.content[0].thinking == ""
    more = {"role": "user", "content": "And at Oban?"}
    history: Any = [*ASK["messages"], {"role": "assistant", "content": first.content}, more]
    async with asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(client.messages.create(**{**ASK, "messages": history}, thinking=thinking))
        request = await tokenizer.request()
        tokenizer.say(request.turn.turn_id, *TURN)
        await asking
    said = request.conversation.messages[1]
    assert isinstance(said, AssistantMessage)
    assert said.parts[0] == ReasoningPart(text="hm")


async def test_the_start_tells_what_was_cached_and_pings_come_before_it(
    stand: Stand, tokenizer: ScriptedTokenizer
) -> None:
    async with stand.http.stream("POST", "/v1/messages?beta=true", json={**ASK, "stream": True}) as answer:
        request = await tokenizer.request()
        lines = answer.aiter_lines()
        assert await anext(lines) == "event: ping"
        tokenizer.say(request.turn.turn_id, *TURN)
        told = [json.loads(line[6:]) async for line in lines if line.startswith("data: ")]
    start = next(event for event in told if event["type"] != "ping")
    assert start["message"]["usage"]["cache_read_input_tokens"] == 16
    assert answer.headers["request-id"] == answer.headers["x-request-id"]


async def test_a_limit_beyond_the_model_is_as_much_as_there_is(stand: Stand, tokenizer: ScriptedTokenizer) -> None:
    for asked, wanted in ((CARD.context, CARD.context), (32000, None)):
        async with asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(stand.http.post("/v1/messages", json={**ASK, "max_tokens": asked}))
            request = await tokenizer.request()
            tokenizer.say(request.turn.turn_id, *TURN)
            await asking
        assert (request.sampling.max_tokens, request.api) == (wanted, "messages")


@pytest.mark.parametrize("key", [{"x-api-key": "secret"}, {"authorization": "Bearer secret"}])
async def test_both_ways_of_showing_a_key(nats_server: NatsServer, subjects: Subjects, key: dict[str, str]) -> None:
    async with (
        running_frontend(nats_server, subjects, api_keys=(hash_of("secret"),)) as stand,
        stand.tokenizer() as tokenizer,
    ):
        refused = await stand.http.post("/v1/messages", json=ASK)
        assert (refused.status_code, refused.json()["error"]["type"]) == (401, "authentication_error")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(said_by(tokenizer, *TURN))
            assert (await stand.http.post("/v1/messages", json=ASK, headers=key)).status_code == 200


async def test_what_is_too_long_is_told_in_the_words_that_clients_act_on(
    stand: Stand, tokenizer: ScriptedTokenizer
) -> None:
    numbers = {"prompt": 5000, "completion": 64, "context": 4096}
    tokenizer.refuse = Refused(error=ErrorInfo(code="context_length_exceeded", message="long", numbers=numbers))
    answer = await stand.http.post("/v1/messages", json={**ASK, "stream": True})
    assert answer.status_code == 400
    assert answer.json() == {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "prompt is too long: 5000 tokens > 4096 maximum"},
        "request_id": answer.headers["request-id"],
    }


BAD: list[tuple[dict[str, Any], int, str, str]] = [
    ({"messages": "Hi"}, 400, "invalid_request_error", "messages"),
    ({"model": "org/none"}, 404, "not_found_error", "org/none"),
    ({"tools": [{"type": "web_search_20250305", "name": "w"}]}, 400, "invalid_request_error", "tools[0].type"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "x"}}]}]},
        400,
        "invalid_request_error",
        "messages[0].content[0]",
    ),
]


@pytest.mark.parametrize("bad", BAD, ids=[told for *_, told in BAD])
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
async def test_bad_input_is_told_in_the_shape_of_this_api(stand: Stand, bad: Any, path: str) -> None:
    change, status, kind, told = bad
    answer = await stand.http.post(path, json={**ASK, **change})
    assert (answer.status_code, answer.json()["type"], answer.json()["error"]["type"]) == (status, "error", kind)
    assert told in answer.json()["error"]["message"]


async def test_a_limit_is_needed(stand: Stand) -> None:
    answer = await stand.http.post("/v1/messages", json={key: ASK[key] for key in ("model", "messages")})
    assert (answer.status_code, "max_tokens" in answer.json()["error"]["message"]) == (400, True)


async def test_a_failure_in_the_middle_is_the_last_event(stand: Stand, tokenizer: ScriptedTokenizer) -> None:
    async with stand.http.stream("POST", "/v1/messages", json={**ASK, "stream": True}) as answer:
        request = await tokenizer.request()
        tokenizer.say(request.turn.turn_id, *OPENING, TextDelta(text="No"))
        lines = answer.aiter_lines()
        assert await anext(lines) == "event: message_start"
        tokenizer.say(request.turn.turn_id, Failed(error=ErrorInfo(code="worker_lost", message="boom")))
        *_, name, data, _ = [line async for line in lines]
    assert (name, json.loads(data[6:])["error"]["type"]) == ("event: error", "api_error")


async def test_a_count_comes_from_a_tokenizer_that_answers(stand: Stand, client: anthropic.AsyncAnthropic) -> None:
    asked = {key: value for key, value in ASK.items() if key != "max_tokens"}
    async with stand.tokenizer("t1") as one, stand.tokenizer("t2") as two:
        one.count, two.count = Refused(error=ErrorInfo(code="model_not_ready", message="loading")), 17
        assert (await client.messages.count_tokens(**asked)).input_tokens == 17
        one.count, two.count = 17, Refused(error=ErrorInfo(code="draining", message="stopping"))
        assert (await client.messages.count_tokens(**asked)).input_tokens == 17
        one.count = two.count = Refused(error=ErrorInfo(code="template_refused", message="no"))
        with pytest.raises(anthropic.BadRequestError):
            await client.messages.count_tokens(**asked)
        commands = [one.inbox.get_nowait() for _ in range(one.inbox.qsize())]
        assert all(isinstance(command, CountTokens) for command in commands)
