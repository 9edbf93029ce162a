import asyncio
import gzip
import json
import zlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import brotli
import openai
import pytest
import zstandard
from catenary_frontend.core.keys import hash_of
from catenary_frontend.testing import ScriptedTokenizer, Stand, running_frontend
from catenary_protocols.bus.codec import Decoder
from catenary_protocols.bus.messages import Refused
from catenary_protocols.bus.subjects import Subjects
from catenary_protocols.bus.tool_plane import TurnFact
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
    TurnEvent,
    Usage,
)
from catenary_runtime.testing import NatsServer
from nats.aio.msg import Msg

ASK: dict[str, Any] = {"model": "org/m", "messages": [{"role": "user", "content": "Tide at Ayr?"}]}
END = Finished(reason="stop", usage=Usage(prompt_tokens=5, completion_tokens=3, cached_tokens=4))
TURN: tuple[TurnEvent, ...] = (
    Accepted(prompt_tokens=5),
    Started(cached_tokens=4, worker="w1"),
    ReasoningDelta(text="hm"),
    CallBegun(index=0, id="c1", name="tide"),
    ArgumentsDelta(index=0, text="{}"),
    CallComplete(index=0, id="c1", name="tide", arguments="{}", key="k"),
    TextDelta(text="High "),
    TextDelta(text="water."),
    END,
)


@pytest.fixture
async def stand(nats_server: NatsServer, subjects: Subjects) -> AsyncIterator[Stand]:
    async with running_frontend(nats_server, subjects, heartbeat_s=0.2, hold_s=0.2) as one:
        yield one


@pytest.fixture
async def tokenizer(stand: Stand) -> AsyncIterator[ScriptedTokenizer]:
    async with stand.tokenizer() as one:
        yield one


async def said_by(tokenizer: ScriptedTokenizer, *events: TurnEvent) -> None:
    tokenizer.say((await tokenizer.request()).turn.turn_id, *events)


async def test_the_openai_client_streams_a_turn(stand: Stand, tokenizer: ScriptedTokenizer) -> None:
    async with openai.AsyncOpenAI(base_url=f"{stand.url}/v1", api_key="none") as client, asyncio.TaskGroup() as tasks:
        tasks.create_task(said_by(tokenizer, *TURN))
        async with client.chat.completions.stream(**ASK, stream_options={"include_usage": True}) as stream:
            async for _ in stream:
                pass
            final = await stream.get_final_completion()
    (choice,) = final.choices
    assert choice.message.content == "High water."
    assert choice.message.tool_calls is not None
    assert choice.message.tool_calls[0].function.name == "tide"
    assert choice.finish_reason == "stop"
    assert final.usage is not None
    assert final.usage.total_tokens == 8


async def test_an_answer_that_is_not_streamed_comes_whole(stand: Stand, tokenizer: ScriptedTokenizer) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(said_by(tokenizer, *TURN))
        answer = await stand.http.post("/v1/chat/completions", json=ASK, headers={"x-request-id": "mine-1"})
    assert answer.status_code == 200
    assert answer.headers["x-request-id"] == "mine-1"
    assert answer.headers["x-catenary-worker"] == "w1"
    assert answer.json()["id"] == "chatcmpl-" + answer.headers["x-catenary-turn-id"]
    assert answer.json()["choices"][0]["message"]["reasoning_content"] == "hm"
    assert "total;dur=" in answer.headers["server-timing"]


async def test_what_is_asked_reaches_the_owner(stand: Stand, tokenizer: ScriptedTokenizer) -> None:
    body = {**ASK, "max_tokens": 9, "nvext": {"agent_hints": {"priority": 2}, "run_tools": True}}
    async with asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(stand.http.post("/v1/chat/completions", json=body))
        request = await tokenizer.request()
        tokenizer.say(request.turn.turn_id, *TURN)
        await asking
    assert (request.sampling.max_tokens, request.hints.priority, request.run_tools) == (9, 2, ("*",))
    assert request.frontend == stand.frontend.instance
    assert len(request.session) == 32


