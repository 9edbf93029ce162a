"""However a client writes back what the model said, the next turn finds every whole block of it."""

import asyncio
import secrets
import sys
from typing import Any

import httpx
import pytest

from tests.bench.reuse import BLOCK, CLIENTS, OTHER_SPACE, PROMPT, SAID, TURNS, play
from tests.contract.workspace import ROOT
from tests.mesh.harness import MODEL, WEATHER, RunningMesh, Script

LAST_STEP = 2
"""Tokens that a script's last step gives: the end of the call and the end of the message. Nothing has read them."""
THOUGHT = "Which city is it? Oslo is in Norway, and so is Bergen, where it rains on two days of three, but it was Oslo."
LINES = " ".join(f"Note {line}: the ferry of pier {line * 7 % 31} is late." for line in range(60))
"""So much is in a prompt that nothing but its blocks decides where it goes."""
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


@pytest.mark.parametrize(
    ("client", "said"), [*((client, SAID) for client in CLIENTS), ("anthropic", OTHER_SPACE), ("openclaw", OTHER_SPACE)]
)
async def test_all_whole_blocks_of_a_prompt_and_its_answer_are_found_again(
    mesh: RunningMesh, client: str, said: str
) -> None:
    turns = await play(mesh, CLIENTS[client], said)
    assert len(turns) == TURNS
    assert turns[0].prompt >= PROMPT
    assert not any(turn.diverged for turn in turns)
    found = [later.cached for later in turns[1:]]
    assert found == [(turn.prompt + turn.output - LAST_STEP) // BLOCK * BLOCK for turn in turns[:-1]]
    assert all(turn.output > 10 * BLOCK for turn in turns)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["stream", "whole"])
@pytest.mark.parametrize("kit", ["openai", "openai-agents"])
async def test_the_loops_of_chats_sdks_find_them_too(mesh: RunningMesh, script: Script, kit: str, mode: str) -> None:
    topic, words = secrets.token_hex(8), [secrets.token_hex(8) for _ in range(3)]
    call = '<tool_call>\n{{"name": "bash", "arguments": {{"command":  "echo {}"}}}}\n</tool_call>'
    calls = [f"<think>\n{THOUGHT} {word}\n</think>\n\n{call.format(word)}" for word in words]
    await script.say(*calls, match=topic, times=len(calls))
    arguments = (kit, "chat", mode, mesh.api, MODEL, f"{LINES} Echo all words of {topic}.")
    loop = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.conformance.loops", *arguments, cwd=ROOT, stdout=asyncio.subprocess.DEVNULL
    )
    assert await loop.wait() == 0
    turns = [turn for report in await script.reports() for turn in report["turns"] if topic in turn["prompt"]]
    turns.sort(key=lambda turn: int(turn["prompt_tokens"]))
    assert len(turns) == len(calls) + 1
    assert turns[-1]["prompt"].count(THOUGHT) == len(calls)
    found = [later["cached_tokens"] for later in turns[1:]]
    assert found == [(turn["prompt_tokens"] + turn["tokens"] - LAST_STEP) // BLOCK * BLOCK for turn in turns[:-1]]


@pytest.mark.parametrize("word", ["left out", "restored by nobody", "its own"])
async def test_counting_a_prompt_and_running_it_agree_on_thoughts(
    client: httpx.AsyncClient, script: Script, word: str
) -> None:
    topic = secrets.token_hex(8)
    await script.say(f"<think>\n{THOUGHT}\n</think>\n\n{CALL}", match=topic, times=1)
    asked: list[dict[str, Any]] = [{"role": "user", "content": topic}]
    body = {"model": MODEL, "tools": [WEATHER], "max_tokens": 8, "prompt_cache_key": topic}
    first = await client.post("/v1/chat/completions", json={**body, "max_tokens": 400, "messages": asked})
    message = first.json()["choices"][0]["message"]
    assert message.pop("reasoning_content").strip() == THOUGHT
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "rain"}
    nvext = {"restore_reasoning": False} if word == "restored by nobody" else None
    own = {"reasoning_content": ""} if word == "its own" else {}
    again = {**body, "messages": [*asked, {**message, **own}, result], "nvext": nvext}
    counted = (await client.post("/tokenize", json=again)).json()
    text = (await client.post("/detokenize", json={"model": MODEL, "tokens": counted["tokens"]})).json()["prompt"]
    assert (THOUGHT in text) is (word == "left out")
    second = (await client.post("/v1/chat/completions", json=again)).json()
    assert second["usage"]["prompt_tokens"] == counted["count"]
    elsewhere = (await client.post("/tokenize", json={**again, "prompt_cache_key": "another"})).json()
    assert (elsewhere["count"] < counted["count"]) is (word == "left out")
