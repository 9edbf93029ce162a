"""Large bodies, many turns at once, clients that hardly read, a worker that is not there."""

import asyncio
import json
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from catenary_protocols.bus.codec import Decoder, encode
from catenary_protocols.bus.messages import WorkerLoad
from nats.aio.msg import Msg

from tests.mesh import ops
from tests.mesh.harness import MODEL, PATIENCE_S, WEATHER, RunningMesh
from tests.mesh.slow_readers import PATIENCE, SLOW, beside, cut, reading, sipping

pytestmark = pytest.mark.slow

MB = 1 << 20
AT_ONCE = 200
PAGE = os.sysconf("SC_PAGE_SIZE")
_load = Decoder(WorkerLoad)


def image(size: int) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * size}}


def with_one_image() -> dict[str, Any]:
    request = ops.chat("", ops.VISION, max_tokens=8)
    request["messages"][0]["content"] = [{"type": "text", "text": "What is it?"}, image(6 * MB)]
    return request


def with_a_long_history() -> dict[str, Any]:
    """As an agent's, which looks at a picture of its screen after each step."""
    request = ops.chat("Go on.", ops.VISION, max_tokens=8)
    for number in range(60):
        seen = [{"type": "text", "text": f"step {number}: {'tide ' * 200}"}, image(MB // 10)]
        request["messages"] += [{"role": "assistant", "content": "Next."}, {"role": "user", "content": seen}]
    return request


@pytest.mark.parametrize("request_of", [with_one_image, with_a_long_history])
async def test_a_body_of_six_megabytes_is_taken(
    ops_mesh: RunningMesh, request_of: Callable[[], dict[str, Any]]
) -> None:
    body = json.dumps(request_of())
    assert len(body) >= 6 * MB
    async with ops_mesh.client() as client:
        answer = await client.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 200, answer.text


async def test_a_history_of_six_megabytes_of_text_is_refused_by_the_limit_that_it_names(ops_mesh: RunningMesh) -> None:
    """No model of the mesh has a context for a million tokens."""
    request = ops.chat("Go on.")
    request["messages"][:0] = [ops.chat("tide and wind " * (6 * MB // 140))["messages"][0] for _ in range(10)]
    async with ops_mesh.client() as client:
        answer = await client.post("/v1/chat/completions", json=request)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert "131072" in answer.json()["error"]["message"].replace(",", "")


async def test_a_body_over_the_limit_names_it(ops_mesh: RunningMesh) -> None:
    async with ops_mesh.client() as client:
        answer = await client.post("/v1/chat/completions", json=ops.chat("x" * (8 * MB)))
    assert answer.status_code == 413
    assert str(7 * MB) in answer.json()["error"]["message"]


async def test_a_prompt_larger_than_the_context_is_refused_at_once_and_once(ops_mesh: RunningMesh) -> None:
    before = await ops.metric(ops_mesh, "router", "catenary_route_decisions_total")
    took = []
    async with ops_mesh.client() as client:
        for word in ("tide", "wind", "moon"):  # no two alike: what was encoded once is known
            began = time.monotonic()
            answer = await client.post("/v1/chat/completions", json=ops.chat(f"{word} and boat " * (3 * MB // 28)))
            took.append(time.monotonic() - began)
            assert answer.status_code == 400
            assert answer.json()["error"]["code"] == "context_length_exceeded"
            assert "131072" in answer.json()["error"]["message"].replace(",", "")
    assert min(took) < 1, "by itself; not where others keep the machine busy"
    assert await ops.metric(ops_mesh, "router", "catenary_route_decisions_total") == before


async def test_turns_at_the_same_time_share_nothing(ops_mesh: RunningMesh) -> None:
    ids: set[str] = set()
    async with ops_mesh.client() as client:

        async def one() -> None:
            city = f"City{secrets.token_hex(6)}"
            request = ops.chat(f"What is the weather in `{city}`?", tools=[WEATHER])
            answer = await client.post("/v1/chat/completions", json=request, timeout=PATIENCE_S * 2)
            assert answer.status_code == 200, answer.text
            (call,) = answer.json()["choices"][0]["message"]["tool_calls"]
            assert json.loads(call["function"]["arguments"]) == {"city": city}
            assert answer.text.count("City") == answer.text.count(city)
            ids.update((call["id"], answer.json()["id"]))

        for _ in range(2):
            await asyncio.gather(*(one() for _ in range(AT_ONCE)))
    assert len(ids) == 2 * 2 * AT_ONCE
    await ops.until_idle(ops_mesh)


async def test_a_worker_that_nobody_answers_for_is_left_at_once(ops_mesh: RunningMesh) -> None:
    """Its beats are heard, its subject has no subscriber."""
    moved = await ops.metric(ops_mesh, "tokenizer", "catenary_turn_moves_total", reason="not_there")
    async with ops_mesh.bus() as bus, ops_mesh.client() as client:

        def echo(msg: Msg) -> None:
            load = _load(msg.data)
            if load.model == MODEL and load.worker != "ghost":
                ghost = WorkerLoad(
                    worker="ghost",
                    incarnation=1,
                    model=load.model,
                    card=load.card,
                    block_size=load.block_size,
                    kv_total=load.kv_total,
                    max_batch=load.max_batch,
                )
                bus.publish(bus.subjects.to("load", worker="ghost"), encode(ghost))

        await bus.subscribe(bus.subjects.to("load"), echo)
        async with asyncio.timeout(PATIENCE_S):
            while await ops.metric(ops_mesh, "tokenizer", "catenary_turn_moves_total", reason="not_there") == moved:
                began = time.monotonic()
                answer = await client.post("/v1/chat/completions", json=ops.chat(secrets.token_hex(4), max_tokens=2))
                assert answer.status_code in {200, 503}
                assert time.monotonic() - began < 1


@pytest.mark.timeout(170)
async def test_clients_that_hardly_read_are_cut_and_hold_up_nobody(ops_mesh: RunningMesh) -> None:
    """The engine talks as fast as it can. Whoever asks beside them waits no longer than beside as many that read.

    One of three rounds has to show that: in each a single turn meets the flood, and others may keep the machine busy.
    """
    async with ops_mesh.client() as client:
        await beside(client)
        for _ in range(3):
            async with reading(client):
                usual = await beside(client)
            await ops.until_idle(ops_mesh)
            waited = await beside_slow_readers(ops_mesh, client)
            if waited < 2 * usual + 1:
                break
        assert waited < 2 * usual + 1


async def beside_slow_readers(mesh: RunningMesh, client: httpx.AsyncClient) -> float:
    """The longest wait of others until the slow readers are cut, in seconds."""
    before, size = await cut(mesh), resident(mesh.pid("frontend"))
    sizes, waited = [], []
    async with sipping(mesh):
        async with asyncio.timeout(PATIENCE):
            while await cut(mesh) < before + SLOW:
                waited.append(await beside(client))
                sizes.append(resident(mesh.pid("frontend")))
        await ops.until_idle(mesh)
        assert max(sizes) - size <= 64 * MB
        assert max([await beside(client) for _ in range(8)]) < 1, "once they are cut, nothing is left of them"
    return max(waited)


def resident(pid: int) -> int:
    """Bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
