"""The life of a service process: ready, drain, exit codes, a crash, a freeze, the Services API."""

import asyncio
import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from catenary_protocols.bus.messages import Beat
from catenary_protocols.bus.subjects import Subjects
from catenary_runtime import service as service_module
from catenary_runtime.bus import Bus
from catenary_runtime.config import Settings
from catenary_runtime.presence import Listener, Peer, Presence
from catenary_runtime.service import Service
from catenary_runtime.testing import NatsServer, Process, free_tcp_port, http_ready

BEAT_S = 0.05
LIMIT_S = 1.0
HERE = {"PYTHONPATH": str(Path(__file__).parent)}


class Watcher:
    """Hears the beats of tokenizers."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.presence = Presence(bus, "router", "watcher", self._beat, interval=BEAT_S, death_limit=LIMIT_S)
        self.heard: list[str] = []
        self.last: Beat | None = None
        self._news = asyncio.Condition()
        self._telling: set[asyncio.Task[None]] = set()
        self.presence.listen(
            Listener(
                on_up=lambda peer: self._hear(f"up {peer.incarnation}"),
                on_down=lambda peer: self._hear(f"down {peer.incarnation}"),
                on_beat=self._on_beat,
            )
        )

    async def until(self, ready: Callable[[], object]) -> None:
        async with asyncio.timeout(30), self._news:
            await self._news.wait_for(lambda: bool(ready()))

    def _beat(self) -> Beat:
        return Beat(service="router", instance="watcher", incarnation=self.presence.incarnation)

    def _on_beat(self, peer: Peer) -> None:
        if peer.service == "tokenizer" and isinstance(peer.beat, Beat):
            self.last = peer.beat
            self._notify()

    def _hear(self, what: str) -> None:
        self.heard.append(what)
        self._notify()

    def _notify(self) -> None:
        task = asyncio.get_running_loop().create_task(self._tell())
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()


@pytest.fixture
async def watcher(bus: Bus) -> AsyncIterator[Watcher]:
    """On the test's bus."""
    one = Watcher(bus)
    await one.presence.start(("tokenizer",))
    running = asyncio.create_task(one.presence.run())
    yield one
    running.cancel()
    await asyncio.wait([running])


@asynccontextmanager
async def probe(
    server: NatsServer, subjects: Subjects, folder: Path, *more: str, port: int = 0
) -> AsyncIterator[Process]:
    """The probe service as a process; killed at the end if it still runs."""
    flags = {
        "nats": server.url,
        "namespace": subjects.namespace,
        "instance": "probe-1",
        "beat-s": str(BEAT_S),
        "death-limit-s": str(LIMIT_S),
        "admin-port": str(port),
    }
    arguments = [part for name, value in flags.items() for part in (f"--{name}", value)]
    process = Process("runtime_probe_service", [*arguments, *more], folder / "probe.log", HERE)
    process.start()
    try:
        yield process
    finally:
        if process.process is not None and process.process.poll() is None:
            process.process.kill()
            process.process.wait()


async def ended(process: Process) -> int:
    """Its exit code."""
    assert process.process is not None
    return await asyncio.to_thread(process.process.wait, 20)


def logged(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "probe.log").read_text().splitlines() if line.startswith("{")]


async def test_it_gets_ready_works_drains_and_exits_with_0(
    nats_server: NatsServer, subjects: Subjects, watcher: Watcher, tmp_path: Path
) -> None:
    port = free_tcp_port()
    async with probe(nats_server, subjects, tmp_path, port=port) as process:
        await watcher.until(lambda: watcher.last and watcher.last.ready)
        assert await asyncio.to_thread(http_ready, port)
        assert await asyncio.to_thread(http_ready, port, "/health")
        assert not await asyncio.to_thread(http_ready, port, "/nothing")
        said = await watcher.bus.request(f"{subjects.namespace}.probe.probe-1", b"", within=5)
        assert watcher.last is not None
        assert int(said) == watcher.last.incarnation
        process.signal(signal.SIGTERM)
        assert await ended(process) == 0
    events = [line["event"] for line in logged(tmp_path)]
    assert [event for event in events if str(event).startswith("service.")] == [
        "service.starting",
        "service.started",
        "service.draining",
        "service.stopped",
    ]


async def test_while_it_drains_it_is_alive_but_not_ready(
    nats_server: NatsServer, subjects: Subjects, watcher: Watcher, tmp_path: Path
) -> None:
    port = free_tcp_port()
    async with probe(nats_server, subjects, tmp_path, "--drain-takes", "60", "--drain-s", "1", port=port) as process:
        await watcher.until(lambda: watcher.last and watcher.last.ready)
        process.signal(signal.SIGTERM)
        await watcher.until(lambda: watcher.last and watcher.last.draining and not watcher.last.ready)
        assert not await asyncio.to_thread(http_ready, port)
        assert await asyncio.to_thread(http_ready, port, "/health")
        assert await ended(process) == 0
    assert "service.drain_cut" in [line["event"] for line in logged(tmp_path)]


