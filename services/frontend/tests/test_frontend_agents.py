"""What agents may say and ask beside a request: that a session ends, whose it is, why its turn runs where it does."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from catenary_frontend.testing import ScriptedTokenizer, Stand, running_frontend
from catenary_protocols.bus.subjects import Subjects
from catenary_protocols.turn_events import Accepted, Finished, Started, TextDelta, Usage
from catenary_runtime.testing import NatsServer

ASK: dict[str, Any] = {"model": "org/m", "messages": [{"role": "user", "content": "Tide at Ayr?"}]}
WHY = '{"worker":"w1"}'
END = Finished(reason="stop", usage=Usage(prompt_tokens=5, completion_tokens=3, cached_tokens=4))
TURN = (Accepted(prompt_tokens=5), Started(cached_tokens=4, worker="w1", why=WHY), TextDelta(text="High."), END)


@pytest.fixture
async def stand(nats_server: NatsServer, subjects: Subjects) -> AsyncIterator[Stand]:
    async with running_frontend(nats_server, subjects, hold_s=0.2) as one:
        yield one


@pytest.fixture
async def tokenizer(stand: Stand) -> AsyncIterator[ScriptedTokenizer]:
    async with stand.tokenizer() as one:
        yield one


@pytest.mark.parametrize("stream", [False, True])
async def test_who_asks_why_gets_the_routers_word_in_a_header(
    stand: Stand, tokenizer: ScriptedTokenizer, stream: bool
) -> None:
    async def say() -> None:
        request = await tokenizer.request()
        assert request.explain
        tokenizer.say(request.turn.turn_id, *TURN)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(say())
        asked = {**ASK, "stream": stream}
        answer = await stand.http.post("/v1/chat/completions", json=asked, headers={"x-catenary-explain": "1"})
    assert answer.headers["x-catenary-explain"] == WHY
    assert "x-catenary-explain" not in answer.text


async def test_a_stream_that_has_begun_tells_why_in_a_comment(stand: Stand, tokenizer: ScriptedTokenizer) -> None:
    headers = {"x-catenary-explain": "true"}
    async with stand.http.stream(
        "POST", "/v1/chat/completions", json={**ASK, "stream": True}, headers=headers
    ) as answer:
        turn_id = (await tokenizer.request()).turn.turn_id
        assert "x-catenary-explain" not in answer.headers, "it was held as long as it could be"
        tokenizer.say(turn_id, *TURN)
        text = "".join([part async for part in answer.aiter_text()])
    assert f": x-catenary-explain {WHY}\n\n" in text


@pytest.mark.parametrize(
    ("headers", "nvext", "told"),
    [
        ({}, {}, (False, False)),
        ({}, {"session_final": True}, (True, False)),
        ({"x-session-final": "true"}, {}, (True, False)),
        ({"x-claude-code-session-id": "s", "x-claude-code-agent-id": "a"}, {}, (False, True)),
        ({"x-session-id": "child", "x-parent-session-id": "s"}, {}, (False, True)),
        ({"session-id": "s", "x-codex-parent-thread-id": "p"}, {}, (False, True)),
    ],
)
async def test_the_owner_hears_how_long_a_session_lives(
    stand: Stand,
    tokenizer: ScriptedTokenizer,
    headers: dict[str, str],
    nvext: dict[str, bool],
    told: tuple[bool, bool],
) -> None:
    async with asyncio.TaskGroup() as tasks:
        post = stand.http.post("/v1/chat/completions", json={**ASK, "nvext": nvext}, headers=headers)
        tasks.create_task(post)
        request = await tokenizer.request()
        tokenizer.say(request.turn.turn_id, *TURN)
    assert (request.session_final, request.subagent) == told