async def test_the_status_line_waits_for_a_refusal(stand: Stand, tokenizer: ScriptedTokenizer) -> None:
    error = ErrorInfo(code="queue_full", message="too many wait", retry_after=2.5)
    tokenizer.refuse = Refused(error=error)
    answer = await stand.http.post("/v1/chat/completions", json={**ASK, "stream": True})
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "3"
    assert answer.json()["error"]["code"] == "queue_full"


async def test_a_context_overflow_is_a_bad_request_that_names_the_field(
    stand: Stand, tokenizer: ScriptedTokenizer
) -> None:
    error = ErrorInfo(code="context_length_exceeded", message="too long", field="messages")
    tokenizer.refuse = Refused(error=error)
    answer = await stand.http.post("/v1/chat/completions", json=ASK)
    assert answer.status_code == 400
    assert answer.json()["error"] == {
        "message": "too long",
        "type": "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
    }


async def test_a_silent_stream_gets_headers_and_heartbeats(stand: Stand, tokenizer: ScriptedTokenizer) -> None:
    async with stand.http.stream("POST", "/v1/chat/completions", json={**ASK, "stream": True}) as answer:
        assert answer.status_code == 200
        lines = answer.aiter_lines()
        beats = [json.loads(line[6:]) async for line in _first(lines, 3)]
    assert [beat["choices"][0]["delta"] for beat in beats] == [{"role": "assistant", "content": ""}, {}, {}]


async def _first(lines: AsyncIterator[str], count: int) -> AsyncIterator[str]:
    async for line in lines:
        if line:
            yield line
            count -= 1
            if not count:
                return


async def test_a_failure_in_the_middle_ends_the_stream_with_an_error(
    stand: Stand, tokenizer: ScriptedTokenizer
) -> None:
    failed = Failed(error=ErrorInfo(code="worker_lost", message="gone"))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(said_by(tokenizer, *TURN[:3], failed))
        async with stand.http.stream("POST", "/v1/chat/completions", json={**ASK, "stream": True}) as answer:
            early = answer.status_code
            text = (await answer.aread()).decode()
    # all of it came in one frame, before the status line: what was said is not lost
    assert early == 200
    assert text.count("data: ") >= 3
    assert '"code":"worker_lost"' in text
    assert text.endswith("data: [DONE]\n\n")

    async with (
        asyncio.TaskGroup() as tasks,
        stand.http.stream("POST", "/v1/chat/completions", json={**ASK, "stream": True}) as answer,
    ):
        turn = (await tokenizer.request()).turn.turn_id
        tokenizer.say(turn, TextDelta(text="a"))
        lines = [line async for line in _first(answer.aiter_lines(), 2)]
        tokenizer.say(turn, failed)
    assert answer.status_code == 200
    assert len(lines) == 2


async def test_a_client_that_leaves_cancels_its_turn(stand: Stand, tokenizer: ScriptedTokenizer) -> None:
    async with stand.http.stream("POST", "/v1/chat/completions", json={**ASK, "stream": True}):
        request = await tokenizer.request()
        tokenizer.say(request.turn.turn_id, *TURN[:3])
    assert (await tokenizer.cancelled()).turn == request.turn
    await stand.until(lambda: len(stand.frontend.turns) == 0)


