"""OpenAI Responses through six processes, by the official SDK."""

import time
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from openai.types.responses import Response

from tests.mesh.harness import MODEL, WEATHER, RunningMesh, Script

FUNCTION: Any = WEATHER["function"]
TOOL: Any = {"type": "function", "strict": False, **FUNCTION}
ASK: dict[str, Any] = {"model": MODEL, "input": "What is the weather in `Oslo`?", "tools": [TOOL]}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bergen"}}\n</tool_call>'


@pytest.fixture
async def gpt(mesh: RunningMesh) -> AsyncIterator[openai.AsyncOpenAI]:
    async with client_of(mesh) as one:
        yield one


def client_of(mesh: RunningMesh) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{mesh.api}/v1", api_key="none", max_retries=0)


def plain(response: Response) -> list[dict[str, Any]]:
    """What two answers to one request must agree on."""
    items: list[dict[str, Any]] = [item.to_dict() for item in response.output]
    for item in items:
        for name in ("id", "call_id", "encrypted_content", "parsed_arguments"):
            item.pop(name, None)
        for content in item.get("content") or ():
            content.pop("parsed", None)
    return items


async def test_the_streamed_and_the_whole_answer_agree(gpt: openai.AsyncOpenAI) -> None:
    async with gpt.responses.stream(**ASK) as stream:
        async for _ in stream:
            pass
        streamed = await stream.get_final_response()
    whole = await gpt.responses.create(**ASK)
    assert plain(streamed) == plain(whole)
    assert any(item.type == "function_call" and item.arguments == '{"city": "Oslo"}' for item in whole.output)
    assert streamed.usage is not None
    assert whole.usage is not None
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    assert (await gpt.responses.retrieve(whole.id)).output == whole.output


@pytest.mark.parametrize("store", [True, False])
async def test_a_tool_loop_goes_on_from_what_the_model_wrote(
    gpt: openai.AsyncOpenAI, script: Script, *, store: bool
) -> None:
    """With the mesh's memory, and with the client's: what was thought and called is in the prompt as it was written."""
    asked = f"loop-through-responses-{store}"
    question: Any = {"role": "user", "content": asked}
    said = f"<think>\nBergen first.\n</think>\n\n{CALL}"
    await script.say(said, match=asked)
    first = await gpt.responses.create(**{**ASK, "input": [question], "store": store})
    assert [item.type for item in first.output] == ["reasoning", "function_call"]
    before = next(one["prompt"] for one in await script.reports() if asked in str(one.get("prompt")))
    call: Any = first.output[1]
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "Rain"}
    await script.say("It rains.", match=asked)
    if store:
        more: dict[str, Any] = {"previous_response_id": first.id, "input": [result]}
    else:
        thought: Any = {**first.output[0].to_dict(), "content": None, "summary": []}
        more = {"input": [question, thought, call.to_dict(), result]}
    second = await gpt.responses.create(**{**ASK, **more, "store": store})
    assert second.output_text == "It rains."
    prompts = [one["prompt"] for one in await script.reports() if asked in str(one.get("prompt"))]
    assert any(prompt.startswith(before + said) and "Rain" in prompt for prompt in prompts)
    assert second.usage is not None
    assert second.usage.input_tokens_details.cached_tokens > 0


async def test_a_count_is_what_the_turn_then_has(gpt: openai.AsyncOpenAI) -> None:
    count = await gpt.responses.input_tokens.count(**ASK, instructions="Be brief.")
    answer = await gpt.responses.create(**ASK, instructions="Be brief.")
    assert answer.usage is not None
    assert count.input_tokens == answer.usage.input_tokens


async def test_a_call_reaches_the_client_while_the_model_goes_on(paced_mesh: RunningMesh) -> None:
    async with paced_mesh.bus() as bus, client_of(paced_mesh) as gpt:
        script = Script(bus, paced_mesh.workers, "early-call")
        await script.say(f"{CALL}\n" + "It rains and rains. " * 40, match="early-responses")
        done_at = ended_at = 0.0
        async with gpt.responses.stream(**{**ASK, "input": "early-responses"}) as stream:
            async for event in stream:
                if event.type == "response.output_item.done" and event.item.type == "function_call":
                    done_at = time.monotonic()
            ended_at = time.monotonic()
        await script.forget()
    assert ended_at - done_at > 0.3


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "get_weather"}], ids=["required", "named"])
async def test_an_engine_that_can_be_guided_makes_the_call(gpt: openai.AsyncOpenAI, choice: Any) -> None:
    answer = await gpt.responses.create(**{**ASK, "input": "Say nothing much.", "tool_choice": choice})
    assert any(item.type == "function_call" and item.name == "get_weather" for item in answer.output)


async def test_a_call_that_had_to_come_and_did_not_is_an_error(gpt: openai.AsyncOpenAI, script: Script) -> None:
    await script.say("No, I will not.", match="unmet-choice")
    with pytest.raises(openai.UnprocessableEntityError) as caught:
        await gpt.responses.create(**{**ASK, "input": "unmet-choice", "tool_choice": "required"})
    assert caught.value.code == "tool_choice_unmet"


async def test_an_answer_satisfies_its_schema(gpt: openai.AsyncOpenAI) -> None:
    schema = {"type": "object", "properties": {"height": {"type": "number"}}, "required": ["height"]}
    form: Any = {"type": "json_schema", "json_schema": {"name": "tide", "schema": schema}}
    answer = await gpt.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Tide at Ayr?"}], response_format=form
    )
    content = answer.choices[0].message.content
    assert content is not None
    assert '"height"' in content


ON = {"ignore_eos": True}


async def test_choices_differ_and_are_counted_together(gpt: openai.AsyncOpenAI) -> None:
    answer = await gpt.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Tell me of the sea."}],
        n=3,
        max_tokens=60,
        seed=4,
        extra_body=ON,
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    texts = {str(choice.message.to_dict()) for choice in answer.choices}
    assert len(texts) == 3
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 180


async def test_a_conversation_that_is_too_long_is_shortened_when_asked(gpt: openai.AsyncOpenAI) -> None:
    context = next(one for one in (await gpt.models.list()).data if one.id == MODEL).to_dict()["context_window"]
    assert isinstance(context, int)
    turns: Any = [{"role": "user", "content": "word " * (context // 4)} for _ in range(6)]
    long: dict[str, Any] = {"model": MODEL, "input": turns, "max_output_tokens": 8}
    with pytest.raises(openai.BadRequestError) as caught:
        await gpt.responses.create(**long)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input")
    answer = await gpt.responses.create(**long, truncation="auto")
    assert answer.usage is not None
    assert context // 2 < answer.usage.input_tokens < context


async def test_tokens_go_to_text_and_back(mesh: RunningMesh) -> None:
    async with mesh.client() as client, client_of(mesh) as gpt:
        asked = {"model": MODEL, "messages": [{"role": "user", "content": "hé 🌊"}]}
        tokens = (await client.post("/tokenize", json=asked)).json()
        text = (await client.post("/detokenize", json={"model": MODEL, "tokens": tokens["tokens"]})).json()["prompt"]
        assert "hé 🌊" in text
        assert tokens["count"] == len(tokens["tokens"])
        again = (await client.post("/tokenize", json={"model": MODEL, "prompt": text})).json()
        assert again == tokens
        answer = await gpt.completions.create(model=MODEL, prompt=text, max_tokens=5)
        assert answer.usage is not None
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (tokens["count"], 5)
