"""Ten times what a mesh can do: goodput, latency of admitted turns, fairness over sessions, priority, refusals.

Capacity is what as many clients as there are slots get through, one turn after the other. Then clients ask ten times as
often, whatever becomes of their requests. Sessions ask unequally often; one asks with a priority.

A rate counts the part of each whole turn that was streamed in the time looked at: turns of one length that began together
end together, and whole ones would count as many too few or too many as there are slots. A turn that broke counts nothing.
"""

import asyncio
import math
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.bench.load import spread
from tests.mesh.harness import MODEL, RunningMesh, running_mesh

SLOTS = 16
TOKENS = 64
SECONDS = 30.0
WARM_S = 7.5
"""Until as many turns run as can."""
TIMES = 10
AROUND_S = 6.0
"""What a point of the plot is the mean of: longer than a turn, since turns that began together stream together."""
_WINDOWS = int(SECONDS - AROUND_S) + 1
WEIGHTS = {"a": 2, "b": 2, "c": 2, "d": 4, "e": 6, "f": 8, "urgent": 1}
"""Sessions, and how often each asks in comparison."""
CONFIG = """
[router]
queue_limit = 24
queue_wait_s = 20.0

[[models]]
name = "catenary-sim"
workers = 2
sim = { max_batch = 8, time_scale = 8.0 }
"""


@dataclass(slots=True)
class Told:
    """What clients saw."""

    done: Counter[str] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    refused_later: Counter[str] = field(default_factory=Counter)
    broken: Counter[str] = field(default_factory=Counter)
    first_s: dict[str, list[float]] = field(default_factory=dict)
    retry_after_s: list[float] = field(default_factory=list)
    without_retry_after: int = 0
    streamed: list[tuple[float, float]] = field(default_factory=list)
    """Of each whole turn: when its first and its last token came."""

    def rate(self, begin: float, end: float) -> float:
        """Turns a second."""
        parts = (max(0.0, min(last, end) - max(first, begin)) / (last - first) for first, last in self.streamed)
        return sum(parts) / (end - begin)


def measure() -> dict[str, Any]:
    """Both phases, as one object."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "catenary.toml"
        config.write_text(CONFIG)
        with running_mesh(Path(folder), "--config", str(config)) as mesh:
            return asyncio.run(_both(mesh))


async def _both(mesh: RunningMesh) -> dict[str, Any]:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=200)
    async with httpx.AsyncClient(base_url=mesh.api, timeout=60, limits=limits) as client:
        calm = Told()
        began = time.monotonic()
        await asyncio.gather(*(_one_by_one(client, calm, f"calm-{number}", began) for number in range(SLOTS)))
        capacity = calm.rate(began + WARM_S, began + SECONDS / 2)
        flooded = Told()
        began = time.monotonic()
        await _flood(client, flooded, capacity * TIMES)
        return _report(capacity, flooded, began)


async def _one_by_one(client: httpx.AsyncClient, told: Told, session: str, began: float) -> None:
    while time.monotonic() - began < SECONDS / 2:
        await _ask(client, told, session)


async def _flood(client: httpx.AsyncClient, told: Told, rate: float) -> None:
    order = sorted((number / weight, name) for name, weight in WEIGHTS.items() for number in range(weight))
    began, number = time.monotonic(), 0
    async with asyncio.TaskGroup() as tasks:
        while (due := began + number / rate) - began < SECONDS:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            tasks.create_task(_ask(client, told, order[number % len(order)][1]))
            number += 1


async def _ask(client: httpx.AsyncClient, told: Told, session: str) -> None:
    hints = {"nvext": {"agent_hints": {"priority": 5}}} if session == "urgent" else {}
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": f"Session {session} asks."}],
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "stream": True,
        "prompt_cache_key": session,
        **hints,
    }
    told.asked[session] += 1
    began, first, whole, refused = time.monotonic(), 0.0, False, False
    async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        if answer.status_code in {429, 503}:
            told.refused[session] += 1
            after = answer.headers.get("retry-after")
            told.retry_after_s += [float(after)] if after else []
            told.without_retry_after += after is None
            return
        async for line in answer.aiter_lines():
            if not first and '"content":' in line and '"content":""' not in line:
                first = time.monotonic()
            whole = whole or line == "data: [DONE]"
            refused = refused or any(f'"code":"{code}"' in line for code in ("queue_full", "overloaded"))
    ended = time.monotonic()
    if refused and whole and not first:
        told.refused_later[session] += 1
    elif not first or not whole:
        told.broken[session] += 1
    else:
        told.done[session] += 1
        told.streamed.append((first, ended))
        told.first_s.setdefault(session, []).append(first - began)


def _report(capacity: float, told: Told, began: float) -> dict[str, Any]:
    steady = told.rate(began + WARM_S, began + SECONDS)
    shares = [told.done[name] for name in WEIGHTS if name != "urgent"]
    others = [one for name, all_of in told.first_s.items() if name != "urgent" for one in all_of]
    return {
        "capacity_turns_per_s": round(capacity, 2),
        "asked_per_s": round(told.asked.total() / SECONDS, 1),
        "goodput_turns_per_s": round(steady, 2),
        "goodput_share": round(steady / capacity, 3),
        "done": dict(told.done),
        "asked": dict(told.asked),
        "refused": told.refused.total(),
        "refused_after_queueing": told.refused_later.total(),
        "refused_without_retry_after": told.without_retry_after,
        "broken": told.broken.total(),
        "retry_after_s": _range(told.retry_after_s),
        "first_token_ms": spread(others),
        "first_token_ms_urgent": spread(told.first_s.get("urgent", [math.nan])),
        "served_share_urgent": round(told.done["urgent"] / told.asked["urgent"], 3),
        "jain_sessions": round(jain(shares), 3),
        "goodput_over_time": [round(told.rate(began + at, began + at + AROUND_S), 2) for at in range(_WINDOWS)],
    }


def jain(shares: list[int]) -> float:
    """1 when all got the same, 1/n when one got all."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 0.0


def _range(values: list[float]) -> list[float]:
    return [min(values), max(values)] if values else []


def plot(report: dict[str, Any], path: Path) -> None:
    """Goodput over time beside capacity, and turns served by session beside those asked for, as a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    over_time, by_session = figure.subplots(1, 2)
    goodput = report["goodput_over_time"]
    middles = [at + AROUND_S / 2 for at in range(len(goodput))]
    over_time.plot(middles, goodput, color="#1f6feb", label=f"goodput, mean of {AROUND_S:.0f} s")
    over_time.axhline(report["capacity_turns_per_s"], color="#57606a", linestyle="--", label="capacity")
    over_time.set_ylim(bottom=0)
    over_time.set_xlabel("seconds")
    over_time.set_ylabel("turns a second")
    over_time.set_title(f"{TIMES}x load: goodput {report['goodput_share']:.0%} of capacity")
    names = list(report["asked"])
    by_session.bar(names, [report["asked"][name] for name in names], color="#d0d7de", label="asked")
    by_session.bar(names, [report["done"].get(name, 0) for name in names], color="#1f6feb", label="served")
    by_session.set_yscale("log")
    by_session.set_ylabel("turns")
    by_session.set_title(f"by session: Jain {report['jain_sessions']:.2f} without the urgent one")
    for axes in (over_time, by_session):
        axes.legend()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    import json

    measured = measure()
    print(json.dumps(measured, indent=2))
    if len(sys.argv) > 1:
        plot(measured, Path(sys.argv[1]))
