import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from catenary_frontend.core.keys import hash_of
from catenary_frontend.testing import ScriptedTokenizer, Stand, running_frontend
from catenary_protocols.bus.messages import Refused
from catenary_protocols.bus.subjects import Subjects
from catenary_protocols.conversation import AssistantMessage, CallPart, ReasoningPart, ToolMessage
from catenary_protocols.errors import ErrorInfo
from catenary_protocols.turn_events import (
    Accepted,
    CallBegun,
    CallComplete,
    Finished,
    ReasoningDelta,
    Started,
    TextDelta,
    TurnEvent,
    Usage,
)
from catenary_runtime.testing import NatsServer, bus_to

TIDE: Any = {"type": "function", "name": "tide", "parameters": {"type": "object", "properties": {}}, "strict": False}
ASK: dict[str, Any] = {"model": "org/m", "input": "Tide at Ayr?", "tools": [TIDE]}
TURN: tuple[TurnEvent, ...] = (
    Accepted(prompt_tokens=5),
    Started(cached_tokens=4, worker="w1"),
    ReasoningDelta(text="hm"),
    CallBegun(index=0, id="c1", name="tide"),
    CallComplete(index=0, id="c1", name="tide", arguments="{}", key="k"),
    TextDelta(text="High "),
    TextDelta(text="water."),
    Finished(reason="stop", usage=Usage(prompt_tokens=5, completion_tokens=3, cached_tokens=4)),
)


@pytest.fixture
async def stand(nats_server: NatsServer, subjects: Subjects, tmp_path_factory: Any) -> AsyncIterator[Stand]:
    folder = str(tmp_path_factory.mktemp("data"))
    async with running_frontend(
        nats_server,
        subjects,
        data_dir=folder,
        api_keys=(f"other:{hash_of('k2')}", f"mine:{hash_of('k1')}"),
        resume_s=0.3,
    ) as one:
        one.http.headers["authorization"] = "Bearer k1"
        yield one


@pytest.fixture
async def tokenizer(stand: Stand) -> AsyncIterator[ScriptedTokenizer]:
    async with stand.tokenizer() as one:
        yield one


async def asked(stand: Stand, tokenizer: ScriptedTokenizer, body: dict[str, Any], *events: TurnEvent) -> Any:
    """The answer and the request that the tokenizer got."""
    async with asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(stand.http.post("/v1/responses", json=body))
        request = await tokenizer.request()
        tokenizer.say(request.turn.turn_id, *events)
        answer = await asking
    assert answer.status_code == 200, answer.text
    return answer, request


async def test_the_official_client_streams_what_it_gets_whole(stand: Stand, tokenizer: ScriptedTokenizer) -> None:
    async with openai.AsyncOpenAI(base_url=f"{stand.url}/v1", api_key="k1") as client, asyncio.TaskGroup() as tasks:
        tasks.create_task(_say_next(tokenizer))
        async with client.responses.stream(**ASK) as stream:
            async for _ in stream:
                pass
            final = await stream.get_final_response()
    assert [item.type for item in final.output] == ["reasoning", "function_call", "message"]
    assert final.output_text == "High water."
    told = (await stand.http.get(f"/v1/responses/{final.id}")).json()
    for item, kept in zip(final.output[:2], told["output"], strict=False):
        assert kept.items() <= item.to_dict().items()
    assert told["usage"]["total_tokens"] == 8


async def _say_next(tokenizer: ScriptedTokenizer) -> None:
    tokenizer.say((await tokenizer.request()).turn.turn_id, *TURN)


async def test_a_stored_response_ends_with_the_time_its_bucket_keeps_values(
    stand: Stand, tokenizer: ScriptedTokenizer
) -> None:
    id_ = (await asked(stand, tokenizer, ASK, *TURN))[0].json()["id"]
    assert (await stand.http.get(f"/v1/responses/{id_}")).status_code == 200
    js = stand.frontend.bus.js
    bucket = (await js.stream_info(f"KV_{stand.subjects.responses_bucket}")).config
    async with asyncio.timeout(10), bus_to(stand.server, "operator", stand.subjects) as bus:
        await bus.js.update_stream(bucket.evolve(max_age=0.5, duplicate_window=0.5))
        while (told := await stand.http.get(f"/v1/responses/{id_}")).status_code == 200:
            pass
    assert (told.status_code, told.json()["error"]["code"]) == (404, "not_found")
    refused = await stand.http.post("/v1/responses", json={**ASK, "previous_response_id": id_})
    assert (refused.status_code, refused.json()["error"]["param"]) == (404, "previous_response_id")
    assert (await js.stream_info(f"KV_{stand.subjects.responses_bucket}")).state.messages == 0