@pytest.mark.parametrize(
    ("raw", "status", "field"),
    [
        (b"{", 400, None),
        (b'{"model":"org/m","messages":[{"role":"user","content":"\xff"}]}', 400, None),
        (b'{"model":"org/m","messages":[]}', 400, "messages"),
        (b'{"model":"org/m","messages":' + b"[" * 100_000, 400, "messages[0]"),
        (b'{"model":"%b","messages":[{"role":"user","content":"x"}]}' % (b"a" * 1_000_000), 404, "model"),
        (b'{"model":"nope","messages":[{"role":"user","content":"x"}]}', 404, "model"),
        (b'{"model":"org/m","messages":[{"role":"user","content":"x"}],"max_tokens":0}', 400, "max_tokens"),
        (
            b'{"model":"org/m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]}',
            400,
            "messages[0].content[0]",
        ),
        (b" " * (7 * 1024 * 1024 + 1), 413, None),
    ],
)
async def test_bad_input_gets_a_clear_status(stand: Stand, raw: bytes, status: int, field: str | None) -> None:
    answer = await stand.http.post("/v1/chat/completions", content=raw)
    assert answer.status_code == status
    assert answer.json()["error"]["param"] == field
    assert len(answer.content) < 1_000
    assert answer.headers["x-request-id"].startswith("req_")


async def test_paths_methods_and_encodings_that_are_not_there(stand: Stand) -> None:
    unknown = await stand.http.get("/v1/nothing")
    slash = await stand.http.post("/v1/chat/completions/", content=b"{}")
    assert slash.status_code == 404
    wrong = await stand.http.get("/v1/chat/completions")
    packed = await stand.http.post("/v1/chat/completions", content=b"x", headers={"content-encoding": "rot13"})
    found = [(one.status_code, one.json()["error"]["code"]) for one in (unknown, wrong, packed)]
    assert found == [(404, "not_found"), (405, "method_not_allowed"), (415, "unsupported_encoding")]
    assert wrong.headers["allow"] == "POST"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/tokenize"])
@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
async def test_what_a_page_may_send_anywhere_unasked_is_refused(stand: Stand, path: str, kind: str) -> None:
    answer = await stand.http.post(path, json=ASK, headers={"content-type": kind})
    assert answer.status_code == 415
    assert "`content-type` is " in answer.json()["error"]["message"]


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "Application/JSON", "application/vnd.api+json"])
async def test_json_goes_by_several_names(stand: Stand, kind: str) -> None:
    answer = await stand.http.post("/v1/chat/completions", content=b"{}", headers={"content-type": kind})
    assert answer.json()["error"]["message"] == "`model` is missing"


@pytest.mark.parametrize(
    ("name", "pack"),
    [("gzip", gzip.compress), ("deflate", zlib.compress), ("zstd", zstandard.compress), ("br", brotli.compress)],
)
async def test_a_packed_body_is_unpacked_within_the_limit(
    stand: Stand, tokenizer: ScriptedTokenizer, name: str, pack: Callable[[bytes], bytes]
) -> None:
    packed = {"content-encoding": name}
    long = {**ASK, "metadata": {"padding": "x" * 1_000_000}}
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(said_by(tokenizer, *TURN))
        body = pack(json.dumps(long).encode())
        assert (await stand.http.post("/v1/chat/completions", content=body, headers=packed)).status_code == 200
    for content, status in ((pack(b" " * 50_000_000), 413), (b"plain", 400), (body[:-9], 400)):
        answer = await stand.http.post("/v1/chat/completions", content=content, headers=packed)
        assert answer.status_code == status


async def test_an_alias_is_another_name_of_a_model(nats_server: NatsServer, subjects: Subjects) -> None:
    aliases = ("gpt-5=org/m", "lost=org/gone")
    async with running_frontend(nats_server, subjects, aliases=aliases) as stand, stand.tokenizer() as tokenizer:
        listed = (await stand.http.get("/v1/models")).json()["data"]
        assert [one["id"] for one in listed] == ["org/m", "gpt-5"]
        async with asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(stand.http.post("/v1/chat/completions", json={**ASK, "model": "gpt-5"}))
            request = await tokenizer.request()
            tokenizer.say(request.turn.turn_id, *TURN)
        assert (request.model, asking.result().json()["model"]) == ("org/m", "gpt-5")
        lost = await stand.http.post("/v1/chat/completions", json={**ASK, "model": "lost"})
        assert lost.json()["error"]["code"] == "model_not_found"


