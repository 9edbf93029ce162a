"""What the index says of a llama.cpp worker is what its slots hold, of prompts and of answers.

What each turn was is heard on the bus: its prompt as the worker gets it, its tokens as the worker tells them. What a
slot holds, llama.cpp says itself: asked to go on from there, it tells how much it had not to compute.
"""

import asyncio
import random
import re
from array import array
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from catenary_protocols.bus.codec import Decoder, encode
from catenary_protocols.bus.messages import CancelTurn, Overlap, OverlapQuery, RunTurn, TokenFrame
from catenary_protocols.conversation import Sampling
from catenary_runtime.bus import Bus
from catenary_tokenizers import block_hashes
from catenary_worker.commands import Command
from catenary_worker.engines.llamacpp.testing import write_tiny_gguf
from catenary_worker.testing import TokenizerPeer
from nats.aio.msg import Msg

from tests.mesh.harness import PATIENCE_S, RunningMesh, running_mesh

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

MODEL, BLOCK, SLOTS, SESSIONS, ROUNDS = "tiny", 16, 2, 4, 5
_overlap, _frame = Decoder(Overlap), Decoder(TokenFrame)
_command: Decoder[Command] = Decoder(Command)  # type: ignore[arg-type]  # a union of types is no type to mypy


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMesh]:
    folder = tmp_path_factory.mktemp("llama-index")
    file = write_tiny_gguf(folder / f"{MODEL}.gguf")
    with running_mesh(folder, "--engine", "llamacpp", "--model", str(file)) as one:
        yield one


@dataclass
class Heard:
    """A turn: what its worker was given, then what it told of."""

    ids: "array[int]"
    prompt: int
    cached: int = 0
    finish: str = ""


