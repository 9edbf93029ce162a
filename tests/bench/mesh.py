"""What a token and a turn cost in the whole mesh: real processes, the simulator as engine, a client of its own process.

CPU is user + system time of every process of the mesh, the broker included, from `/proc`; the client is not counted.
"""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from catenary_protocols.bus.codec import Decoder
from catenary_protocols.bus.tool_plane import ToolCall, ToolResult
from nats.aio.msg import Msg

from tests.bench.load import spread
from tests.mesh.harness import MODEL, PATIENCE_S, WEATHER, RunningMesh, running_mesh

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
ROOT = Path(__file__).parents[2]
PACED = {32: 1.6, 128: 1.25}
"""Streams, and the time scale at which the `dynamo` preset then takes about 10 ms a token."""
TOKENS = 400
CALLS = 200
LOAD_S = 120


def measure() -> dict[str, Any]:
    """All of it, as one object."""
    results: dict[str, Any] = {"machine": {"cpus": os.cpu_count(), "load": os.getloadavg()[0]}}
    for streams, scale in PACED.items():
        with mesh_at(scale) as mesh:
            results[f"paced_{streams}"] = paced(mesh, streams)
    with mesh_at(0) as mesh:
        results["first_token"] = first_token(mesh)
        results["requests"] = requests(mesh)
        results["call_to_executor"] = asyncio.run(call_to_executor(mesh))
        results["rss_mb"] = {name: round(size / 1e6, 1) for name, size in sizes(mesh).items()}
    return results


@contextmanager
def mesh_at(scale: float) -> Iterator[RunningMesh]:
    with tempfile.TemporaryDirectory() as folder, running_mesh(Path(folder), "--time-scale", str(scale)) as mesh:
        load(mesh, 8, 2, chat(max_tokens=16))
        yield mesh


def chat(**more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Stream {n}: say what you know of the sea."}]
    return {"model": MODEL, "messages": messages, "stream": True, "ignore_eos": True, **more}


def load(mesh: RunningMesh, streams: int, count: int, body: dict[str, Any]) -> dict[str, Any]:
    """Run the client; raises when a request failed."""
    task = json.dumps({"url": mesh.api, "streams": streams, "requests": count, "body": body})
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.load", task],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        timeout=LOAD_S,
    )
    result: dict[str, Any] = json.loads(done.stdout)
    if result["failed"]:
        raise RuntimeError(f"{result['failed']} requests failed: {result['error']}")
    return result


def paced(mesh: RunningMesh, streams: int) -> dict[str, Any]:
    """CPU of a streamed token while every token is a wake-up of its own."""
    before, began = cpu(mesh), time.perf_counter()
    result = load(mesh, streams, 1, chat(max_tokens=TOKENS))
    used = {name: after - before[name] for name, after in cpu(mesh).items()}
    tokens = streams * TOKENS
    return {
        "tokens": tokens,
        "cpu_us_per_token": round(sum(used.values()) / tokens * 1e6, 1),
        "by_process": {name: round(value / tokens * 1e6, 1) for name, value in by_service(mesh, used).items()},
        "mesh_cores": round(sum(used.values()) / (time.perf_counter() - began), 2),
        **{key: result[key] for key in ("ttft_ms", "gap_ms", "events_per_read", "client_cpu_s", "wall_s")},
    }


def first_token(mesh: RunningMesh) -> dict[str, Any]:
    """One stream at a time on a kept-alive connection; the engine takes no time, so all of it is the mesh's."""
    return {"above_engine_ms": load(mesh, 1, 100, chat(max_tokens=16))["ttft_ms"]}


def requests(mesh: RunningMesh) -> dict[str, Any]:
    """Short turns at 32 connections, and their CPU."""
    results = {}
    for name, body in (
        ("plain_1", chat(max_tokens=1, stream=False)),
        ("plain_16", chat(max_tokens=16, stream=False)),
        ("stream_16", chat(max_tokens=16)),
    ):
        before = cpu(mesh)
        result = load(mesh, 32, 20, body)
        used = sum(cpu(mesh).values()) - sum(before.values())
        results[name] = {
            "requests_per_s": result["requests_per_s"],
            "latency_ms": result["latency_ms"],
            "cpu_us_per_request": round(used / result["requests"] * 1e6),
        }
    return results


async def call_to_executor(mesh: RunningMesh) -> dict[str, float]:
    """From the publication of a parsed call to the start of its execution, as the two sides stamped them."""
    calls: dict[str, float] = {}
    starts: dict[str, float] = {}
    decode_call, decode_result = Decoder(ToolCall, json=True), Decoder(ToolResult, json=True)

    def on_call(message: Msg) -> None:
        call = decode_call(message.data)
        calls[call.key] = call.published_at

    def on_result(message: Msg) -> None:
        result = decode_result(message.data)
        starts[result.key] = result.started_at

    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "What is the weather in `Oslo`?"}],
        "tools": [WEATHER],
        "nvext": {"run_tools": True},
    }
    async with mesh.bus() as bus, mesh.client() as client, asyncio.timeout(CALLS):
        await bus.subscribe(bus.subjects.to("tool_call"), on_call)
        await bus.subscribe(bus.subjects.to("tool_result"), on_result)
        for _ in range(CALLS):
            (await client.post("/v1/chat/completions", json=body, timeout=PATIENCE_S)).raise_for_status()
        while len(starts) < CALLS:
            await bus.nc.flush()
    waits = [starts[key] - calls[key] for key in starts]
    return {**spread(waits), "mean": round(statistics.fmean(waits) * 1000, 2)}


def cpu(mesh: RunningMesh) -> dict[str, float]:
    """Seconds that each process has used so far, by instance."""
    used = {}
    for one in mesh.state["processes"]:
        fields = Path(f"/proc/{one['pid']}/stat").read_text().rpartition(")")[2].split()
        used[one["instance"]] = (int(fields[11]) + int(fields[12])) / TICKS
    return used


def sizes(mesh: RunningMesh) -> dict[str, int]:
    """Resident bytes of each process."""
    return {
        one["instance"]: int(Path(f"/proc/{one['pid']}/statm").read_text().split()[1]) * PAGE
        for one in mesh.state["processes"]
    }


def by_service(mesh: RunningMesh, used: dict[str, float]) -> dict[str, float]:
    """Workers together."""
    total: Counter[str] = Counter()
    for one in mesh.state["processes"]:
        total[one["service"]] += used[one["instance"]]  # type: ignore[assignment]  # seconds, not counts
    return dict(total)
