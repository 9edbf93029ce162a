"""What goes wrong and does not show: a client that leaves, a worker that dies, a launcher that is told to stop."""

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.mesh.harness import MODEL, PATIENCE_S, RunningMesh, Script, running_mesh, stream

pytestmark = pytest.mark.slow

LONG: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Count."}],
    "max_tokens": 300,
    "ignore_eos": True,
}
ENDLESS = {**LONG, "max_tokens": 20_000}


def text_of(events: list[Any]) -> str:
    return "".join(
        choice["delta"].get("content") or ""
        for event in events
        if event.data != "[DONE]"
        for choice in event.data["choices"]
    )


async def test_a_client_that_goes_away_cancels_its_turn(paced_mesh: RunningMesh) -> None:
    request = {**LONG, "stream": True, "max_tokens": 20_000, "messages": [{"role": "user", "content": "goes away"}]}
    async with paced_mesh.bus() as bus, paced_mesh.client() as client:
        engines = Script(bus, paced_mesh.workers, "watch")
        before = sum(report["aborted"] for report in await engines.reports())
        async with client.stream("POST", "/v1/chat/completions", json=request) as answer:
            lines = answer.aiter_lines()
            for _ in range(20):
                await anext(lines)
        async with asyncio.timeout(PATIENCE_S):
            while sum(report["aborted"] for report in await engines.reports()) == before:
                await bus.nc.flush()


async def test_a_worker_that_is_killed_loses_no_token(paced_mesh: RunningMesh, tmp_path: Path) -> None:
    with running_mesh(tmp_path, "--time-scale", "1", "--sim-script") as mesh:
        async with mesh.client() as client:
            whole = text_of(await stream(client, LONG))
            events: list[str] = []
            request = {**LONG, "stream": True}
            before = (await client.post("/v1/chat/completions", json={**LONG, "max_tokens": 1})).headers
            async with client.stream("POST", "/v1/chat/completions", json=request) as answer:
                async for line in answer.aiter_lines():
                    events.append(line)
                    if len(events) == 40:
                        os.kill(mesh.pid(before["x-catenary-worker"]), signal.SIGKILL)
            parsed = [json.loads(one[6:]) for one in events if one.startswith("data: {")]
            text = "".join(c["delta"].get("content") or "" for one in parsed for c in one["choices"])
            assert text == whole
        assert mesh.stop() == 0


async def test_a_turn_in_flight_is_finished_when_the_mesh_is_told_to_stop(tmp_path: Path) -> None:
    with running_mesh(tmp_path, "--time-scale", "1") as mesh:
        async with mesh.client() as client:
            events = []
            async with client.stream("POST", "/v1/chat/completions", json={**LONG, "stream": True}) as answer:
                async for line in answer.aiter_lines():
                    if not line.startswith("data: "):
                        continue
                    events.append(line)
                    if len(events) == 10:
                        mesh.launcher.send_signal(signal.SIGTERM)  # once: a second one kills
            assert events[-1] == "data: [DONE]"
        assert await asyncio.to_thread(mesh.launcher.wait, PATIENCE_S) == 0
        assert not (mesh.data_dir / "mesh.json").exists()


async def test_a_killed_launcher_leaves_nothing_behind(tmp_path: Path) -> None:
    with running_mesh(tmp_path, "--time-scale", "0") as mesh:
        pids = [os.pidfd_open(int(one["pid"])) for one in mesh.state["processes"]]
        assert len(pids) == 8
        mesh.launcher.kill()
        mesh.launcher.wait()
        for handle in pids:
            assert select.select([handle], [], [], PATIENCE_S)[0]
            os.close(handle)


async def test_a_service_that_dies_comes_back(tmp_path: Path) -> None:
    with running_mesh(tmp_path, "--time-scale", "0") as mesh:
        os.kill(mesh.pid("router"), signal.SIGKILL)
        async with mesh.client() as client:
            answer = await client.post("/v1/chat/completions", json={**LONG, "max_tokens": 3})
        assert answer.status_code == 200, answer.text
        async with httpx.AsyncClient() as admin, asyncio.timeout(PATIENCE_S):
            while not await is_ready(admin, mesh.url("router")):
                await asyncio.to_thread(os.sched_yield)


async def is_ready(admin: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await admin.get(f"{url}/ready")).status_code == 200
    except httpx.HTTPError:
        return False


@pytest.mark.parametrize("flags", [["--workers", "0"], ["--nats", "nats://127.0.0.1:1"], ["--config", "absent.toml"]])
def test_a_mesh_that_cannot_start_says_why(tmp_path: Path, flags: list[str]) -> None:
    command = [sys.executable, "-m", "catenary_cli", "up", "--port", "0", "--data-dir", str(tmp_path), *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode in {1, 2}
    assert done.stderr.startswith("catenary: ")
    assert "Traceback" not in done.stderr


async def test_a_second_ctrl_c_kills(tmp_path: Path) -> None:
    with running_mesh(tmp_path, "--time-scale", "1") as mesh:
        handles = [os.pidfd_open(int(one["pid"])) for one in mesh.state["processes"]]
        request = {**ENDLESS, "stream": True}
        async with mesh.client() as client, client.stream("POST", "/v1/chat/completions", json=request) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            mesh.launcher.send_signal(signal.SIGINT)
            while "draining" not in (tmp_path / "up.log").read_text():
                await anext(lines)
            mesh.launcher.send_signal(signal.SIGINT)
            with pytest.raises(httpx.HTTPError):
                async for _ in lines:
                    pass
        assert await asyncio.to_thread(mesh.launcher.wait, PATIENCE_S) == 130
        for handle in handles:
            assert select.select([handle], [], [], PATIENCE_S)[0]
            os.close(handle)