@dataclass
class Tap:
    """Every turn on the bus."""

    turns: dict[str, Heard] = field(default_factory=dict)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def commanded(self, msg: Msg) -> None:
        match _command(msg.data):
            case RunTurn(turn=key, prompt=prompt):
                self.turns[key.turn_id] = Heard(array("I", prompt), len(prompt) // 4)
            case CancelTurn(turn=key):
                self.turns[key.turn_id].finish = "cancelled"
                self.news.set()

    def told(self, msg: Msg) -> None:
        for item in _frame(msg.data).items:
            turn = self.turns[item.turn_id]
            turn.ids.frombytes(item.tokens)
            turn.cached = turn.cached if item.cached is None else item.cached
            turn.finish = turn.finish or item.finish
        self.news.set()

    async def of(self, answer: dict[str, Any]) -> Heard:
        """The turn that was answered so."""
        (turn,) = [turn for name, turn in self.turns.items() if name in answer["id"]]
        return await self.ended(turn)

    async def ended(self, turn: Heard) -> Heard:
        """The same, when it is over."""
        async with asyncio.timeout(PATIENCE_S):
            while not turn.finish:
                self.news.clear()
                await self.news.wait()
        return turn


class Index:
    """The kv-indexer, asked as the router and as an operator ask it."""

    def __init__(self, mesh: RunningMesh, bus: Bus) -> None:
        self._bus = bus
        (name,) = (one["instance"] for one in mesh.state["processes"] if one["service"] == "kv-indexer")
        self._metrics = f"{mesh.url(name)}/metrics"

    async def held(self, ids: "array[int]") -> int:
        """Leading blocks of these tokens that the worker is said to hold."""
        query = OverlapQuery(model=MODEL, block_size=BLOCK, hashes=block_hashes(ids.tobytes(), BLOCK))
        subject = self._bus.subjects.to("overlap", model=MODEL)
        said = _overlap(await self._bus.request(subject, encode(query), within=PATIENCE_S))
        return max((one.blocks for one in said.workers), default=0)

    async def blocks(self) -> int:
        """Blocks that it knows of in all."""
        async with httpx.AsyncClient() as client:
            text = (await client.get(self._metrics)).text
        found = re.search(rf'^catenary_kv_index_blocks{{model="{MODEL}"}} (\S+)$', text, re.MULTILINE)
        return int(float(found[1])) if found else 0

    async def until_holds(self, contents: "Iterable[array[int]]") -> None:
        """It knows every block of these slots, and no other; events may still be on their way."""
        known = list(contents)
        every = {one for ids in known for one in array("Q", block_hashes(ids.tobytes(), BLOCK))}
        wanted = [len(ids) // BLOCK for ids in known], len(every)
        said: object = None
        try:
            async with asyncio.timeout(PATIENCE_S):
                while said != wanted:
                    said = [await self.held(ids) for ids in known], await self.blocks()
        except TimeoutError:
            assert said == wanted


@asynccontextmanager
async def tapped(mesh: RunningMesh) -> AsyncIterator[tuple[Tap, Index, httpx.AsyncClient]]:
    tap = Tap()
    async with mesh.bus() as bus, mesh.client() as client:
        await bus.subscribe(bus.subjects.to("do"), tap.commanded)
        await bus.subscribe(bus.subjects.to("tokens"), tap.told)
        yield tap, Index(mesh, bus), client


def left_by(turn: Heard) -> "array[int]":
    """What a slot holds after a turn: all but the last token, which was never computed on."""
    return turn.ids[:-1]


async def ask(client: httpx.AsyncClient, session: int, messages: list[dict[str, Any]], tokens: int) -> dict[str, Any]:
    request = {"model": MODEL, "messages": messages, "max_tokens": tokens, "prompt_cache_key": f"session-{session}"}
    answer = await client.post("/v1/chat/completions", json={**request, "temperature": 0})
    assert answer.status_code == 200, answer.text
    messages.append(answer.json()["choices"][0]["message"])
    found: dict[str, Any] = answer.json()
    return found


async def leave(client: httpx.AsyncClient, messages: list[dict[str, Any]]) -> None:
    """Ask, hear a little, and go."""
    request = {"model": MODEL, "messages": messages, "max_tokens": 3000, "stream": True}
    async with client.stream("POST", "/v1/chat/completions", json=request) as answer:
        lines = answer.aiter_lines()
        for _ in range(20):
            await anext(lines)


async def probe(mesh: RunningMesh, contents: "Iterable[array[int]]") -> list[int]:
    """Tokens of these contents, followed by something else, that llama.cpp had not to compute."""
    (worker,) = mesh.workers
    peer = TokenizerPeer(mesh.broker, mesh.subjects, "probe")
    await peer.start()
    try:
        await peer.until_ready(worker)
        cached = []
        for ids in contents:
            other = [ids[0] + 1] * 2
            key = await peer.run(worker, [*ids, *other], sampling=Sampling(max_tokens=1, temperature=0.0))
            await peer.until_end(key)
            cached.append(peer.firsts[key].cached or 0)
    finally:
        await peer.close()
    return cached


async def test_the_index_is_what_the_slots_hold(llama: RunningMesh) -> None:
    rng = random.Random(11)  # noqa: S311 - a repeatable load
    talks: list[list[dict[str, Any]]] = [[] for _ in range(SESSIONS)]
    came_back = taken_over = 0
    turns: list[Heard] = []
    async with tapped(llama) as (tap, index, client):
        for _ in range(ROUNDS):
            pair = rng.sample(range(SESSIONS), SLOTS)
            for session in pair:
                asked = " ".join(f"Note {line} of {session}: ferry {rng.randrange(31)}." for line in range(20))
                talks[session].append({"role": "user", "content": asked})
            answers = await asyncio.gather(*(ask(client, one, talks[one], rng.randrange(5, 80)) for one in pair))
            turns = [await tap.of(answer) for answer in answers]
            for answer, turn in zip(answers, turns, strict=True):
                assert turn.finish == "length"
                assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == turn.cached
                came_back += turn.cached > turn.prompt // 2
                taken_over += turn.cached < BLOCK
            await index.until_holds(map(left_by, turns))
        assert came_back
        assert taken_over > SLOTS
        contents = [left_by(turn) for turn in turns]
        assert await probe(llama, contents) == [len(ids) for ids in contents]


async def test_of_a_turn_whose_client_left_the_index_knows_what_was_computed(llama: RunningMesh) -> None:
    async with tapped(llama) as (tap, index, client):
        await leave(client, [{"role": "user", "content": "Go on, and on."}])
        (turn,) = tap.turns.values()
        assert (await tap.ended(turn)).finish == "cancelled"
        known = left_by(turn)
        async with asyncio.timeout(PATIENCE_S):
            while await index.held(known) < len(known) // BLOCK:
                pass
        (cached,) = await probe(llama, [known])
        assert cached >= len(known)
