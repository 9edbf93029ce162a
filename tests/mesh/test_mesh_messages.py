"""Anthropic Messages through six processes, by the official SDK."""

import time
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pytest

from tests.mesh.harness import MODEL, WEATHER, RunningMesh, Script

BLOCK = 16
FUNCTION: Any = WEATHER["function"]
TOOL: Any = {
    "name": FUNCTION["name"],
    "description": FUNCTION["description"],
    "input_schema": FUNCTION["parameters"],
}
ASK: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": 400,
    "messages": [{"role": "user", "content": "What is the weather in `Oslo`?"}],
    "tools": [TOOL],
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bergen"}}\n</tool_call>'


@pytest.fixture
async def claude(mesh: RunningMesh) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with client_of(mesh) as one:
        yield one


def client_of(mesh: RunningMesh) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=mesh.api, api_key="none", max_retries=0)


def plain(message: anthropic.types.Message) -> dict[str, Any]:
    """What two answers to one request must agree on; how much of the prompt was cached differs."""
    value = message.model_dump(exclude_none=True, exclude={"id", "usage"})
    for block in value["content"]:
        block.pop("signature", None)
        block.pop("id", None)
    return {**value, "output": message.usage.output_tokens, "input": total(message)}


def total(message: anthropic.types.Message) -> int:
    return message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)


async def test_the_streamed_and_the_whole_answer_agree(claude: anthropic.AsyncAnthropic) -> None:
    async with claude.messages.stream(**ASK) as stream:
        starts = [event async for event in stream if event.type == "message_start"]
        streamed = await stream.get_final_message()
    whole = await claude.messages.create(**ASK)
    assert [block.type for block in whole.content][:1] == ["thinking"]
    assert any(block.type == "tool_use" and block.input == {"city": "Oslo"} for block in whole.content)
    assert plain(streamed) == plain(whole)
    assert total(starts[0].message) == total(streamed)
    assert starts[0].message.usage.cache_read_input_tokens == streamed.usage.cache_read_input_tokens


async def test_a_count_is_what_the_turn_then_has(claude: anthropic.AsyncAnthropic) -> None:
    asked = {key: value for key, value in ASK.items() if key != "max_tokens"}
    count = await claude.messages.count_tokens(**asked, system="Be brief.")
    answer = await claude.messages.create(**ASK, system="Be brief.")
    assert count.input_tokens == total(answer)


async def test_a_tool_loop_goes_on_from_what_was_cached(claude: anthropic.AsyncAnthropic, script: Script) -> None:
    thinking: Any = {"type": "adaptive", "display": "omitted"}
    system = "You look after the weather of fjords. " * 40
    await script.say(f"<think>\nBergen first.\n</think>\n\n{CALL}", match="loop-through-messages")
    question: Any = {"role": "user", "content": "loop-through-messages"}
    asked = {**ASK, "system": system, "thinking": thinking}
    first = await claude.messages.create(**{**asked, "messages": [question]})
    assert [block.type for block in first.content] == ["thinking", "tool_use"]
    assert first.stop_reason == "tool_use"
    result: Any = {"type": "tool_result", "tool_use_id": first.content[1].id, "content": "Rain", "is_error": True}
    history = [question, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    async with claude.messages.stream(**{**asked, "messages": history}) as stream:
        second = await stream.get_final_message()
    assert (second.usage.cache_read_input_tokens or 0) >= total(first) // BLOCK * BLOCK
    prompt = next(
        turn["prompt"]
        for report in await script.reports()
        for turn in report["turns"]
        if "Error: Rain" in str(turn["prompt"])
    )
    assert prompt.index("Bergen first.") < prompt.index('"Bergen"') < prompt.index("Error: Rain")


async def test_sessions_share_the_head_whatever_a_client_writes_above_it(claude: anthropic.AsyncAnthropic) -> None:
    body = {
        "type": "text",
        "text": "Read the tide tables of all harbours. " * 40,
        "cache_control": {"type": "ephemeral"},
    }
    answers = []
    for name in ("aaa", "bbb"):
        billing = {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1.{name}; cc_entrypoint=cli;"}
        system: Any = [billing, body]
        headers = {"X-Claude-Code-Session-Id": name}
        answers.append(await claude.messages.create(**ASK, system=system, extra_headers=headers))
    assert (answers[1].usage.cache_read_input_tokens or 0) == (total(answers[0]) - 1) // BLOCK * BLOCK


async def test_a_stop_sequence_ends_the_answer_and_is_named(claude: anthropic.AsyncAnthropic, script: Script) -> None:
    await script.say("Low tide at noon. STOP and never this", match="stop-through-messages")
    question: Any = {"role": "user", "content": "stop-through-messages"}
    answer = await claude.messages.create(**{**ASK, "messages": [question]}, stop_sequences=["STOP"])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "STOP")
    assert [block.text for block in answer.content if block.type == "text"] == ["Low tide at noon. "]


async def test_what_is_too_long_is_told_in_the_words_that_clients_act_on(claude: anthropic.AsyncAnthropic) -> None:
    long = {**ASK, "messages": [{"role": "user", "content": "tide " * 40_000}]}
    with pytest.raises(
        anthropic.BadRequestError, match=r"input length and `max_tokens` exceed .*: \d+ \+ 100000 > 131072"
    ):
        await claude.messages.create(**{**long, "max_tokens": 100_000}, timeout=60)
    longer = {**ASK, "messages": [{"role": "user", "content": "tide " * 70_000}]}
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 131072 maximum"):
        await claude.messages.create(**longer)


async def test_a_call_is_complete_while_the_answer_goes_on(paced_mesh: RunningMesh) -> None:
    async with paced_mesh.bus() as bus, client_of(paced_mesh) as claude:
        script = Script(bus, paced_mesh.workers, "messages-call")
        await script.say(f"{CALL}\n{'And then the sea went on for a while. ' * 8}", match="early-through-messages")
        question: Any = {"role": "user", "content": "early-through-messages"}
        at: dict[str, float] = {}
        async with claude.messages.stream(**{**ASK, "messages": [question]}) as stream:
            async for event in stream:
                kind = event.content_block.type if event.type == "content_block_stop" else event.type
                at.setdefault(kind, time.monotonic())
        await script.forget()
    begun, whole, end = at["message_start"], at["tool_use"], at["message_stop"]
    assert whole - begun < (end - begun) / 2
