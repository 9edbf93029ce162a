"""One worker computes prompts, another goes on from them: a client notices nothing, whichever of them is gone."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from catenary_protocols.bus.codec import Decoder
from catenary_protocols.bus.messages import WorkerLoad
from catenary_runtime.bus import Bus
from catenary_runtime.testing import Process
from nats.aio.msg import Msg

from tests.mesh.harness import MODEL, PATIENCE_S, WEATHER, RunningMesh, Script, running_mesh

pytestmark = pytest.mark.slow

CONFIG = f"""
[[models]]
name = "{MODEL}"
engine = "sim"
workers = 1
sim = {{ time_scale = 0, role = "decode" }}
"""
PREFILL = "prefill-1"
decode = Decoder(WorkerLoad)


@pytest.fixture(scope="module")
def decoding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMesh]:
    folder = tmp_path_factory.mktemp("halves")
    (folder / "catenary.toml").write_text(CONFIG)
    with running_mesh(folder, "--config", "catenary.toml", "--sim-script") as one:
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


async def until_ready(bus: Bus) -> None:
    ready = asyncio.Event()

    def heard(msg: Msg) -> None:
        if decode(msg.data).ready:
            ready.set()

    await bus.subscribe(bus.subjects.to("load", worker=PREFILL), heard)
    async with asyncio.timeout(PATIENCE_S):
        await ready.wait()


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
