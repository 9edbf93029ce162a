"""`python -m tests.soak SECONDS`: a mesh under mixed load, then at rest. It must not have grown or left anything behind.

Half of the time is warm-up: caches fill. From then on the resident size of every process is to stay where it is. The
broker's is told, not judged: it holds what was stored, up to the streams' bounds. At the end no process has more tasks
than before the load, the broker no more subscriptions and consumers, and nobody a turn.
"""

import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import httpx

from tests.faults.stand import PATIENCE_S, Stand, standing
from tests.faults.turns import CALLS, MODEL, RESUMABLE

STREAMS = 6
SESSIONS = 40
KEPT_S = 10.0
"""How long a turn can be resumed after its end."""
NOT_FOUND, ASKS = 404, 3
FAILED, LONGEST = 0.01, 300
"""Of all that was asked, on a machine that others may starve; characters of each reason that is told."""
SAMPLE_S = 1.0
PAGE = os.sysconf("SC_PAGE_SIZE")
GROWTH = 0.08
GROWTH_BYTES = 8 << 20
"""What may come on top: an allocator's own unrest."""
KINDS = ("chat", "calls", "leaves", "messages", "responses", "resumes", "whole", "refused")


class Load:
    """Clients that ask one thing after the other."""

    def __init__(self, stand: Stand, seed: int) -> None:
        self.stand = stand
        self.counts: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.over = asyncio.Event()
        self._rng = random.Random(seed)  # noqa: S311  # a repeatable load

    async def ask(self) -> None:
        """Until it is over."""
        async with self.stand.client("frontend-1") as one, self.stand.client("frontend-2") as other:
            while not self.over.is_set():
                kind = self._rng.choice(KINDS)
                try:
                    await getattr(self, kind)(*self._rng.sample((one, other), 2), self._body())
                except (AssertionError, httpx.HTTPError) as error:
                    self.failed[f"{kind}: {str(error)[:LONGEST]}"] += 1
                else:
                    self.counts[kind] += 1

    def _body(self) -> dict[str, Any]:
        number = self._rng.randrange(SESSIONS)
        words = f"Session {number} asks of the harbour. " * (1 + number)
        return {"model": MODEL, "messages": [{"role": "user", "content": words}], "max_tokens": 60}

    async def chat(self, one: httpx.AsyncClient, _: httpx.AsyncClient, body: dict[str, Any]) -> None:
        text = await self._stream(one, "/v1/chat/completions", body)
        assert text.endswith("data: [DONE]\n\n"), text[-500:]

    async def calls(self, one: httpx.AsyncClient, _: httpx.AsyncClient, body: dict[str, Any]) -> None:
        await self.chat(one, _, {**CALLS, "user": str(body["max_tokens"])})

    async def leaves(self, one: httpx.AsyncClient, _: httpx.AsyncClient, body: dict[str, Any]) -> None:
        async with one.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as answer:
            await anext(answer.aiter_lines())

    async def messages(self, one: httpx.AsyncClient, _: httpx.AsyncClient, body: dict[str, Any]) -> None:
        text = await self._stream(one, "/v1/messages", body)
        assert "message_stop" in text, text[-500:]

    async def responses(self, one: httpx.AsyncClient, _: httpx.AsyncClient, body: dict[str, Any]) -> None:
        asked = {"model": MODEL, "input": body["messages"][0]["content"], "max_output_tokens": 60}
        first = (await one.post("/v1/responses", json=asked)).raise_for_status().json()
        again = {**asked, "input": "And then?", "previous_response_id": first["id"]}
        (await one.post("/v1/responses", json=again)).raise_for_status()

    async def resumes(self, one: httpx.AsyncClient, other: httpx.AsyncClient, body: dict[str, Any]) -> None:
        asking = one.stream("POST", "/v1/chat/completions", json={**body, "stream": True}, headers=RESUMABLE)
        async with asking as answer:
            turn = answer.headers["x-catenary-turn-id"]
            named = (line async for line in answer.aiter_lines() if line.startswith("id: "))  # heartbeats have none
            last = (await anext(named)).removeprefix("id: ")
        for _ in range(ASKS):  # an owner that others keep busy answers the next time
            rest = await other.get(f"/v1/turns/{turn}/events", headers={"last-event-id": last})
            if rest.status_code != NOT_FOUND:
                break
        assert rest.text.endswith("data: [DONE]\n\n"), rest.text[-500:]

    async def whole(self, one: httpx.AsyncClient, _: httpx.AsyncClient, body: dict[str, Any]) -> None:
        (await one.post("/v1/chat/completions", json=body)).raise_for_status()

    async def refused(self, one: httpx.AsyncClient, _: httpx.AsyncClient, body: dict[str, Any]) -> None:
        answer = await one.post("/v1/chat/completions", json={**body, "model": "no-such-model"})
        assert answer.status_code == 404

    @staticmethod
    async def _stream(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> str:
        answer = await client.post(path, json={**body, "stream": True})
        assert answer.status_code == 200, answer.text
        return answer.text


def sizes(stand: Stand) -> dict[str, int]:
    """Resident bytes."""
    pids = {name: part.process.pid for name, part in stand.parts.items()}
    assert stand.server.process is not None
    pids["nats-server"] = stand.server.process.pid
    return {name: int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE for name, pid in pids.items()}


async def held(stand: Stand) -> dict[str, int]:
    """What the processes and the broker hold: tasks of each, subscriptions, consumers."""
    found: dict[str, int] = {}
    async with httpx.AsyncClient(timeout=PATIENCE_S) as http:
        for name, part in stand.parts.items():
            lines = (await http.get(f"{part.url}/metrics")).text.splitlines()
            found[f"tasks of {name}"] = int(float(next(one for one in lines if one.startswith("catenary_tasks"))[15:]))
        connections = (await http.get(f"{stand.server.monitor}/connz")).json()["connections"]
        found |= {f"subscriptions of {one['name']}": one["subscriptions"] for one in connections if one.get("name")}
        found["consumers"] = (await http.get(f"{stand.server.monitor}/jsz")).json()["consumers"]
    return found


async def at_rest(stand: Stand, before: dict[str, int] | None = None) -> dict[str, int]:
    """What is held once no beat names a turn; with `before`, once it is no more than that, or patience ends."""
    await stand.watch.until("no turn is left", lambda: not stand.watch.named(""))
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE_S
    while True:
        now = await held(stand)
        if before is None or not more(before, now) or loop.time() > deadline:
            return now
        await asyncio.sleep(SAMPLE_S)


def more(before: dict[str, int], now: dict[str, int]) -> dict[str, list[int]]:
    """What there is more of."""
    return {name: [before.get(name, 0), count] for name, count in now.items() if count > before.get(name, 0)}


async def soak(seconds: float, folder: Path) -> dict[str, Any]:
    """Run it; what was found."""
    async with standing(folder, time_scale=0.2, resumable_s=KEPT_S, advisories=True) as stand:
        load = Load(stand, seed=1)
        async with stand.client() as client:
            for kind in KINDS:
                await getattr(load, kind)(client, client, load._body())
        before = await at_rest(stand)
        samples: list[dict[str, int]] = []
        async with asyncio.TaskGroup() as tasks:
            for _ in range(STREAMS):
                tasks.create_task(load.ask())
            for _ in range(int(seconds / SAMPLE_S)):
                await asyncio.sleep(SAMPLE_S)
                samples.append(sizes(stand))
            load.over.set()
        left = more(before, await at_rest(stand, before))
        runs = stand.letters()
        return {
            "seconds": seconds,
            "turns": dict(load.counts),
            "failed": dict(load.failed),
            "failed_too_many": load.failed.total() > FAILED * load.counts.total(),
            "rss_mb": growth(samples),
            "grew": [name for name in stand.parts if too_much(*growth(samples)[name])],
            "left_behind": left,
            "calls": len(runs),
            "calls_run_twice": sum(count > 1 for count in runs.values()),
        }


def growth(samples: list[dict[str, int]]) -> dict[str, tuple[float, float]]:
    """Median size of each process just after warm-up and at the end, in MB."""
    part = max(1, len(samples) // 10)
    then, now = samples[len(samples) // 2 :][:part], samples[-part:]
    return {
        name: (
            round(statistics.median(one[name] for one in then) / 1e6, 1),
            round(statistics.median(one[name] for one in now) / 1e6, 1),
        )
        for name in samples[-1]
    }


def too_much(then_mb: float, now_mb: float) -> bool:
    """More than unrest."""
    return (now_mb - then_mb) * 1e6 > max(GROWTH_BYTES, GROWTH * then_mb * 1e6)


def main() -> int:
    """Exit code 1 when anything grew or was left behind."""
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(soak(float(sys.argv[1]), Path(folder)))
    print(json.dumps(found, indent=2))
    return int(any(found[name] for name in ("grew", "left_behind", "calls_run_twice", "failed_too_many")))


if __name__ == "__main__":
    sys.exit(main())
