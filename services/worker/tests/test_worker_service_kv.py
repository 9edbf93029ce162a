"""What a worker tells of its KV cache adds up to the engine's own block table, from events as from a snapshot."""

import asyncio
import random
from array import array
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from catenary_protocols.bus.codec import Decoder, encode
from catenary_protocols.bus.messages import (
    KvCleared,
    KvEvents,
    KvRemoved,
    KvReplay,
    KvStored,
    SnapshotPage,
    SnapshotQuery,
)
from catenary_protocols.bus.subjects import Subjects
from catenary_protocols.conversation import Sampling
from catenary_runtime.bus import Bus
from catenary_runtime.testing import NatsServer, provisioned
from catenary_tokenizers import block_hashes
from catenary_worker.engines.base import Stored
from catenary_worker.kv import KvPublisher
from catenary_worker.kv_journal import KvJournal
from catenary_worker.service import WorkerService
from catenary_worker.testing import TokenizerPeer, running_worker, tokenizer_peer, worker_settings
from nats.aio.msg import Msg

W = "w-1"
SMALL_POOL = '{"time_scale": 0, "blocks": 48, "block_size": 4, "max_batch": 4}'
_events = Decoder(KvEvents)
_answer: Decoder[KvEvents | SnapshotPage] = Decoder(KvEvents | SnapshotPage)  # type: ignore[arg-type]


class Folded:
    """Block hash → parent, as KV messages tell; asserts numbers without holes and parents before children."""

    def __init__(self) -> None:
        self.messages: list[KvEvents] = []
        self.blocks: dict[int, int | None] = {}
        self.last = 0

    def on_message(self, msg: Msg) -> None:
        message = _events(msg.data)
        assert message.first == self.last + 1, "a hole in the numbers"
        self.last += len(message.events)
        self.messages.append(message)
        for event in message.events:
            self.apply(event)

    def apply(self, event: KvStored | KvRemoved | KvCleared) -> None:
        match event:
            case KvStored():
                parent = event.parent
                assert parent is None or parent in self.blocks, "a parent nobody has"
                for name in array("Q", event.hashes):
                    self.blocks[name] = parent
                    parent = name
            case KvRemoved():
                for name in array("Q", event.hashes):
                    del self.blocks[name]
            case KvCleared():
                self.blocks.clear()


@pytest.fixture
async def worker(nats_server: NatsServer, subjects: Subjects) -> AsyncIterator[WorkerService]:
    """With a pool far too small for what comes."""
    await provisioned(nats_server.url, subjects)
    settings = worker_settings(nats_server, subjects, W, engine_options=SMALL_POOL, sim_script=True)
    async with running_worker(settings) as service:
        yield service


@pytest.fixture
async def peer(worker: WorkerService, nats_server: NatsServer, subjects: Subjects) -> AsyncIterator[TokenizerPeer]:
    """Who runs turns."""
    async with tokenizer_peer(nats_server, subjects) as peer:
        await peer.until_ready(W)
        yield peer


async def report(bus: Bus) -> dict[str, Any]:
    """The simulator's own account."""
    answer = await bus.request(bus.subjects.to("sim_report", worker=W), b"", within=5)
    return msgspec.json.decode(answer, type=dict[str, Any])


async def table(bus: Bus) -> dict[int, int | None]:
    """The engine's own block table."""
    blocks = (await report(bus))["blocks"]
    return {int(name, 16): None if parent is None else int(parent, 16) for name, parent in blocks.items()}


async def ask(bus: Bus, query: KvReplay | SnapshotQuery) -> KvEvents | SnapshotPage:
    return _answer(await bus.request(bus.subjects.to("snapshot", worker=W), encode(query), within=5))


