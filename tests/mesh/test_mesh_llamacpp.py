"""A GGUF file through the whole mesh: prefixes are reused, the index is right, schemas hold."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from catenary_protocols.bus.codec import Decoder, encode
from catenary_protocols.bus.messages import Overlap, OverlapQuery
from catenary_runtime.bus import Bus
from catenary_tokenizers import block_hashes, embedded_path, load
from catenary_worker.engines.llamacpp.testing import write_tiny_gguf

from tests.mesh.harness import PATIENCE_S, RunningMesh, running_mesh

pytestmark = pytest.mark.slow

MODEL, BLOCK = "tiny", 16
README = Path(__file__).parents[2] / "README.md"
SCHEMA = {
    "type": "object",
    "properties": {"port": {"enum": ["Oslo", "Bergen"]}, "boats": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["port", "boats"],
    "additionalProperties": False,
}
decode = Decoder(Overlap)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMesh]:
    folder = tmp_path_factory.mktemp("llama")
    file = write_tiny_gguf(folder / f"{MODEL}.gguf")
    told = re.search(r"catenary up (--engine llamacpp [^`]*)`", README.read_text())
    assert told is not None
    with running_mesh(folder, *told[1].replace("FILE.gguf", str(file)).split()) as one:
        yield one


async def ask(client: httpx.AsyncClient, messages: list[dict[str, Any]], **more: object) -> dict[str, Any]:
    request = {"model": MODEL, "messages": messages, "max_tokens": 40, "temperature": 0, **more}
    answer = await client.post("/v1/chat/completions", json=request)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def held(bus: Bus, ids: bytes) -> int:
    """Leading blocks of a prompt that the index says the worker holds."""
    query = OverlapQuery(model=MODEL, block_size=BLOCK, hashes=block_hashes(ids, BLOCK))
    said = decode(await bus.request(bus.subjects.to("overlap", model=MODEL), encode(query), within=PATIENCE_S))
    return max((one.blocks for one in said.workers), default=0)


async def until_held(bus: Bus, ids: bytes, blocks: int) -> None:
    """Events may still be on their way."""
    async with asyncio.timeout(PATIENCE_S):
        while await held(bus, ids) != blocks:
            pass


async def test_a_session_reuses_its_slot_and_the_index_says_so(llama: RunningMesh) -> None:
    first = [{"role": "user", "content": " ".join(f"Note {line}: ferry {line * 7 % 31}." for line in range(60))}]
    tokenizer = load(embedded_path())
    async with llama.bus() as bus, llama.client() as client:
        answer = await ask(client, first)
        prompt = tokenizer.encode_prompt(tokenizer.render(first))
        assert answer["usage"]["prompt_tokens"] == len(prompt) // 4
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        # The slot holds the prompt and all that was generated but the last token; of it, the prompt is known here.
        await until_held(bus, prompt, len(prompt) // 4 // BLOCK)
        second = [*first, answer["choices"][0]["message"], {"role": "user", "content": "And then?"}]
        again = await ask(client, second)
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= len(prompt) // 4 - BLOCK
        for number in range(2):  # two strangers take the two slots
            await ask(client, [{"role": "user", "content": f"{number} " + "tide " * 200}])
        await until_held(bus, prompt, 0)


async def test_a_client_that_leaves_frees_its_slot(
    llama: RunningMesh, record_testsuite_property: Callable[[str, object], None]
) -> None:
    """Both slots are taken; a third turn begins when one of them is given up."""
    endless = {"model": MODEL, "stream": True, "max_tokens": 3000, "messages": [{"role": "user", "content": "Go on."}]}
    short = {"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": "Hi"}]}
    lines: list[AsyncIterator[str]] = []
    async with llama.client() as client, AsyncExitStack() as stays:
        async with AsyncExitStack() as leaves:
            for stack in (stays, leaves):
                stream = await stack.enter_async_context(client.stream("POST", "/v1/chat/completions", json=endless))
                lines.append(stream.aiter_lines())  # kept, for a stream that nobody reads is closed
                assert (await anext(lines[-1])).startswith("data: ")
            third = asyncio.create_task(client.post("/v1/chat/completions", json=short))
            done, _ = await asyncio.wait([third], timeout=0.5)
            assert not done, "there is no third slot"
            left = time.monotonic()
        answer = await third
        seconds = time.monotonic() - left
    assert answer.status_code == 200
    record_testsuite_property("seconds until the waiting turn was through", round(seconds, 3))
    assert seconds < 0.5


async def test_an_answer_keeps_to_its_schema(llama: RunningMesh) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "harbour", "schema": SCHEMA, "strict": True}}
    async with llama.client() as client:
        answer = await ask(client, [{"role": "user", "content": "How many boats?"}], response_format=wanted)
    said = json.loads(answer["choices"][0]["message"]["content"])
    assert said["port"] in {"Oslo", "Bergen"}
    assert said["boats"] in range(10)
    assert answer["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("choice", [{"type": "function", "function": {"name": "count_boats"}}, "required", "auto"])
async def test_a_call_fits_its_schema(llama: RunningMesh, choice: object) -> None:
    """A free model may call or not; the call of a strict tool fits all the same."""
    strict = choice == "auto"
    tools = [{"type": "function", "function": {"name": "count_boats", "parameters": SCHEMA, "strict": strict}}]
    opener = load(embedded_path()).control_tokens["<tool_call>"]
    async with llama.client() as client:
        answer = await ask(
            client,
            [{"role": "user", "content": "How many boats?"}],
            tools=tools,
            tool_choice=choice,
            logit_bias={str(opener): 100},  # a model of random weights would talk for ever first
            parallel_tool_calls=False,
            max_tokens=120,
        )
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "count_boats"
    arguments = json.loads(call["function"]["arguments"])
    assert arguments["port"] in {"Oslo", "Bergen"}
    assert arguments["boats"] in range(10)


async def test_it_tells_how_likely_its_tokens_were(llama: RunningMesh) -> None:
    async with llama.client() as client:
        asked = [{"role": "user", "content": "Name the harbours."}]
        answer = await ask(client, asked, logprobs=True, top_logprobs=3, reasoning_effort="none")
    choice = answer["choices"][0]
    told = choice["logprobs"]["content"]
    assert choice["message"]["content"].strip()
    assert b"".join(bytes(one["bytes"]) for one in told).decode().strip() == choice["message"]["content"].strip()
    assert all(one["top_logprobs"][0]["logprob"] == one["logprob"] <= 0 for one in told), "it is greedy"
    assert all(len(one["top_logprobs"]) == 3 for one in told)