async def test_observers_hear_of_a_turn_without_its_content(stand: Stand, tokenizer: ScriptedTokenizer) -> None:
    facts: list[TurnFact] = []
    decode = Decoder(TurnFact, json=True)
    done = asyncio.Event()

    def heard(msg: Msg) -> None:
        facts.append(decode(msg.data))
        if facts[-1].what == "finished":
            done.set()

    await tokenizer.bus.subscribe(tokenizer.bus.subjects.to("observe"), heard)
    await tokenizer.bus.nc.flush()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(said_by(tokenizer, *TURN))
        await stand.http.post("/v1/chat/completions", json=ASK)
    await done.wait()
    assert [fact.what for fact in facts] == ["accepted", "started", "finished"]
    assert (facts[-1].worker, facts[-1].completion_tokens, facts[-1].code) == ("w1", 3, "ok")


async def test_the_callers_trace_goes_on_over_the_bus(stand: Stand, tokenizer: ScriptedTokenizer) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    headers: list[dict[str, str] | None] = []
    subject = tokenizer.bus.subjects.to("turn", tokenizer=tokenizer.name)
    await tokenizer.bus.subscribe(subject, lambda msg: headers.append(msg.headers))
    await tokenizer.bus.nc.flush()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(said_by(tokenizer, *TURN))
        await stand.http.post("/v1/chat/completions", json=ASK, headers={"traceparent": trace})
    assert headers[0] is not None
    assert headers[0]["traceparent"].split("-")[1] == trace.split("-")[1]


async def test_asked_to_stop_it_finishes_what_runs_and_takes_no_more(
    nats_server: NatsServer, subjects: Subjects
) -> None:
    async with running_frontend(nats_server, subjects) as stand, stand.tokenizer() as tokenizer:
        asking = asyncio.create_task(stand.http.post("/v1/chat/completions", json=ASK))
        turn = (await tokenizer.request()).turn.turn_id
        stand.frontend.stopping.set()
        await stand.until(lambda: stand.frontend.draining)
        late = await stand.http.post("/v1/chat/completions", json=ASK)
        assert (late.status_code, late.json()["error"]["code"]) == (503, "draining")
        tokenizer.say(turn, *TURN)
        assert (await asking).status_code == 200


async def test_models_in_the_shape_of_the_caller(stand: Stand) -> None:
    listed = (await stand.http.get("/v1/models")).json()
    assert [(model["id"], model["context_window"]) for model in listed["data"]] == [("org/m", 4096)]
    assert (await stand.http.get("/v1/models/org/m")).json() == listed["data"][0]
    other = (await stand.http.get("/v1/models", headers={"anthropic-version": "2023-06-01"})).json()
    assert other["data"][0]["type"] == "model"
    assert (await stand.http.get("/v1/models/zz")).status_code == 404


async def test_probes_tell_by_status(stand: Stand) -> None:
    assert (await stand.http.get("/health")).status_code == 200
    assert (await stand.http.get("/ready")).status_code == 503
    async with stand.tokenizer():
        assert (await stand.http.get("/ready")).status_code == 200
    assert "catenary_requests_total" in (await stand.http.get("/metrics")).text


async def test_with_keys_only_known_callers_get_in(nats_server: NatsServer, subjects: Subjects) -> None:
    async with running_frontend(nats_server, subjects, api_keys=(f"acme:{hash_of('sesame')}",)) as stand:
        assert (await stand.http.post("/v1/chat/completions", json=ASK)).status_code == 401
        assert (await stand.http.get("/v1/models", headers={"x-api-key": "sesame"})).status_code == 200
        async with stand.tokenizer() as tokenizer, asyncio.TaskGroup() as tasks:
            headers = {"authorization": "Bearer sesame"}
            asking = tasks.create_task(stand.http.post("/v1/chat/completions", json=ASK, headers=headers))
            request = await tokenizer.request()
            tokenizer.say(request.turn.turn_id, *TURN)
            assert (await asking).status_code == 200
        assert request.tenant == "acme"


