"""One worker computes prompts, another goes on from them: a client notices nothing, whichever of them is gone."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from catenary_protocols.bus.codec import Decoder
from catenary_protocols.bus.messages import WorkerLoad
from catenary_runtime.bus import Bus
from catenary_runtime.testing import Process
from nats.aio.msg import Msg

from tests.mesh.harness import MODEL, PATIENCE_S, WEATHER, RunningMesh, Script, SseEvent, running_mesh, stream

pytestmark = pytest.mark.slow

CONFIG = """
[[models]]
name = "catenary-sim"
engine = "sim"
workers = {workers}
sim = {{ time_scale = {time_scale}, role = "decode" }}
"""
PREFILL = "prefill-1"
decode = Decoder(WorkerLoad)


@pytest.fixture(scope="module")
def decoding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMesh]:
    folder = tmp_path_factory.mktemp("halves")
    (folder / "catenary.toml").write_text(CONFIG.format(workers=1, time_scale=0))
    with running_mesh(folder, "--config", "catenary.toml", "--sim-script") as one:
        yield one


@pytest.fixture
def paced(tmp_path: Path) -> Iterator[RunningMesh]:
    """Two that decode, in real time."""
    (tmp_path / "catenary.toml").write_text(CONFIG.format(workers=2, time_scale=1))
    with running_mesh(tmp_path, "--config", "catenary.toml", "--sim-script") as one:
        yield one


@pytest.fixture
async def bus(decoding: RunningMesh) -> AsyncIterator[Bus]:
    async with decoding.bus() as bus:
        yield bus


@contextmanager
def prefilling(mesh: RunningMesh, folder: Path) -> Iterator[None]:
    """Another worker of the same model, for the time of the block."""
    arguments = {
        "namespace": mesh.subjects.namespace,
        "instance": PREFILL,
        "model": MODEL,
        "engine-options": '{"time_scale": 0, "role": "prefill"}',
    }
    flags = ["--sim-script", *(part for name, value in arguments.items() for part in (f"--{name}", value))]
    process = Process("catenary_worker", flags, folder / "prefill.log", {"CATENARY_NATS": mesh.broker})
    process.start()
    try:
        yield
    finally:
        if process.process is not None:
            process.process.kill()
            process.process.wait()


async def until(bus: Bus, holds: Callable[[WorkerLoad], bool]) -> str:
    """The first worker whose beat says so."""
    found: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def heard(msg: Msg) -> None:
        beat = decode(msg.data)
        if not found.done() and holds(beat):
            found.set_result(beat.worker)

    await bus.subscribe(bus.subjects.to("load"), heard)
    async with asyncio.timeout(PATIENCE_S):
        return await found


async def until_ready(bus: Bus) -> None:
    await until(bus, lambda beat: beat.worker == PREFILL and beat.ready)


async def ask(client: httpx.AsyncClient, words: str) -> tuple[str, int]:
    """What was called, and how much of the prompt was cached."""
    request = {"model": MODEL, "messages": [{"role": "user", "content": words}], "tools": [WEATHER], "seed": 4}
    answer = await client.post("/v1/chat/completions", json=request)
    assert answer.status_code == 200, answer.text
    said = answer.json()
    (call,) = said["choices"][0]["message"]["tool_calls"]
    return call["function"]["arguments"], said["usage"]["prompt_tokens_details"]["cached_tokens"]


async def test_prompts_go_to_one_worker_and_answers_come_from_the_other(
    decoding: RunningMesh, bus: Bus, tmp_path: Path
) -> None:
    words = "What is the weather in `Oslo`? " + "It matters. " * 40
    both = Script(bus, [PREFILL, *decoding.workers], "halves")
    async with decoding.client() as client:
        whole, _ = await ask(client, words)
        with prefilling(decoding, tmp_path):
            await until_ready(bus)
            halves, cached = await ask(client, words)
            again, cached_again = await ask(client, words)
            assert halves == again == whole
            assert cached == 0, "the worker that prefills had never seen it"
            assert cached_again > 0
            first, second = await both.reports()
            assert [turn["tokens"] for turn in first["turns"]] == [0, 0]
            assert [turn["cached_tokens"] == turn["prompt_tokens"] - 1 for turn in second["turns"]] == [
                False,
                True,
                True,
            ]
        lost, _ = await ask(client, words)  # perhaps placed where nobody is any more, and moved
        assert lost == whole


def text_of(events: list[SseEvent]) -> str:
    """All that was thought and said, of a stream that ended well."""
    assert events[-1].data == "[DONE]", events[-1]
    deltas = [choice["delta"] for event in events[:-1] for choice in event.data["choices"]]
    return "".join(delta.get(part) or "" for delta in deltas for part in ("reasoning_content", "content"))


async def test_a_worker_that_is_killed_while_it_decodes_leaves_its_turn_to_others(
    paced: RunningMesh, tmp_path: Path
) -> None:
    asked = [{"role": "user", "content": "Tell me of the sea. " * 30}]
    request = {"model": MODEL, "messages": asked, "seed": 4, "max_tokens": 300, "ignore_eos": True}
    async with paced.bus() as bus, paced.client() as client:
        whole = text_of(await stream(client, request))
        assert whole
        with prefilling(paced, tmp_path):
            await until_ready(bus)
            running = asyncio.create_task(stream(client, request))
            decodes = await until(bus, lambda beat: any(live.offset > 20 for live in beat.turns))
            assert decodes in paced.workers
            os.kill(paced.pid(decodes), signal.SIGKILL)
            assert text_of(await running) == whole
            (first,) = await Script(bus, [PREFILL], "moved").reports()
    assert [turn["tokens"] for turn in first["turns"]] == [0, 0], "its prompt was computed for each that decoded it"
