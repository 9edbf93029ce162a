"""A worker with TensorRT-LLM behind it, on the bus: phases, a turn, blocks told of, and an engine that breaks."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from catenary_protocols.bus.subjects import Subjects
from catenary_protocols.conversation import Sampling
from catenary_protocols.errors import EngineError
from catenary_runtime.testing import NatsServer, provisioned
from catenary_worker.engines.trtllm.standin import CppExecutorError, StandIn, standin
from catenary_worker.service import WorkerService
from catenary_worker.testing import (
    PATIENCE_S,
    TokenizerPeer,
    running_worker,
    tokenizer_peer,
    worker_settings,
)

W = "w-1"
PROMPT = list(range(300, 400))


@pytest.fixture
async def peer(nats_server: NatsServer, subjects: Subjects) -> AsyncIterator[TokenizerPeer]:
    await provisioned(nats_server.url, subjects)
    async with tokenizer_peer(nats_server, subjects) as peer:
        yield peer


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    monkeypatch.setattr("catenary_worker.engines.trtllm.api.find_spec", lambda _: object())
    with standin("1.2") as one:
        yield one


async def test_a_turn_runs_once_the_weights_are_loaded(
    nats_server: NatsServer, subjects: Subjects, peer: TokenizerPeer, gpu: StandIn
) -> None:
    gpu.gate.clear()
    settings = worker_settings(nats_server, subjects, W, engine="trtllm", engine_options="{}")
    async with running_worker(settings) as service:
        await asyncio.to_thread(gpu.entered.wait)
        ready, checks = service.health.ready()
        assert not ready
        assert "loading weights" in str(checks)
        gpu.gate.set()
        load = await peer.until_ready(W)
        assert (load.block_size, load.kv_events, load.kv_total) == (32, "exact", 512)
        key = await peer.run(W, PROMPT, sampling=Sampling(max_tokens=40, ignore_eos=True, temperature=0.0))
        await peer.until_end(key)
        assert len(peer.got[key]) == 40
        await peer.until(lambda: peer.loads[W].kv_last != (0,))


async def test_an_engine_that_breaks_gives_its_turns_back_and_ends_the_worker(
    nats_server: NatsServer, subjects: Subjects, peer: TokenizerPeer, gpu: StandIn
) -> None:
    gpu.refuse[2] = CppExecutorError("CUDA error")
    living = asyncio.create_task(
        WorkerService(worker_settings(nats_server, subjects, W, engine="trtllm", engine_options="{}")).live()
    )
    await peer.until_ready(W)
    end = await peer.until_end(await peer.run(W, PROMPT, sampling=Sampling(max_tokens=40)))
    assert end.error is not None
    assert end.error.code == "worker_lost"
    with pytest.RaisesGroup(EngineError, flatten_subgroups=True) as broken:
        async with asyncio.timeout(PATIENCE_S):
            await living
    assert "CUDA error" in str(broken.value.exceptions)
    assert gpu.log[-1] == "shut down"
