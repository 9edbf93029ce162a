"""llama.cpp dies under a turn: the worker ends and is started again, the turn goes on elsewhere, or says what happened."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from catenary_protocols.bus.codec import Decoder
from catenary_protocols.bus.messages import WorkerLoad
from catenary_worker.engines.llamacpp.testing import write_tiny_gguf
from nats.aio.msg import Msg

from tests.mesh.harness import READY_S, RunningMesh, running_mesh, stream

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
MODEL, TOKENS = "tiny", 2000
REQUEST = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Go on."}],
    "max_tokens": TOKENS,
    "temperature": 0,
    "stream_options": {"include_usage": True},
}
decode = Decoder(WorkerLoad)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("gguf") / f"{MODEL}.gguf")


@pytest.fixture
def two(tmp_path: Path, file: Path) -> Iterator[RunningMesh]:
    with running_mesh(tmp_path, "--engine", "llamacpp", "--model", str(file), "--workers", "2") as one:
        yield one


@pytest.fixture
def one(tmp_path: Path, file: Path) -> Iterator[RunningMesh]:
    with running_mesh(tmp_path, "--engine", "llamacpp", "--model", str(file)) as one:
        yield one


class Loads:
    """What the workers' beats say."""

    def __init__(self) -> None:
        self.last: dict[str, WorkerLoad] = {}
        self.news = asyncio.Condition()
        self._told: set[asyncio.Task[None]] = set()

    def heard(self, msg: Msg) -> None:
        beat = decode(msg.data)
        self.last[beat.worker] = beat
        task = asyncio.get_running_loop().create_task(self._tell())
        self._told.add(task)
        task.add_done_callback(self._told.discard)

    async def _tell(self) -> None:
        async with self.news:
            self.news.notify_all()

    async def busy(self) -> str:
        """The worker that has a turn with some tokens."""
        async with asyncio.timeout(READY_S), self.news:
            await self.news.wait_for(
                lambda: any(live.offset > 20 for beat in self.last.values() for live in beat.turns)
            )
        return next(name for name, beat in self.last.items() if beat.turns)

    async def next(self) -> None:
        async with asyncio.timeout(READY_S), self.news:
            await self.news.wait()

    async def until_back(self, worker: str, incarnation: int) -> None:
        async with asyncio.timeout(READY_S), self.news:
            await self.news.wait_for(lambda: self.last[worker].incarnation > incarnation and self.last[worker].ready)


@asynccontextmanager
async def watched(mesh: RunningMesh) -> AsyncIterator[Loads]:
    loads = Loads()
    async with mesh.bus() as bus:
        await bus.subscribe(bus.subjects.to("load"), loads.heard)
        yield loads


def llama_of(mesh: RunningMesh, worker: str) -> int:
    """Pid of the process that computes for it."""
    parent = mesh.pid(worker)
    (child,) = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return int(child)


async def test_its_turn_goes_on_at_the_other_and_it_is_started_again(two: RunningMesh) -> None:
    async with watched(two) as loads, two.client() as client:
        whole = await stream(client, REQUEST)
        running = asyncio.create_task(stream(client, REQUEST))
        worker = await loads.busy()
        before = loads.last[worker].incarnation
        os.kill(llama_of(two, worker), signal.SIGKILL)
        moved = await running
        await loads.until_back(worker, before)
    assert moved[-1].data == "[DONE]"
    assert moved[-2].data["usage"]["completion_tokens"] == TOKENS == whole[-2].data["usage"]["completion_tokens"]
    up = (two.data_dir.parent / "up.log").read_text()
    assert f"{worker} died (exit 1); again in 0.5 s" in up
    assert "llama.cpp ended by itself" in two.log(worker)


async def test_without_another_its_turn_waits_for_it_to_come_back_or_ends_in_an_error(one: RunningMesh) -> None:
    (worker,) = one.workers
    async with watched(one) as loads, one.client() as client:
        running = asyncio.create_task(stream(client, REQUEST))
        assert await loads.busy() == worker
        before, old = loads.last[worker].incarnation, llama_of(one, worker)
        os.kill(old, signal.SIGKILL)
        events = await running
        assert events[-1].data == "[DONE]" or "error" in events[-1].data
        await loads.until_back(worker, before)
        body = {**REQUEST, "max_tokens": 3, "stream_options": None}
        while (answer := await client.post("/v1/chat/completions", json=body)).status_code == 503:
            assert "retry-after" in answer.headers  # the router may hear of it a beat later than we
            await loads.next()
        assert answer.status_code == 200
    with pytest.raises(ProcessLookupError):  # its memory is given back
        os.kill(old, 0)
