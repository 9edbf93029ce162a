"""What the mesh does for sessions that come and go: computes ahead, tells why, keeps and gives up blocks."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from catenary_protocols.bus.codec import Decoder
from catenary_protocols.bus.messages import CancelTurn, RunTurn, TokenFrame
from catenary_protocols.bus.tool_plane import ToolResult
from catenary_router.core.history import Decision
from catenary_runtime.bus import Bus
from msgspec.json import decode as decode_json
from nats.aio.msg import Msg

from tests.mesh.harness import MODEL, PATIENCE_S, WEATHER, RunningMesh, running_mesh
from tests.mesh.otlp import Receiver

BLOCK = 16
QUESTION = {"role": "user", "content": "What is the weather in `Oslo`?"}
LINES = " ".join(f"Note {line}: the ferry of pier {line * 7 % 31} is late." for line in range(40))
"""So much is in a prompt that nothing but its blocks decides where it goes."""
HINTS = {"agent_hints": {"speculative_prefill": True}}
decode_frame = Decoder(TokenFrame)
decode_result = Decoder(ToolResult, json=True)
decode_run: Decoder[RunTurn | CancelTurn] = Decoder(RunTurn | CancelTurn)  # type: ignore[arg-type]  # a union of types


@asynccontextmanager
async def prefills(bus: Bus, turn_ids: set[str]) -> AsyncIterator["asyncio.Queue[int]"]:
    """Cached tokens of runs that belong to none of these turns, as they end."""
    done: asyncio.Queue[int] = asyncio.Queue()

    def on_frame(msg: Msg) -> None:
        for item in decode_frame(msg.data).items:
            if item.turn_id not in turn_ids and item.finish == "length" and item.cached is not None:
                done.put_nowait(item.cached)

    await bus.subscribe(bus.subjects.to("tokens"), on_frame)
    await bus.nc.flush()
    yield done


async def ask(client: httpx.AsyncClient, messages: list[Any], session: str, **nvext: Any) -> httpx.Response:
    body = {"model": MODEL, "messages": messages, "tools": [WEATHER], "prompt_cache_key": session, "nvext": nvext}
    answer = await client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer


def back(answer: httpx.Response) -> dict[str, Any]:
    """The answer as most clients send it back: without its reasoning."""
    message: dict[str, Any] = answer.json()["choices"][0]["message"]
    return {name: value for name, value in message.items() if name != "reasoning_content"}


def usage(answer: httpx.Response) -> tuple[int, int]:
    told = answer.json()["usage"]
    return told["prompt_tokens"], told["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize(("hinted", "city"), [(True, "Oslo"), (False, "Bergen")])
async def test_the_turn_after_a_tool_finds_its_results_computed(
    client: httpx.AsyncClient, mesh_bus: Bus, hinted: bool, city: str
) -> None:
    question = {"role": "user", "content": f"{city}: {LINES} What is the weather in `{city}`?"}
    results: asyncio.Queue[ToolResult] = asyncio.Queue()
    await mesh_bus.subscribe(
        mesh_bus.subjects.to("tool_result"), lambda msg: results.put_nowait(decode_result(msg.data))
    )
    async with prefills(mesh_bus, set()) as done:
        extra = {"run_tools": True, **(HINTS if hinted else {})}
        first = await ask(client, [question], city, **extra)
        async with asyncio.timeout(PATIENCE_S):
            result = await results.get()
            if hinted:
                await done.get()
    message = back(first)
    call = message["tool_calls"][0]
    again = [question, message, {"role": "tool", "tool_call_id": call["id"], "content": result.output}]
    tokens, cached = usage(await ask(client, again, city))
    if hinted:
        assert cached // BLOCK == (tokens - 1) // BLOCK, "all whole blocks, up to and including the results"
    else:
        assert cached < tokens - 2 * BLOCK
    assert first.json()["usage"]["completion_tokens"] > 1, "and nobody is told of the prefill"


async def test_an_answer_without_its_reasoning_is_computed_before_the_next_question(
    client: httpx.AsyncClient, mesh_bus: Bus
) -> None:
    question = {"role": "user", "content": f"{LINES} Tell me something about ships and the sea, please."}
    async with prefills(mesh_bus, set()) as done:
        first = await client.post(
            "/v1/chat/completions",
            json={"model": MODEL, "messages": [question], "prompt_cache_key": "reasons", "nvext": HINTS},
        )
        async with asyncio.timeout(PATIENCE_S):
            await done.get()
    message = back(first)
    again = [question, message, {"role": "user", "content": "Go on."}]
    body = {"model": MODEL, "messages": again, "prompt_cache_key": "reasons", "max_tokens": 4}
    tokens, cached = usage(await client.post("/v1/chat/completions", json=body))
    assert tokens - cached < 2 * BLOCK, "all but the question"


# --- explain ----------------------------------------------------------------------------------------------------------


async def test_a_request_may_ask_why_its_turn_runs_where_it_does(client: httpx.AsyncClient) -> None:
    body = {"model": MODEL, "messages": [QUESTION], "max_tokens": 4}
    for streams in (False, True):
        asked = {**body, "stream": streams}
        answer = await client.post("/v1/chat/completions", json=asked, headers={"x-catenary-explain": "1"})
        decision = decode_json(answer.headers["x-catenary-explain"], type=Decision)
        assert decision.turn_id == answer.headers["x-catenary-turn-id"]
        assert decision.worker == decision.considered[0].worker
        assert len(decision.considered) > 1
    plain = await client.post("/v1/chat/completions", json=body)
    assert "x-catenary-explain" not in plain.headers


async def test_a_request_may_name_the_workers_it_runs_on(client: httpx.AsyncClient, mesh: RunningMesh) -> None:
    body = {"model": MODEL, "messages": [QUESTION], "max_tokens": 3}
    for worker in mesh.workers:
        answer = await client.post("/v1/chat/completions", json={**body, "nvext": {"routing": {"workers": [worker]}}})
        assert answer.headers["x-catenary-worker"] == worker
    nowhere = await client.post("/v1/chat/completions", json={**body, "nvext": {"routing": {"tags": ["moon"]}}})
    assert nowhere.status_code == 503
    assert nowhere.json()["error"]["code"] == "no_worker"
    assert int(nowhere.headers["retry-after"]) > 0


async def test_the_placements_span_says_who_was_considered(paced_mesh: RunningMesh, spans: Receiver) -> None:
    body = {"model": MODEL, "messages": [QUESTION], "max_tokens": 3}
    async with paced_mesh.client() as client:
        turn = (await client.post("/v1/chat/completions", json=body)).headers["x-catenary-turn-id"]
    trace = await asyncio.to_thread(spans.trace_of, turn, {"request", "catenary-router place"}, PATIENCE_S)
    placed = next(span for span in trace if span.name == "place" and span.service == "catenary-router")
    assert placed.attributes["catenary.route.reason"]
    told = [one.string_value for one in placed.attributes["catenary.route.candidates"].values]
    assert len(told) > 1
    for one in told:
        assert all(word in one for word in ("cost", "blocks", "turns", "ms queued"))


# --- retention --------------------------------------------------------------------------------------------------------

CONFIG = """
[[models]]
name = "catenary-sim"
workers = 1
sim = { blocks = 160, block_size = 16, time_scale = 0 }
"""


@pytest.fixture(scope="module")
def tight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMesh]:
    """One worker whose cache holds three sessions and no more."""
    folder = tmp_path_factory.mktemp("tight")
    config = Path(folder) / "tight.toml"
    config.write_text(CONFIG)
    with running_mesh(folder, "--config", str(config)) as one:
        yield one


@pytest.mark.slow
@pytest.mark.parametrize(("over", "kept"), [(False, True), (True, False)])
async def test_under_pressure_a_session_in_a_tool_keeps_its_blocks_and_one_that_is_over_does_not(
    tight: RunningMesh, over: bool, kept: bool
) -> None:
    question = {"role": "user", "content": f"{over}: {LINES} What is the weather in `Oslo`?"}
    async with tight.client() as client:
        nvext = {"session_final": True} if over else {}
        tokens, _ = usage(await ask(client, [question], f"kept-{over}", **nvext))
        for number in range(8):
            stranger = {"role": "user", "content": f"{number} {LINES} Who is late?"}
            body = {"model": MODEL, "messages": [stranger], "max_tokens": 4}
            assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
        _, cached = usage(await ask(client, [question], f"kept-{over}"))
    assert (cached >= tokens - 2 * BLOCK) == kept
    assert (cached < tokens / 2) == (not kept)
