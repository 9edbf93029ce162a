"""Streams that were asked to be resumable go on at any frontend, behind the last event that came."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from catenary_frontend.testing import ScriptedTokenizer, Stand, running_frontend
from catenary_protocols.bus.subjects import Subjects
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
from catenary_runtime.testing import NatsServer

TOOL = {"name": "tide", "parameters": {"type": "object", "properties": {}}}
MESSAGES = [{"role": "user", "content": "Tide at Ayr?"}]
APIS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES, "tools": [{"type": "function", "function": TOOL}]},
    "/v1/messages": {
        "messages": MESSAGES,
        "max_tokens": 100,
        "tools": [{"name": "tide", "input_schema": TOOL["parameters"]}],
    },
    "/v1/responses": {"input": "Tide at Ayr?", "tools": [{"type": "function", **TOOL}], "store": False},
}
TURN: tuple[TurnEvent, ...] = (
    Accepted(prompt_tokens=5),
    Started(cached_tokens=4, worker="w1"),
    ReasoningDelta(text="hm"),
    CallBegun(index=0, id="c1", name="tide"),
    CallComplete(index=0, id="c1", name="tide", arguments="{}", key="k"),
    TextDelta(text="High "),
    TextDelta(text="water."),
    Finished(reason="tool_calls", usage=Usage(prompt_tokens=5, completion_tokens=3, cached_tokens=4)),
)
RESUMABLE = {"x-catenary-resumable": "true"}


@pytest.fixture
async def stands(nats_server: NatsServer, subjects: Subjects, tmp_path: Path) -> AsyncIterator[tuple[Stand, Stand]]:
    options: dict[str, Any] = {"data_dir": str(tmp_path), "resume_s": 20.0}
    async with (
        running_frontend(nats_server, subjects, **options) as one,
        running_frontend(nats_server, subjects, **options) as other,
    ):
        yield one, other


async def left_after(stand: Stand, tokenizer: ScriptedTokenizer, path: str, events: int) -> tuple[str, list[str]]:
    """A stream whose client leaves when the tokenizer has said so much: the turn's id and the events that came."""
    body = {"model": "org/m", **APIS[path], "stream": True}
    had: list[str] = []
    async with stand.http.stream("POST", path, json=body, headers=RESUMABLE) as answer:
        turn = (await tokenizer.request()).turn.turn_id
        tokenizer.say(turn, *TURN[:events])
        text = ""
        async for part in answer.aiter_text():
            text += part
            had = [one for one in told(text) if one.startswith("id: ")]
            if had and had[-1].startswith(f"id: {events}."):
                break
    return turn, had


SEAL = re.compile(r'"(?:signature|encrypted_content)":"[^"]*"')


def told(text: str) -> list[str]:
    """Events of a stream; seals differ each time that they are made."""
    return SEAL.sub("", text).split("\n\n")[:-1]


def ids_of(events: list[str]) -> list[str]:
    return [one.partition("\n")[0].removeprefix("id: ") for one in events]


@pytest.mark.parametrize("path", APIS)
@pytest.mark.parametrize("elsewhere", [False, True], ids=["at the same frontend", "at another one"])
async def test_a_stream_goes_on_behind_every_event_that_may_have_been_the_last(
    stands: tuple[Stand, Stand], path: str, *, elsewhere: bool
) -> None:
    stand, other = stands
    async with stand.tokenizer() as tokenizer:
        await other.until(lambda: other.frontend.presence.get("tokenizer", "t1") is not None)
        turn, had = await left_after(stand, tokenizer, path, 6)
        tokenizer.say(turn, *TURN[6:])
        http = (other if elsewhere else stand).http
        whole = told((await http.get(f"/v1/turns/{turn}/events")).text)
        assert whole[: len(had)] == had
        assert len(set(ids_of(whole))) == len(whole) > len(had)
        for at, last in enumerate(ids_of(whole), start=1):
            rest = await http.get(f"/v1/turns/{turn}/events", headers={"last-event-id": last})
            assert told(rest.text) == whole[at:]


async def test_a_stream_whose_owner_takes_its_time_goes_on_all_the_same(stands: tuple[Stand, Stand]) -> None:
    """Its beats meanwhile show the turn where it was."""
    stand, other = stands
    async with stand.tokenizer() as tokenizer:
        await other.until(lambda: other.frontend.presence.get("tokenizer", "t1") is not None)
        turn, had = await left_after(stand, tokenizer, "/v1/chat/completions", 6)
        tokenizer.slow = True
        asking = asyncio.create_task(other.http.get(f"/v1/turns/{turn}/events"))
        await other.until(lambda: len(other.frontend.turns) == 1)
        peer = other.frontend.presence.get("tokenizer", "t1")
        assert peer is not None
        for _ in range(4):
            before = peer.heard_at
            tokenizer.presence.tick()
            await other.until(lambda before=before: peer.heard_at > before)  # type: ignore[misc]
        tokenizer.attach()
        tokenizer.say(turn, *TURN[6:])
        whole = told((await asking).text)
        assert whole[: len(had)] == had
        assert whole[-1].endswith("[DONE]")


async def test_only_a_stream_that_asked_for_it_can_be_resumed(stands: tuple[Stand, Stand]) -> None:
    stand, _ = stands
    async with stand.tokenizer() as tokenizer:
        body = {"model": "org/m", **APIS["/v1/chat/completions"], "stream": True}
        async with stand.http.stream("POST", "/v1/chat/completions", json=body) as answer:
            turn = (await tokenizer.request()).turn.turn_id
            tokenizer.say(turn, *TURN[:3])
            async for line in answer.aiter_lines():
                assert not line.startswith("id:")
                if "hm" in line:
                    break
        assert (await tokenizer.cancelled()).turn.turn_id == turn
        assert (await stand.http.get(f"/v1/turns/{turn}/events")).status_code == 404


async def test_an_id_that_is_none_of_ours_is_refused(stands: tuple[Stand, Stand]) -> None:
    stand, _ = stands
    answer = await stand.http.get("/v1/turns/x/events", headers={"last-event-id": "abc"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "last-event-id")
