"""What models and engines do wrong, as clients, logs and prompts tell of it."""

import json
import secrets
import time
from itertools import pairwise
from typing import Any

import pytest

from tests.mesh import ops
from tests.mesh.harness import MODEL, WEATHER, RunningMesh, Script, stream
from tests.mesh.test_mesh_turns import deltas

pytestmark = pytest.mark.slow


def words() -> str:
    return f"asked {secrets.token_hex(4)}"


def call(**arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': 'get_weather', 'arguments': arguments})}\n</tool_call>"


async def answered(mesh: RunningMesh, request: dict[str, Any]) -> dict[str, Any]:
    async with mesh.client() as client:
        answer = await client.post("/v1/chat/completions", json=request)
    assert answer.status_code == 200, answer.text
    choice: dict[str, Any] = answer.json()["choices"][0]
    return choice


async def prompts(engines: Script, text: str) -> list[str]:
    """Of the turns that say it, in the order in which they came; whichever worker had them."""
    turns = [turn for report in await engines.reports() for turn in report["turns"] if text in turn["prompt"]]
    return [turn["prompt"] for turn in sorted(turns, key=lambda turn: str(turn["turn_id"]))]


async def test_an_engine_that_fails_in_the_middle_ends_the_stream_in_one_error(
    ops_mesh: RunningMesh, engines: Script
) -> None:
    text = words()
    fault = {"after": 5, "error": "boom"}
    await engines.say("one two three four two three", match=text, pieces="token", fault=fault)
    async with ops.connection(ops_mesh) as (reader, writer):
        writer.write(ops.post("/v1/chat/completions", ops.chat(text, ops.PACED, stream=True)))
        answer = (await reader.readuntil(b"boom")).decode()
        failed = time.monotonic()
        answer += (await reader.read()).decode()  # to the end of the connection
        assert time.monotonic() - failed < 1
    assert answer.startswith("HTTP/1.1 200 "), answer
    assert answer.count("HTTP/1.1") == 1
    data = [line[6:] for line in answer.splitlines() if line.startswith("data: ")]
    chunks = [json.loads(one) for one in data[:-1]]
    said = "".join(choice["delta"].get("content") or "" for one in chunks for choice in one.get("choices", ()))
    assert said == "one two three four two"
    assert [bool(one.get("error")) for one in chunks] == [False] * (len(chunks) - 1) + [True]
    assert data[-1] == "[DONE]"
    assert data.count("[DONE]") == 1


@pytest.mark.parametrize("api", ops.APIS)
@pytest.mark.parametrize("streamed", [True, False])
async def test_an_engine_that_fails_before_its_first_token_is_an_http_status(
    ops_mesh: RunningMesh, engines: Script, api: str, streamed: bool
) -> None:
    text, ask = words(), ops.APIS[api]
    await engines.say("never said", match=text, fault={"after": 0, "error": "boom"})
    async with ops_mesh.client() as client:
        answer = await client.post(ask.path, json={**ask.body(MODEL, text), "stream": streamed})
    assert 500 <= answer.status_code < 600
    assert answer.json()["error"]["message"]


async def test_good_calls_behind_a_broken_one_still_come(ops_mesh: RunningMesh, engines: Script) -> None:
    text = words()
    broken = '<tool_call>\n{"name": "get_weather", "arguments": {"city": Oslo}}\n</tool_call>'
    await engines.say("\n".join([broken, call(city="Bergen"), call(city="Ayr")]), match=text)
    before = await ops.metric(ops_mesh, "tokenizer", "catenary_parser_malformed_total")
    async with ops_mesh.client() as client:
        events = await stream(client, ops.chat(text, tools=[WEATHER]))
    calls: dict[int, str] = {}
    for one in (one for delta in deltas(events) for one in delta.get("tool_calls") or ()):
        calls[one["index"]] = calls.get(one["index"], "") + (one["function"].get("arguments") or "")
    cities = [json.loads(arguments)["city"] for arguments in calls.values() if _is_json(arguments)]
    assert cities == ["Bergen", "Ayr"]
    assert events[-1].data == "[DONE]"
    reasons = [one["finish_reason"] for event in events[:-1] for one in event.data["choices"] if one["finish_reason"]]
    assert reasons == ["tool_calls"]
    assert await ops.metric(ops_mesh, "tokenizer", "catenary_parser_malformed_total") == before + 1


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


async def test_a_long_argument_reaches_the_client_while_it_is_written(ops_mesh: RunningMesh, engines: Script) -> None:
    text, value = words(), "tide " * 4000
    await engines.say(call(city=value), match=text, pieces=100)
    asked = time.monotonic()
    async with ops_mesh.client() as client:
        events = await stream(client, ops.chat(text, ops.PACED, tools=[WEATHER]))
    told = [
        (event.at, one["function"]["arguments"])
        for event in events
        if event.data != "[DONE]"
        for choice in event.data["choices"]
        for one in choice["delta"].get("tool_calls") or ()
        if one["function"].get("arguments")
    ]
    assert json.loads("".join(part for _, part in told)) == {"city": value}
    half = next(at for at, (_, part) in enumerate(told) if len("".join(p for _, p in told[: at + 1])) > len(value) / 2)
    assert told[half][0] < events[-1].at
    assert max(len(part) for _, part in told) < len(value) / 4
    times = [asked, *(at for at, _ in told)]
    assert times[1] - asked < 2
    assert max(later - earlier for earlier, later in pairwise(times)) < 3


async def test_a_history_with_arguments_that_are_no_json_is_rendered(ops_mesh: RunningMesh, engines: Script) -> None:
    text = words()
    request = ops.chat(text, tools=[WEATHER])
    given = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": Os'}}
    request["messages"] += [
        {"role": "assistant", "content": None, "tool_calls": [given]},
        {"role": "tool", "tool_call_id": "c1", "content": "the arguments are no JSON"},
    ]
    assert (await answered(ops_mesh, request))["finish_reason"] == "stop"
    (prompt,) = await prompts(engines, text)
    assert "the arguments are no JSON" in prompt


async def test_a_result_that_is_no_text_is_taken_as_far_as_it_is(ops_mesh: RunningMesh, engines: Script) -> None:
    text = words()
    request = ops.chat(text, tools=[WEATHER])
    given = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
    request["messages"] += [
        {"role": "assistant", "content": None, "tool_calls": [given]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain \ud800 and \ufffd wind"},
    ]
    async with ops_mesh.client() as client:  # a lone surrogate travels as an escape
        answer = await client.post(
            "/v1/chat/completions", content=json.dumps(request), headers={"content-type": "application/json"}
        )
    assert answer.status_code == 200, answer.text
    (prompt,) = await prompts(engines, text)
    assert "rain \ufffd and \ufffd wind" in prompt


async def test_a_call_that_the_limit_cut_is_not_run_and_the_model_is_told(
    ops_mesh: RunningMesh, engines: Script
) -> None:
    text = words()
    published: list[str] = []
    await engines.say(call(city="Bergen")[:-25], match=text, finish="length", times=1)
    await engines.say("Then shorter.", match=text, id="then")
    request = ops.chat(text, tools=[WEATHER], nvext={"run_tools": True})
    async with ops_mesh.bus() as bus:
        await bus.subscribe(bus.subjects.to("tool_call"), lambda msg: published.append(msg.subject))
        choice = await answered(ops_mesh, request)
        assert choice["finish_reason"] == "length"
        await bus.nc.flush()
    assert published == []
    cut = choice["message"].get("tool_calls") or [
        {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Ber'}}
    ]
    request["messages"].append({"role": "assistant", "content": choice["message"]["content"], "tool_calls": cut})
    await answered(ops_mesh, request)
    assert "cut off by the limit" in (await prompts(engines, text))[-1]


async def test_an_answer_whose_call_became_none_is_counted_and_logged(ops_mesh: RunningMesh, engines: Script) -> None:
    text = words()
    raw = f"<tool_call>get_weather({text})</tool_call>"
    await engines.say(raw, match=text)
    before = await ops.metric(ops_mesh, "tokenizer", "catenary_answers_odd_total", what="no_call")
    choice = await answered(ops_mesh, ops.chat(text, tools=[WEATHER]))
    assert not choice["message"].get("tool_calls")
    assert await ops.metric(ops_mesh, "tokenizer", "catenary_answers_odd_total", what="no_call") == before + 1
    lines = [line for line in map(json.loads, ops_mesh.log("tokenizer").splitlines()) if text in line.get("raw", "")]
    assert [(line["event"], line["what"]) for line in lines] == [("answer.odd", "no_call")]
    assert raw in lines[0]["raw"]


async def test_what_was_said_stays_out_of_the_log_unless_it_is_asked_for(mesh: RunningMesh, script: Script) -> None:
    text = words()
    await script.say(f"<tool_call>{text}</tool_call>", match=text)
    await answered(mesh, ops.chat(text, tools=[WEATHER]))
    log = mesh.log("tokenizer")
    assert "answer.odd" in log
    assert text not in log