async def test_a_stored_response_is_gone_on_from_with_its_thoughts(stand: Stand, tokenizer: ScriptedTokenizer) -> None:
    first, _ = await asked(stand, tokenizer, ASK, *TURN)
    more = {
        "model": "org/m",
        "tools": [TIDE],
        "previous_response_id": first.json()["id"],
        "input": [{"type": "function_call_output", "call_id": "c1", "output": "2.1 m"}],
    }
    second, request = await asked(stand, tokenizer, more, *TURN)
    _, said, result = request.conversation.messages
    assert isinstance(said, AssistantMessage)
    assert said.parts[:2] == (ReasoningPart(text="hm"), CallPart(id="c1", name="tide", arguments="{}"))
    assert isinstance(result, ToolMessage)
    assert second.json()["previous_response_id"] == first.json()["id"]
    listed = (await stand.http.get(f"/v1/responses/{second.json()['id']}/input_items", params={"order": "asc"})).json()
    assert [item["type"] for item in listed["data"]] == [
        "message",
        "reasoning",
        "function_call",
        "message",
        "function_call_output",
    ]


async def test_a_client_without_store_gets_its_thought_back_by_seal(stand: Stand, tokenizer: ScriptedTokenizer) -> None:
    first, _ = await asked(stand, tokenizer, {**ASK, "store": False}, *TURN)
    thought = {**first.json()["output"][0], "content": None, "summary": []}
    more = {**ASK, "store": False, "input": [{"role": "user", "content": "Tide?"}, thought]}
    _, request = await asked(stand, tokenizer, more, *TURN)
    assert request.conversation.messages[-1] == AssistantMessage(parts=(ReasoningPart(text="hm"),))
    assert (await stand.http.get(f"/v1/responses/{first.json()['id']}")).status_code == 404


async def test_a_response_belongs_to_its_tenant(stand: Stand, tokenizer: ScriptedTokenizer) -> None:
    first, _ = await asked(stand, tokenizer, ASK, *TURN)
    path = f"/v1/responses/{first.json()['id']}"
    other = {"authorization": "Bearer k2"}
    assert (await stand.http.get(path)).json() == first.json()
    assert (await stand.http.get(path, headers=other)).status_code == 404
    assert (await stand.http.delete(path, headers=other)).status_code == 404
    going_on = {**ASK, "previous_response_id": first.json()["id"]}
    refused = await stand.http.post("/v1/responses", json=going_on, headers=other)
    assert (refused.status_code, refused.json()["error"]["param"]) == (404, "previous_response_id")


async def test_a_deleted_response_is_gone(stand: Stand, tokenizer: ScriptedTokenizer) -> None:
    first, _ = await asked(stand, tokenizer, ASK, *TURN)
    path = f"/v1/responses/{first.json()['id']}"
    assert (await stand.http.delete(path)).json() == {"object": "response", "id": first.json()["id"], "deleted": True}
    assert (await stand.http.get(path)).status_code == 404


@pytest.mark.parametrize("id_", ["resp_x", "resp_" + "0" * 26, "..", "%2e%2e.%3e"])
async def test_what_is_no_response_is_not_found(stand: Stand, id_: str) -> None:
    answer = await stand.http.get(f"/v1/responses/{id_}/input_items")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


@pytest.mark.parametrize("number", ["", "x", "-2", "1e3", "\u0661", "9" * 5000])
@pytest.mark.parametrize(("path", "name"), [("", "starting_after"), ("/input_items", "limit")])
async def test_what_is_no_number_is_named(stand: Stand, path: str, name: str, number: str) -> None:
    query = {"stream": "true", name: number}
    answer = await stand.http.get(f"/v1/responses/resp_{'0' * 26}{path}", params=query)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == name


