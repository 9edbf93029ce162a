"""Routing policies over HTTP: the real mesh, real Qwen tokens, four simulated workers of 8,192 blocks of 16 tokens.

Agents share a system prompt and tools with others of their group; each has a history of its own and goes on by turns: its
own answer, a tool's call and result. Policies follow one after the other, each in a fresh mesh. `ideal` is what one
boundless cache would find again, if the shared beginnings had exactly the length they are made for; `best` names the
policy that is first in each figure.

`python -m tests.bench routing` takes some ten minutes, and says something only where nothing else runs.
"""

import asyncio
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from catenary_tokenizers import ModelTokenizer, load

from tests.mesh.harness import RunningMesh, running_mesh
from tests.models import fetch

POLICIES = ("kv", "kv_dynamo", "round_robin", "least_loaded", "random")
JUDGED = ("mean", "p50", "p99")
MODEL = "qwen"
TURNS = 8
GROUPS = 4
TOOLS = 24
THINK_S = 0.2
PATIENCE_S = 120.0
READY_S = 300.0
"""Six processes open a vocabulary of 151,643 words."""
CONFIG = """
[router]
policy = "{policy}"

[[models]]
name = "qwen"
path = "{path}"
workers = 4
sim = {{ blocks = 8192, block_size = 16 }}
"""


@dataclass(frozen=True, slots=True)
class Workload:
    """Attributes: sessions in all, and open at a time; tokens of the shared beginning, of a history, a step, an answer."""

    sessions: int
    concurrency: int
    history: int
    step: int
    answer: int
    shared: int = 8000


WORKLOADS = {
    "shared_prompts": Workload(sessions=64, concurrency=32, history=1000, step=500, answer=32),
    "kv_pressure": Workload(sessions=48, concurrency=24, history=8000, step=800, answer=64),
}


@dataclass(slots=True)
class Told:
    """What clients saw, over all sessions. Times in seconds."""

    first: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    prompt: int = 0
    cached: int = 0
    reusable: int = 0


class Texts:
    """Deterministic text of so many tokens, as this tokenizer counts them."""

    def __init__(self, tokenizer: ModelTokenizer) -> None:
        letters = random.Random(0)  # noqa: S311  reproducible, not secret
        self._words = [
            "".join(letters.choices("abcdefghijklmnopqrstuvwxyz", k=letters.randint(2, 9))) for _ in range(4096)
        ]
        sample = self._said("sample", 4000)
        self._tokens_per_word = len(tokenizer.encode(sample, special=False)) // 4 / 4000

    def of(self, name: str, tokens: int) -> str:
        """The same name says the same."""
        return self._said(name, round(tokens / self._tokens_per_word))

    def _said(self, name: str, words: int) -> str:
        return " ".join(random.Random(name).choices(self._words, k=words))  # noqa: S311  reproducible, not secret


