"""What a prompt of 52,000 tokens costs the whole mesh before its first token: CPU of each process, and time.

One request after the other on a kept-alive connection, Qwen's vocabulary, two workers whose engine takes no time. Phases:
`first`, the first request of all, as soon as the mesh says it is ready; `new_session`, with a system text and tools that are
known and a history that is not; `warm_turn`, a known session with some 500 new tokens; `repeat`, a prompt that was there.
CPU is that of every process of the mesh with its children, the broker included, from the scheduler's own account (ns).
"""

import asyncio
import json
import os
import shutil
import statistics
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.bench.load import Figures, connect, post
from tests.bench.tokenizers import conversation, turn
from tests.mesh.harness import RunningMesh, running_mesh
from tests.models import fetch

Json = dict[str, Any]

MODEL = "qwen"
SESSIONS = 6
TURNS = 12
ANSWER = 4
READY_S = 300.0
"""Services open a vocabulary of 151,643 words."""
PEER_WARM_TURN = {"cpu_ms": 6.3, "ttft_ms": 4.8}
"""What the best peer needs for `warm_turn`: NVIDIA Dynamo with its fastest tokenizer, measured on such a machine."""
CONFIG = """
[[models]]
name = "qwen"
path = "{path}"
workers = 2
sim = {{ blocks = 16384, block_size = 16, time_scale = 0 }}
"""


def measure() -> Json:
    """By phase; of a copy of the model, which tests that run meanwhile write anew."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "catenary.toml"
        config.write_text(CONFIG.format(path=shutil.copytree(fetch.qwen(), Path(folder) / MODEL)))
        with running_mesh(Path(folder), "--config", str(config), "--ready-s", str(READY_S), ready_s=READY_S) as mesh:
            return {"load": os.getloadavg()[0], **asyncio.run(_phases(mesh)), "peer_warm_turn": PEER_WARM_TURN}


async def _phases(mesh: RunningMesh) -> Json:
    messages, tools = conversation(1)
    first = await phase(mesh, [request(messages, tools)])
    sessions = [[messages[0], *conversation(100 + number)[0][1:]] for number in range(SESSIONS)]
    new = await phase(mesh, [request(session, tools) for session in sessions])
    turns = []
    for number in range(SESSIONS * TURNS):
        at = number % SESSIONS
        sessions[at] = turn(sessions[at], number)
        turns.append(request(sessions[at], tools))
    warm = await phase(mesh, turns)
    return {"first": first, "new_session": new, "warm_turn": warm, "repeat": await phase(mesh, turns[-SESSIONS:] * 2)}


async def phase(mesh: RunningMesh, requests: Sequence[bytes]) -> Json:
    """Milliseconds: CPU of a request by service, and the median time to first token. Raises when a request failed."""
    figures = Figures()
    before = cpu(mesh)
    await (await connect(mesh.api, requests, figures, streamed=True))
    used = cpu(mesh) - before
    if figures.failed:
        raise RuntimeError(figures.error)
    by_service = {name: round(ns / len(requests) / 1e6, 2) for name, ns in used.items()}
    return {
        "requests": len(requests),
        "ttft_ms": round(statistics.median(figures.first) * 1e3, 2),
        "cpu_ms": round(used.total() / len(requests) / 1e6, 2),
        "cpu_ms_by_service": by_service,
    }


def request(messages: list[Json], tools: list[Json]) -> bytes:
    """A streamed turn with a short answer."""
    body = {"model": MODEL, "messages": [spelled(message) for message in messages], "tools": tools}
    return post({**body, "max_tokens": ANSWER, "stream": True, "ignore_eos": True})


def spelled(message: Json) -> Json:
    """A message with the arguments of its calls as clients send them: JSON in a string."""
    calls = [
        {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
        for call in message.get("tool_calls", ())
    ]
    return {**message, "tool_calls": calls} if calls else message


def cpu(mesh: RunningMesh) -> Counter[str]:
    """Nanoseconds used so far, by service."""
    used: Counter[str] = Counter()
    for one in mesh.state["processes"]:
        used[one["service"]] += _used(one["pid"])
    return used


def _used(pid: int) -> int:
    """Of all threads of a process and its children."""
    used = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        used += int((task / "schedstat").read_text().split()[0])
        used += sum(map(_used, map(int, (task / "children").read_text().split())))
    return used