class Deaf(Service[Settings]):
    """Swallows one cancellation: of its start, which may take long, and of its task."""

    name = "tokenizer"
    section = "tokenizer"
    package = "catenary-runtime"
    start_s = 0.0

    async def start(self) -> None:
        self.started = self.spawn(self._deaf(60, 60), "deaf")
        await self._deaf(self.start_s, 0)

    async def _deaf(self, seconds: float, more: float) -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(seconds)
        await asyncio.sleep(more)


@pytest.mark.parametrize("start_s", [0.0, 60.0])
async def test_a_cancellation_that_is_swallowed_keeps_no_service_alive(
    nats_server: NatsServer, subjects: Subjects, start_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "CANCEL_AGAIN_S", 0.1)
    service = Deaf(Settings(nats=nats_server.url, namespace=subjects.namespace))
    service.start_s = start_s
    living = asyncio.create_task(service.live())
    async with asyncio.timeout(20):
        while not hasattr(service, "started"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    if start_s:
        living.cancel()
    else:
        service.stopping.set()
    assert await asyncio.wait([living], timeout=20) == ({living}, set())
    assert living.cancelled() == bool(start_s)
    assert service.started.cancelled()


@pytest.mark.parametrize(("where", "said"), [("start", "broke at start"), ("task", "broke in a task")])
async def test_a_failure_we_know_of_is_one_line_and_exit_code_1(
    nats_server: NatsServer, subjects: Subjects, tmp_path: Path, where: str, said: str
) -> None:
    async with probe(nats_server, subjects, tmp_path, "--breaks", where) as process:
        assert await ended(process) == 1
    last = logged(tmp_path)[-1]
    assert (last["event"], last["error"], last["code"]) == ("service.failed", said, "engine_failed")
    assert "Traceback" not in (tmp_path / "probe.log").read_text()


async def test_a_failure_nobody_knows_is_told_with_its_trace(
    nats_server: NatsServer, subjects: Subjects, watcher: Watcher, tmp_path: Path
) -> None:
    async with probe(nats_server, subjects, tmp_path, "--breaks", "drain") as process:
        await watcher.until(lambda: watcher.last and watcher.last.ready)
        process.signal(signal.SIGTERM)
        assert await ended(process) == 1
    assert "ZeroDivisionError" in (tmp_path / "probe.log").read_text()


async def test_wrong_settings_are_exit_code_2_and_one_line() -> None:
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, str(Path(__file__).parent / "runtime_probe_service.py"), "--brakes", "start"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == "catenary-runtime: unknown argument --brakes; did you mean `--breaks`?\n"


async def test_a_frozen_process_is_dead_and_comes_back_in_a_new_incarnation(
    nats_server: NatsServer, subjects: Subjects, watcher: Watcher, tmp_path: Path
) -> None:
    async with probe(nats_server, subjects, tmp_path) as process:
        await watcher.until(lambda: watcher.last and watcher.last.ready)
        assert watcher.last is not None
        first = watcher.last.incarnation
        process.signal(signal.SIGSTOP)
        await watcher.until(lambda: f"down {first}" in watcher.heard)
        process.signal(signal.SIGCONT)
        await watcher.until(lambda: watcher.last and watcher.last.incarnation > first)
        said = await watcher.bus.request(f"{subjects.namespace}.probe.probe-1", b"", within=5)
        assert int(said) > first
        process.signal(signal.SIGTERM)
        assert await ended(process) == 0


async def test_a_killed_process_is_dead_after_the_limit(
    nats_server: NatsServer, subjects: Subjects, watcher: Watcher, tmp_path: Path
) -> None:
    async with probe(nats_server, subjects, tmp_path) as process:
        await watcher.until(lambda: watcher.last and watcher.last.ready)
        assert watcher.last is not None
        process.signal(signal.SIGKILL)
        await watcher.until(lambda: f"down {watcher.last.incarnation}" in watcher.heard if watcher.last else False)
        assert await ended(process) == -signal.SIGKILL


async def test_the_services_api_knows_it(
    nats_server: NatsServer, subjects: Subjects, watcher: Watcher, tmp_path: Path
) -> None:
    async with probe(nats_server, subjects, tmp_path):
        await watcher.until(lambda: watcher.last and watcher.last.ready)
        answers = [
            json.loads(await watcher.bus.request(f"$SRV.{verb}.catenary-tokenizer", b"", within=5))
            for verb in ("PING", "INFO", "STATS")
        ]
        assert {answer["name"] for answer in answers} == {"catenary-tokenizer"}
        assert answers[1]["metadata"]["instance"] == "probe-1"
        assert answers[1]["metadata"]["namespace"] == subjects.namespace


async def test_its_metrics_are_there(
    nats_server: NatsServer, subjects: Subjects, watcher: Watcher, tmp_path: Path
) -> None:
    port = free_tcp_port()
    async with probe(nats_server, subjects, tmp_path, port=port):
        await watcher.until(lambda: watcher.last and watcher.last.ready)

        def read() -> str:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                return str(answer.read(), "utf-8")

        text = await asyncio.to_thread(read)
    assert 'catenary_build_info{service="tokenizer"' in text
    assert "catenary_incarnations_total 1.0" in text