class Agent:
    """One session."""

    def __init__(self, texts: Texts, workload: Workload, group: str, name: str) -> None:
        self._texts, self._workload, self._name = texts, workload, name
        self._steps = 0
        self.seen = 0
        self.tools = [_tool(texts, f"{group}/{number}") for number in range(TOOLS)]
        tools = TOOLS * 60
        self.messages: list[dict[str, Any]] = [
            {"role": "system", "content": texts.of(group, workload.shared - tools)},
            {"role": "user", "content": f"Task {name}: {texts.of(name, 60)}"},
        ]
        for _ in range(max(1, workload.history // 1000)):
            self._step(min(1000, workload.history))

    def go_on(self) -> None:
        """A tool was called, and answered."""
        self._step(self._workload.step)

    def body(self) -> dict[str, Any]:
        return {
            "model": MODEL,
            "messages": self.messages,
            "tools": self.tools,
            "max_tokens": self._workload.answer,
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
        }

    def _step(self, tokens: int) -> None:
        self._steps += 1
        name = f"{self._name}/{self._steps}"
        call = {
            "name": self.tools[0]["function"]["name"],
            "arguments": json.dumps({"command": self._texts.of(name, 20)}),
        }
        called = [{"id": f"call_{self._steps}", "type": "function", "function": call}]
        self.messages += [
            {"role": "assistant", "content": self._texts.of(f"{name}/said", 20), "tool_calls": called},
            {
                "role": "tool",
                "tool_call_id": f"call_{self._steps}",
                "content": self._texts.of(f"{name}/told", tokens - 90),
            },
        ]


def _tool(texts: Texts, name: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
    title = f"tool_{name.replace('/', '_')}"
    return {
        "type": "function",
        "function": {"name": title, "description": texts.of(name, 20), "parameters": parameters},
    }


def measure() -> dict[str, Any]:
    """By workload and policy; of a copy of the model, which tests that run meanwhile write anew."""
    with tempfile.TemporaryDirectory() as folder:
        path = shutil.copytree(fetch.qwen(), Path(folder) / MODEL)
        texts = Texts(load(path))
        before = os.getloadavg()[0]
        found = {name: _compared(path, texts, name) for name in WORKLOADS}
        return {"load_before": before, **found, "load_after": os.getloadavg()[0]}


def _compared(path: Path, texts: Texts, name: str) -> dict[str, Any]:
    """One workload under every policy, and who is first."""
    by_policy: dict[str, dict[str, Any]] = {}
    for policy in POLICIES:
        by_policy[policy] = _of_policy(path, texts, WORKLOADS[name], policy)
        print(f"{name} {policy}: {json.dumps(by_policy[policy])}", file=sys.stderr)
    best = {f"ttft_{part}": min(POLICIES, key=lambda one: by_policy[one]["ttft_ms"][part]) for part in JUDGED}
    best["cached_share"] = max(POLICIES, key=lambda one: by_policy[one]["cached_share"])
    return {**by_policy, "best": best}


def _of_policy(path: Path, texts: Texts, workload: Workload, policy: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "catenary.toml"
        config.write_text(CONFIG.format(policy=policy, path=path))
        flags = ("--config", str(config), "--ready-s", str(READY_S))
        with running_mesh(Path(folder), *flags, ready_s=READY_S) as mesh:
            return asyncio.run(_play(mesh, texts, workload))


async def _play(mesh: RunningMesh, texts: Texts, workload: Workload) -> dict[str, Any]:
    """Sessions in random order; the next begins when one has ended."""
    order = [(f"group{number % GROUPS}", f"session{number}") for number in range(workload.sessions)]
    rng = random.Random("order")  # noqa: S311  reproducible, not secret
    rng.shuffle(order)
    waiting = iter(order)
    told, known = Told(), set[str]()
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=workload.concurrency)

    async def client() -> None:
        for group, name in waiting:
            agent = Agent(texts, workload, group, name)
            for turn in range(TURNS):
                if turn:
                    await asyncio.sleep(rng.expovariate(1 / THINK_S))
                    agent.go_on()
                told.reusable += agent.seen or (workload.shared if group in known else 0)
                known.add(group)
                agent.seen = await _ask(http, agent, told)

    began = time.monotonic()
    async with (
        httpx.AsyncClient(base_url=mesh.api, timeout=PATIENCE_S, limits=limits) as http,
        asyncio.TaskGroup() as all_of,
    ):
        for _ in range(workload.concurrency):
            all_of.create_task(client())
    return {
        "requests": len(told.whole),
        "wall_s": round(time.monotonic() - began, 1),
        "prompt_tokens_mean": round(told.prompt / len(told.whole)),
        "cached_share": round(told.cached / told.prompt, 4),
        "ideal": round(told.reusable / told.prompt, 4),
        "ttft_ms": _spread(told.first),
        "latency_p50_ms": round(1000 * statistics.median(told.whole), 1),
    }


async def _ask(http: httpx.AsyncClient, agent: Agent, told: Told) -> int:
    """One turn; its prompt's tokens. Raises when it was not answered whole."""
    began, first, usage = time.perf_counter(), 0.0, None
    async with http.stream("POST", "/v1/chat/completions", json=agent.body()) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise RuntimeError(str(event["error"]))
            if not first and any(_says(choice["delta"]) for choice in event["choices"]):
                first = time.perf_counter() - began
            usage = event.get("usage") or usage
    if usage is None or not first:
        raise RuntimeError("the stream ended without text or usage")
    told.first.append(first)
    told.whole.append(time.perf_counter() - began)
    told.prompt += usage["prompt_tokens"]
    told.cached += usage["prompt_tokens_details"]["cached_tokens"]
    return int(usage["prompt_tokens"])


def _says(delta: dict[str, Any]) -> bool:
    return any(delta.get(key) for key in ("content", "reasoning_content", "tool_calls"))


def _spread(values: list[float]) -> dict[str, float]:
    parts = statistics.quantiles(values, n=100)
    found = {"mean": statistics.fmean(values), "p50": parts[49], "p90": parts[89], "p99": parts[98]}
    return {name: round(1000 * value, 1) for name, value in found.items()}
