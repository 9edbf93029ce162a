"""A mesh of real processes for tests: `catenary up` on free ports, its data in a folder of the test run."""

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
from catenary_protocols.bus.subjects import Subjects
from catenary_runtime.bus import Bus

READY_S = 90.0
STOP_S = 60.0
PATIENCE_S = 20.0
PATIENT = {"CATENARY_DEATH_LIMIT_S": "10", "CATENARY_ROUTER_OVERLAP_TIMEOUT_S": "5"}
"""For tests of what is answered, not of how soon: where a busy machine stands still for a second, nobody has died."""
MODEL = "catenary-sim"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@dataclass
class RunningMesh:
    """What `catenary up` says of itself in `mesh.json`, and its own process."""

    launcher: subprocess.Popen[str]
    data_dir: Path
    state: dict[str, Any]

    @property
    def api(self) -> str:
        return str(self.state["api"])

    @property
    def broker(self) -> str:
        return str(self.state["broker"])

    @property
    def subjects(self) -> Subjects:
        return Subjects(str(self.state["namespace"]))

    @property
    def workers(self) -> list[str]:
        return [one["instance"] for one in self.state["processes"] if one["service"] == "worker"]

    def pid(self, instance: str) -> int:
        return next(int(one["pid"]) for one in self.state["processes"] if one["instance"] == instance)

    def url(self, instance: str) -> str:
        return next(str(one["url"]) for one in self.state["processes"] if one["instance"] == instance)

    def log(self, instance: str) -> str:
        return (self.data_dir / "logs" / f"{instance}.log").read_text()

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.api, timeout=PATIENCE_S)

    @asynccontextmanager
    async def bus(self) -> AsyncIterator[Bus]:
        bus = Bus(self.broker, self.subjects, f"test-{os.getpid()}-{time.monotonic_ns()}", death_limit=1e9)
        await bus.connect()
        try:
            yield bus
        finally:
            await bus.close()

    def stop(self) -> int:
        """Ctrl-C; the exit code."""
        if self.launcher.poll() is None:
            self.launcher.send_signal(signal.SIGINT)
        try:
            return self.launcher.wait(STOP_S)
        finally:
            self.launcher.kill()


@contextmanager
def running_mesh(
    folder: Path, *flags: str, environment: Mapping[str, str] | None = None, ready_s: float = READY_S
) -> Iterator[RunningMesh]:
    """A mesh until the end of the block. `flags` go to `catenary up`."""
    output = folder / "up.log"
    folder.mkdir(parents=True, exist_ok=True)
    command = [
        *(sys.executable, "-m", "catenary_cli", "up", "--port", "0", "--nats-port", "0"),
        *("--data-dir", str(folder / "data"), *flags),
    ]
    with output.open("w") as log:
        launcher = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **(environment or {})},
            text=True,
            stdout=subprocess.PIPE,
            stderr=log,
        )
    assert launcher.stdout is not None
    try:
        _await_ready(launcher, output, ready_s)
        yield RunningMesh(launcher, folder / "data", json.loads((folder / "data" / "mesh.json").read_text()))
    finally:
        if launcher.poll() is None:
            launcher.send_signal(signal.SIGINT)
            try:
                launcher.wait(STOP_S)
            except subprocess.TimeoutExpired:
                launcher.kill()
                raise
        launcher.stdout.close()
    assert not _refusals(folder / "data" / "logs" / "nats-server.log")


def _refusals(log: Path) -> list[str]:
    """What our own broker refused: all that services do is to be within the rights of their roles."""
    return [line for line in log.read_text().splitlines() if "Violation" in line] if log.exists() else []


def _await_ready(launcher: "subprocess.Popen[str]", output: Path, ready_s: float) -> None:
    assert launcher.stdout is not None
    deadline = time.monotonic() + ready_s
    while select.select([launcher.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
        line = launcher.stdout.readline()
        if line.startswith("Catenary is ready"):
            return
        if not line:
            break
    launcher.kill()
    raise AssertionError(f"the mesh did not become ready: {output.read_text()}")


class Script:
    """Tells every worker's simulator what to say; forgets it at the end of the block."""

    def __init__(self, bus: Bus, workers: list[str], name: str) -> None:
        self._bus, self._workers, self._name = bus, workers, name

    async def say(self, *texts: str, match: str = "", **more: Any) -> None:
        spec = msgspec.json.encode({"id": self._name, "match": match, "texts": texts, **more})
        for answer in await self._ask("sim_script", spec):
            assert "error" not in answer, answer

    async def forget(self) -> None:
        await self._ask("sim_delete", msgspec.json.encode({"id": self._name}))

    async def reports(self) -> list[dict[str, Any]]:
        """What each engine got and did."""
        return await self._ask("sim_report", b"{}")

    async def _ask(self, channel: str, data: bytes) -> list[dict[str, Any]]:
        subjects = [self._bus.subjects.to(channel, worker=worker) for worker in self._workers]
        answers = await asyncio.gather(*(self._bus.request(one, data, within=PATIENCE_S) for one in subjects))
        return [msgspec.json.decode(answer) for answer in answers]


@dataclass
class SseEvent:
    name: str
    data: Any
    at: float


async def stream(
    client: httpx.AsyncClient, request: dict[str, Any], path: str = "/v1/chat/completions"
) -> list[SseEvent]:
    """All events of a streamed answer; `[DONE]` is the text."""
    events: list[SseEvent] = []
    async with client.stream("POST", path, json={**request, "stream": True}) as answer:
        assert answer.status_code == 200, await answer.aread()
        name = ""
        async for line in answer.aiter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                text = line.removeprefix("data: ")
                data = text if text == "[DONE]" else json.loads(text)
                events.append(SseEvent(name, data, time.monotonic()))
            elif not line:
                name = ""
    return events
