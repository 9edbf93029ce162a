"""Clients that leave, and clients that stay to the end: what is left of their turns."""

import asyncio
import secrets
from typing import Any

import pytest
from catenary_protocols.bus.codec import Decoder
from catenary_protocols.bus.messages import WorkerLoad
from catenary_runtime.bus import Bus
from nats.aio.msg import Msg

from tests.mesh import ops
from tests.mesh.harness import MODEL, PATIENCE_S, RunningMesh, Script, stream

pytestmark = pytest.mark.slow

SECOND = 100
"""Tokens of the paced model in a second."""
KEPT_S = 0.5
"""How long the turn of a stored response waits for its client to come back."""
_load = Decoder(WorkerLoad)


async def aborted(engines: Script) -> int:
    return sum(report["aborted"] for report in await engines.reports())


async def tokens_of(engines: Script, prompt: str) -> int:
    """Tokens that the engines made in turns whose prompt has these words."""
    turns = [turn for report in await engines.reports() for turn in report["turns"] if prompt in turn["prompt"]]
    assert len(turns) == 1
    return int(turns[0]["tokens"])


async def until_aborted(engines: Script, before: int, within_s: float) -> None:
    async with asyncio.timeout(within_s):
        while await aborted(engines) == before:
            pass


async def until_unloaded(bus: Bus) -> None:
    """Until the paced worker tells routers that it has no turn."""
    free = asyncio.Event()

    def heard(msg: Msg) -> None:
        load = _load(msg.data)
        if load.model == ops.PACED and not load.turns and not load.running and not load.waiting:
            free.set()

    subscription = await bus.subscribe(bus.subjects.to("load"), heard)
    async with asyncio.timeout(PATIENCE_S):
        await free.wait()
    await subscription.unsubscribe()


@pytest.mark.parametrize("api", ops.APIS)
async def test_a_client_that_leaves_its_stream_stops_the_engine(
    ops_mesh: RunningMesh, engines: Script, api: str
) -> None:
    ask, words = ops.APIS[api], f"leaves {secrets.token_hex(4)}"
    await engines.say("tide " * 5000, match=words, pieces="token")
    before = await aborted(engines)
    async with ops_mesh.client() as client, ops_mesh.bus() as bus:
        request = {**ask.body(ops.PACED, words), "stream": True}
        async with client.stream("POST", ask.path, json=request) as answer:
            seen = 0
            async for line in answer.aiter_lines():
                seen += line.startswith("data: ")
                if seen == 25:
                    break
            made = await tokens_of(engines, words)
        await until_aborted(engines, before, 1 + KEPT_S * (api == "stored response"))
        at_abort = await tokens_of(engines, words)
        assert at_abort - made <= 2 * SECOND
        await until_unloaded(bus)
        await ops.until_idle(ops_mesh)
    assert await aborted(engines) == before + 1
    assert await tokens_of(engines, words) - at_abort <= 5


@pytest.mark.parametrize("api", ["chat", "messages", "responses"])
async def test_a_client_that_leaves_while_it_waits_stops_the_engine(
    ops_mesh: RunningMesh, engines: Script, api: str
) -> None:
    ask, words = ops.APIS[api], f"waits {secrets.token_hex(4)}"
    await engines.say("tide " * 5000, match=words, pieces="token")
    before = await aborted(engines)
    async with ops.connection(ops_mesh) as (_, writer):
        writer.write(ops.post(ask.path, ask.body(ops.PACED, words)))
        async with asyncio.timeout(PATIENCE_S):
            while not any(words in turn["prompt"] for report in await engines.reports() for turn in report["turns"]):
                pass
        made = await tokens_of(engines, words)
    await until_aborted(engines, before, 2)
    assert await tokens_of(engines, words) - made <= 2 * SECOND
    await ops.until_idle(ops_mesh)
    assert await aborted(engines) == before + 1


@pytest.mark.parametrize("api", ops.APIS)
async def test_of_a_turn_that_ends_nothing_is_left_and_nothing_aborted(
    ops_mesh: RunningMesh, engines: Script, api: str
) -> None:
    ask, before = ops.APIS[api], await aborted(engines)
    async with ops_mesh.client() as client:
        for streamed in (True, False):
            request = {**ask.body(MODEL, "ends"), "stream": streamed}
            answer = await client.post(ask.path, json=request)
            assert answer.status_code == 200
    await ops.until_idle(ops_mesh)
    assert await aborted(engines) == before


async def test_a_client_that_left_may_ask_again_at_once(ops_mesh: RunningMesh, engines: Script) -> None:
    words = f"again {secrets.token_hex(4)}"
    await engines.say("forgotten " * 500, match=f"{words} one", pieces="token", times=1)
    await engines.say("The second answer.", match=f"{words} two")
    session: dict[str, Any] = {"prompt_cache_key": words}
    async with ops_mesh.client() as client:
        first = ops.chat(f"{words} one", ops.PACED, stream=True, **session)
        async with client.stream("POST", "/v1/chat/completions", json=first) as answer:
            async for line in answer.aiter_lines():
                if "forgotten" in line:
                    break
        request = ops.chat(f"{words} one", ops.PACED, **session)
        request["messages"].append({"role": "user", "content": f"{words} two"})
        second = await client.post("/v1/chat/completions", json=request)
    assert second.status_code == 200
    assert second.json()["choices"][0]["message"]["content"] == "The second answer."
    prompts = [
        turn["prompt"] for report in await engines.reports() for turn in report["turns"] if words in turn["prompt"]
    ]
    assert len(prompts) == 2
    assert not any("forgotten" in prompt for prompt in prompts)


async def test_without_a_limit_a_model_says_all_it_has_to_say(ops_mesh: RunningMesh, engines: Script) -> None:
    words = f"unlimited {secrets.token_hex(4)}"
    await engines.say("tide " * 600, match=words)
    async with ops_mesh.client() as client:
        events = await stream(client, ops.chat(words, stream_options={"include_usage": True}))
        whole = (await client.post("/v1/chat/completions", json=ops.chat(words))).json()
    chunks = [event.data for event in events[:-1]]
    text = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
    assert text == whole["choices"][0]["message"]["content"] == "tide " * 600
    reasons = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]]
    assert reasons == ["stop"] == [whole["choices"][0]["finish_reason"]]
    assert chunks[-1]["usage"]["completion_tokens"] > 600