@pytest.mark.parametrize("stream", [True, False])
async def test_keys_that_nobody_knows_are_named_to_their_client(
    stand: Stand, tokenizer: ScriptedTokenizer, stream: bool
) -> None:
    nvext = {"agent_hints": {"priorty": 1}, "a\r\nb,": 2}
    asking = asyncio.create_task(
        stand.http.post("/v1/chat/completions", json={**ASK, "stream": stream, "nvext": nvext})
    )
    tokenizer.say((await tokenizer.request()).turn.turn_id, *TURN)
    answer = await asking
    assert answer.status_code == 200
    assert answer.headers["x-catenary-passed-over"] == "nvext.agent_hints.priorty, nvext.a??b?"


async def test_a_client_that_does_not_read_is_cut_and_its_turn_cancelled(
    nats_server: NatsServer, subjects: Subjects
) -> None:
    async with (
        running_frontend(nats_server, subjects, slow_reader_bytes=100_000) as stand,
        stand.tokenizer() as tokenizer,
    ):
        host, port = stand.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
        body = json.dumps({**ASK, "stream": True}).encode()
        kind = "content-type: application/json"
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n{kind}\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        turn = (await tokenizer.request()).turn
        cut = asyncio.create_task(tokenizer.cancelled())
        while not cut.done():
            tokenizer.say(turn.turn_id, *(TextDelta(text="x" * 1000) for _ in range(100)))
            await asyncio.wait([cut], timeout=0.01)
        assert cut.result().turn == turn
        assert cut.result().reason == "slow reader"
        answer = b""
        while not answer.endswith(b"\r\n0\r\n\r\n"):
            answer += await reader.read(65536)
        assert b"slow_reader" in answer
        assert answer.count(b"data: [DONE]") == 1
        writer.close()


async def test_choices_are_turns_of_their_own_in_one_answer(stand: Stand, tokenizer: ScriptedTokenizer) -> None:
    async with asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(stand.http.post("/v1/chat/completions", json={**ASK, "n": 2}))
        requests = [await tokenizer.request(), await tokenizer.request()]
        for request in reversed(requests):
            text = TextDelta(text=f"answer {request.choice}", choice=request.choice)
            end = Finished(reason="stop", usage=END.usage, choice=request.choice)
            tokenizer.say(request.turn.turn_id, *TURN[:2], text, end)
    assert [(one.choice, one.choices) for one in requests] == [(0, 2), (1, 2)]
    assert requests[0].session == requests[1].session
    assert requests[1].sampling.seed is not None
    answer = asking.result().json()
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["answer 0", "answer 1"]
    assert answer["usage"]["prompt_tokens"] == 5
    assert answer["usage"]["completion_tokens"] == 6


async def test_when_a_choice_fails_the_others_are_stopped(stand: Stand, tokenizer: ScriptedTokenizer) -> None:
    async with asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(stand.http.post("/v1/chat/completions", json={**ASK, "n": 2}))
        requests = [await tokenizer.request(), await tokenizer.request()]
        tokenizer.say(requests[1].turn.turn_id, Failed(error=ErrorInfo(code="engine_failed", message="boom")))
        cancelled = await tokenizer.cancelled()
    assert asking.result().status_code == 500
    assert cancelled.turn == requests[0].turn


async def test_a_completion_has_no_template(stand: Stand, tokenizer: ScriptedTokenizer) -> None:
    async with openai.AsyncOpenAI(base_url=f"{stand.url}/v1", api_key="none") as client, asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(client.completions.create(model="org/m", prompt="Once"))
        request = await tokenizer.request()
        tokenizer.say(request.turn.turn_id, *TURN[:2], TextDelta(text=" upon a time"), END)
    assert (request.conversation.text, request.conversation.messages, request.api) == ("Once", (), "completions")
    assert asking.result().choices[0].text == " upon a time"
