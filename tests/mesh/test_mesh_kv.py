"""Sessions come back to their KV blocks, and what the index says of blocks is what the engines hold."""

import asyncio
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from catenary_protocols.bus.codec import Decoder, encode
from catenary_protocols.bus.messages import Overlap, OverlapQuery, WorkerLoad
from catenary_runtime.bus import Bus
from nats.aio.msg import Msg

from tests.mesh.harness import MODEL, PATIENCE_S, RunningMesh, Script, running_mesh

BLOCK = 16
SESSIONS = 8
CONFIG = """
[[models]]
name = "catenary-sim"
workers = 3
sim = {{ blocks = {blocks}, block_size = 16, time_scale = 0 }}
"""
SMALL_POOL = 96
decode = Decoder(Overlap)
decode_load = Decoder(WorkerLoad)


def prompt(number: int, lines: int) -> list[dict[str, Any]]:
    notes = " ".join(f"Note {line}: traveller {number} takes ferry {line * 7 % 31}." for line in range(lines))
    return [{"role": "user", "content": f"{notes} What now?"}]


async def ask(client: httpx.AsyncClient, session: str, messages: list[dict[str, Any]]) -> tuple[dict[str, Any], str]:
    request = {"model": MODEL, "messages": messages, "max_tokens": 24, "prompt_cache_key": session}
    answer = await client.post("/v1/chat/completions", json=request)
    assert answer.status_code == 200, answer.text
    return answer.json(), answer.headers["x-catenary-worker"]


async def test_every_second_turn_lands_on_the_worker_that_has_its_blocks(
    mesh: RunningMesh, client: httpx.AsyncClient, mesh_bus: Bus
) -> None:
    firsts = await asyncio.gather(*(ask(client, f"lands-{number}", prompt(number, 60)) for number in range(SESSIONS)))
    # Until a worker's next beat, its first turns count as prefill that is still to be done: a reason to go elsewhere.
    await beats(mesh_bus, mesh.workers, since=time.time())

    async def comes_back(number: int) -> None:
        first, worker = firsts[number]
        again = [*prompt(number, 60), first["choices"][0]["message"], {"role": "user", "content": "And then?"}]
        second, later = await ask(client, f"lands-{number}", again)
        blocks = first["usage"]["prompt_tokens"] // BLOCK
        assert later == worker
        assert second["usage"]["prompt_tokens_details"]["cached_tokens"] // BLOCK >= 0.95 * blocks

    await asyncio.gather(*(comes_back(number) for number in range(SESSIONS)))


async def beats(bus: Bus, workers: list[str], *, since: float) -> None:
    """Until each of these workers has told its load anew."""
    waiting, all_told = set(workers), asyncio.Event()

    def told(msg: Msg) -> None:
        load = decode_load(msg.data)
        if load.sent_at > since:
            waiting.discard(load.worker)
        if not waiting:
            all_told.set()

    await bus.subscribe(bus.subjects.to("load"), told)
    async with asyncio.timeout(PATIENCE_S):
        await all_told.wait()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMesh]:
    """Three workers whose block pools are far too small."""
    folder = tmp_path_factory.mktemp("small")
    config = Path(folder) / "small.toml"
    config.write_text(CONFIG.format(blocks=SMALL_POOL))
    with running_mesh(folder, "--config", str(config), "--sim-script") as one:
        yield one


class Truth:
    """Block tables as the engines report them, and every chain that was ever in one."""

    def __init__(self, engines: Script, workers: list[str]) -> None:
        self._engines, self._workers = engines, workers
        self.tables: dict[str, dict[str, str | None]] = {}
        self.chains: dict[str, list[str]] = {}

    async def look(self) -> None:
        reports = await self._engines.reports()
        self.tables = {worker: report["blocks"] for worker, report in zip(self._workers, reports, strict=True)}
        for table in self.tables.values():
            for block in table:
                if block not in self.chains:
                    self.chains[block] = self._chain(table, block)

    def _chain(self, table: dict[str, str | None], block: str) -> list[str]:
        chain = [block]
        while (parent := table[chain[-1]]) is not None:
            chain.append(parent)
        return chain[::-1]

    def overlap(self, chain: list[str]) -> dict[str, int]:
        """Leading blocks of a chain that each worker holds now; workers without any are left out."""
        held = {}
        for worker, table in self.tables.items():
            leading = next((at for at, block in enumerate(chain) if block not in table), len(chain))
            if leading:
                held[worker] = leading
        return held


async def overlap(bus: Bus, chain: list[str]) -> Overlap:
    hashes = b"".join(int(block, 16).to_bytes(8, "little") for block in chain)
    query = OverlapQuery(model=MODEL, block_size=BLOCK, hashes=hashes)
    return decode(await bus.request(bus.subjects.to("overlap", model=MODEL), encode(query), within=PATIENCE_S))


@pytest.mark.timeout(120)
async def test_the_index_agrees_with_the_engines_after_random_load(small: RunningMesh) -> None:
    rng = random.Random(7)  # noqa: S311  # a repeatable load
    async with small.bus() as bus, small.client() as client:
        truth = Truth(Script(bus, small.workers, "truth"), small.workers)
        for _ in range(12):
            turns = [(rng.randrange(12), rng.randrange(5, 40)) for _ in range(6)]
            await asyncio.gather(*(ask(client, f"load-{who}", prompt(who, lines)) for who, lines in turns))
            await truth.look()
        assert sum(map(len, truth.tables.values())) <= 3 * SMALL_POOL < len(truth.chains), "blocks were evicted"
        async with asyncio.timeout(PATIENCE_S):
            for chain in truth.chains.values():
                while True:  # the last events may still be on their way
                    said = await overlap(bus, chain)
                    if {one.worker: one.blocks for one in said.workers} == truth.overlap(chain):
                        break
    assert set(said.known) == set(small.workers)