async def load(peer: TokenizerPeer, seed: int, turns: int = 40) -> None:
    """Random turns with shared prefixes, four at a time."""
    rng = random.Random(seed)  # noqa: S311
    trunk = [rng.randrange(5000) for _ in range(60)]

    async def one() -> None:
        prompt = trunk[: rng.randrange(60)] + [rng.randrange(5000) for _ in range(rng.randrange(1, 40))]
        await peer.until_end(await peer.run(W, prompt, sampling=Sampling(max_tokens=rng.randrange(1, 20))))

    for _ in range(turns // 4):
        await asyncio.gather(*(one() for _ in range(4)))


async def test_events_add_up_to_the_engines_own_table(peer: TokenizerPeer, bus: Bus) -> None:
    seen = Folded()
    await bus.subscribe(bus.subjects.to("kv", worker=W), seen.on_message)
    await bus.nc.flush()
    await load(peer, 1)
    truth = await table(bus)
    assert any(isinstance(event, KvRemoved) for message in seen.messages for event in message.events)
    assert seen.blocks == truth
    await peer.until(lambda: peer.loads[W].kv_last == (seen.last,))
    digest = 0
    for name in truth:
        digest ^= name
    assert peer.loads[W].kv_digest == (digest,)


async def test_a_snapshot_is_the_table_and_a_replay_the_events(peer: TokenizerPeer, bus: Bus) -> None:
    seen = Folded()
    await bus.subscribe(bus.subjects.to("kv", worker=W), seen.on_message)
    await bus.nc.flush()
    await load(peer, 2)
    truth = await table(bus)
    page = await ask(bus, SnapshotQuery(rank=0))
    assert isinstance(page, SnapshotPage)
    again = Folded()
    for event in page.events:
        again.apply(event)
    assert (page.last, page.as_of, again.blocks) == (True, seen.last, truth)
    replayed = await ask(bus, KvReplay(rank=0, first=1))
    assert isinstance(replayed, KvEvents)
    told = [event for message in seen.messages for event in message.events]
    assert list(replayed.events) == told[: len(replayed.events)]


async def test_blocks_are_named_by_the_sequence_hash_that_everyone_computes(peer: TokenizerPeer, bus: Bus) -> None:
    prompt = list(range(100, 112))
    await peer.until_end(await peer.run(W, prompt, sampling=Sampling(max_tokens=2)))
    names = array("Q", block_hashes(array("I", prompt).tobytes(), 4)).tolist()
    assert list(await table(bus)) == names
    await peer.until_end(await peer.run(W, prompt, salt="tenant", sampling=Sampling(max_tokens=2)))
    salted = array("Q", block_hashes(array("I", prompt).tobytes(), 4, salt="tenant")).tolist()
    assert list(await table(bus)) == names + salted


async def test_numbers_go_on_under_a_new_incarnation(worker: WorkerService, peer: TokenizerPeer, bus: Bus) -> None:
    seen = Folded()
    await bus.subscribe(bus.subjects.to("kv", worker=W), seen.on_message)
    await bus.nc.flush()
    await load(peer, 3, turns=4)
    worker.presence._ticked_at -= 10.0
    worker.presence.tick()
    await peer.until(lambda: peer.renewed == [W])
    await load(peer, 4, turns=4)
    assert await table(bus) == seen.blocks
    assert {message.incarnation for message in seen.messages} == {seen.messages[0].incarnation, worker.incarnation}


async def test_blocks_that_fill_on_the_way_travel_together_and_those_of_a_turning_point_at_once(bus: Bus) -> None:
    seen, arrived = Folded(), asyncio.Event()

    def on_message(msg: Msg) -> None:
        seen.on_message(msg)
        arrived.set()

    await bus.subscribe(bus.subjects.to("kv", worker=W), on_message)
    journal = KvJournal(W, 1, "m", 1, own_hashes=False)
    kv = KvPublisher(bus, journal)
    for block in (1, 2, 3):
        kv.add([Stored(block - 1 or None, (block,), array("I", [block]))], at_once=False)
    assert journal.last == (0,)
    async with asyncio.timeout(5):
        await arrived.wait()
    assert (len(seen.messages), list(seen.blocks), journal.last) == (1, [1, 2, 3], (3,))
    kv.add([Stored(3, (4,), array("I", [4]))], at_once=False)
    kv.add([], at_once=True)
    assert journal.last == (4,)
    kv.add([], at_once=True)
    assert await ask_journal(kv, bus) == [1, 2, 3, 4]


async def ask_journal(kv: KvPublisher, bus: Bus) -> list[int]:
    """Blocks of a snapshot."""
    await bus.subscribe(bus.subjects.to("snapshot", worker=W), kv.on_query)
    page = await ask(bus, SnapshotQuery(rank=0))
    assert isinstance(page, SnapshotPage)
    return [name for event in page.events for name in array("Q", event.hashes)]


async def test_a_rank_that_is_not_there_has_no_answer(peer: TokenizerPeer, bus: Bus) -> None:
    answered: list[bytes] = []
    lost = bus.ask(
        bus.subjects.to("snapshot", worker=W),
        encode(SnapshotQuery(rank=7)),
        lambda msg: answered.append(msg.data),
        lambda: pytest.fail("nobody listens"),
    )
    assert isinstance(await ask(bus, SnapshotQuery(rank=0)), SnapshotPage)
    lost.close()
    assert answered == []


# --- scripts ----------------------------------------------------------------------------------------------------------


async def sim(bus: Bus, channel: str, body: object) -> dict[str, Any]:
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    answer = await bus.request(bus.subjects.to(channel, worker=W), data, within=5)
    return msgspec.json.decode(answer, type=dict[str, Any])


async def test_a_test_tells_the_simulator_what_to_say_and_asks_what_it_did(peer: TokenizerPeer, bus: Bus) -> None:
    script = {"id": "s", "match": "", "texts": ["one two three"], "pieces": "token"}
    assert await sim(bus, "sim_script", script) == {"id": "s"}
    key = await peer.run(W, list(range(300, 310)), sampling=Sampling(temperature=0.5))
    assert (await peer.until_end(key)).finish == "stop"
    said = await report(bus)
    assert (said["calls"], said["prompt_tokens"], said["sampling"]["temperature"]) == (1, 10, 0.5)
    assert said["tokens"] == len(peer.ids(key))
    assert await sim(bus, "sim_delete", {"id": "s"}) == {"deleted": True}
    assert await sim(bus, "sim_delete", {"id": "s"}) == {"deleted": False}


@pytest.mark.parametrize(
    ("body", "field"),
    [(b"{", ""), (b"[]", ""), ({"id": "s"}, "script"), ({"id": "s", "texts": ["a"], "pieces": 0}, "pieces")],
)
async def test_a_wrong_script_is_answered_with_what_is_wrong(
    peer: TokenizerPeer, bus: Bus, body: object, field: str
) -> None:
    answer = await sim(bus, "sim_script", body)
    assert set(answer) == {"error", "field"}
    assert answer["field"] == field


async def test_without_the_flag_there_is_nothing_to_script(
    nats_server: NatsServer, subjects: Subjects, bus: Bus
) -> None:
    await provisioned(nats_server.url, subjects)
    async with (
        running_worker(worker_settings(nats_server, subjects, W)),
        tokenizer_peer(nats_server, subjects) as peer,
    ):
        await peer.until_ready(W)
        nobody = asyncio.Event()
        bus.ask(bus.subjects.to("sim_report", worker=W), b"", lambda _: pytest.fail("an answer"), nobody.set)
        async with asyncio.timeout(5):
            await nobody.wait()