async def test_a_context_overflow_is_told_in_the_stream(stand: Stand, tokenizer: ScriptedTokenizer) -> None:
    tokenizer.refuse = Refused(error=ErrorInfo(code="context_length_exceeded", message="too long"))
    streamed = await stand.http.post("/v1/responses", json={**ASK, "stream": True})
    assert streamed.status_code == 200
    last = streamed.text.strip().split("\n")[-1]
    assert json.loads(last.removeprefix("data: "))["response"]["error"]["code"] == "context_length_exceeded"
    assert (await stand.http.post("/v1/responses", json=ASK)).status_code == 400


async def test_a_client_that_leaves_and_stays_away_has_its_turn_cancelled(
    stand: Stand, tokenizer: ScriptedTokenizer
) -> None:
    async with stand.http.stream("POST", "/v1/responses", json={**ASK, "stream": True}) as answer:
        request = await tokenizer.request()
        tokenizer.say(request.turn.turn_id, *TURN[:3])
        async for line in answer.aiter_lines():
            if "reasoning_text.delta" in line:
                break
    assert (await tokenizer.cancelled()).turn.turn_id == request.turn.turn_id


def events_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("data: ")) for line in text.split("\n") if line.startswith("data: ")]


async def begun(stand: Stand, tokenizer: ScriptedTokenizer) -> tuple[str, str, list[dict[str, Any]]]:
    """A stream whose client left in the middle: response id, turn id, the events that it had."""
    had: list[dict[str, Any]] = []
    async with stand.http.stream("POST", "/v1/responses", json={**ASK, "stream": True}) as answer:
        request = await tokenizer.request()
        turn = request.turn.turn_id
        tokenizer.say(turn, *TURN[:3])
        async for line in answer.aiter_lines():
            had += events_of(line)
            if "reasoning_text.delta" in line:
                break
    return f"resp_{turn}", turn, had


@pytest.mark.parametrize("other", [False, True], ids=["at the same frontend", "at another one"])
async def test_a_stream_goes_on_behind_the_last_event_that_came(
    nats_server: NatsServer, subjects: Subjects, tmp_path: Path, *, other: bool
) -> None:
    options: dict[str, Any] = {"data_dir": str(tmp_path), "resume_s": 20.0}
    async with (
        running_frontend(nats_server, subjects, **options) as stand,
        running_frontend(nats_server, subjects, **options) as second,
        stand.tokenizer() as tokenizer,
    ):
        await second.until(lambda: second.frontend.presence.get("tokenizer", "t1") is not None)
        id_, turn, had = await begun(stand, tokenizer)
        http = second.http if other else stand.http
        live = (await http.get(f"/v1/responses/{id_}")).json()
        assert (live["id"], live["status"]) == (id_, "in_progress")
        asking = http.stream(
            "GET", f"/v1/responses/{id_}", params={"stream": "true", "starting_after": had[-1]["sequence_number"]}
        )
        async with asking as answer:
            tokenizer.say(turn, *TURN[3:])
            rest = events_of((await answer.aread()).decode())
        assert [one["sequence_number"] for one in had + rest] == list(range(len(had) + len(rest)))
        assert rest[-1]["type"] == "response.completed"
        kept = (await stand.http.get(f"/v1/responses/{id_}")).json()
        assert kept == rest[-1]["response"]
        assert tokenizer.log[turn], "nobody has cancelled it"
        await stand.until(lambda: not len(stand.frontend.turns))


async def test_a_response_that_is_over_is_told_again_by_its_end(stand: Stand, tokenizer: ScriptedTokenizer) -> None:
    first, request = await asked(stand, tokenizer, ASK, *TURN)
    del tokenizer.log[request.turn.turn_id]
    path = f"/v1/responses/{first.json()['id']}"
    whole = events_of((await stand.http.get(path, params={"stream": "true"})).text)
    assert [one["type"] for one in whole] == ["response.created", "response.in_progress", "response.completed"]
    (end,) = events_of((await stand.http.get(path, params={"stream": "true", "starting_after": 7})).text)
    assert (end["sequence_number"], end["response"]) == (8, first.json())
    wrong = await stand.http.get(path, params={"stream": "true", "starting_after": "x"})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "starting_after")


async def test_nobody_joins_the_stream_of_another_tenant(stand: Stand, tokenizer: ScriptedTokenizer) -> None:
    id_, _, _ = await begun(stand, tokenizer)
    answer = await stand.http.get(
        f"/v1/responses/{id_}", params={"stream": "true"}, headers={"authorization": "Bearer k2"}
    )
    assert answer.status_code == 404
