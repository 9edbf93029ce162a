"""The kv-indexer against a real broker and a worker that only speaks messages."""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread

import pytest
from catenary_kv_indexer.service import KvIndexer
from catenary_kv_indexer.settings import KvIndexerSettings
from catenary_protocols.bus.codec import Decoder, encode
from catenary_protocols.bus.messages import (
    Beat,
    KvEvents,
    KvReplay,
    KvStored,
    Overlap,
    OverlapQuery,
    SnapshotPage,
    SnapshotQuery,
    WorkerLoad,
)
from catenary_protocols.bus.subjects import Subjects
from catenary_runtime import bus as bus_module
from catenary_runtime.bus import Bus, connect_once
from catenary_runtime.testing import NatsServer, Process, bus_to, temporary_nats
from nats.aio.msg import Msg
from prometheus_client import REGISTRY

STILL_S = 2.0
_beat = Decoder(Beat)
_overlap = Decoder(Overlap)
_query: Decoder[KvReplay | SnapshotQuery] = Decoder(KvReplay | SnapshotQuery)  # type: ignore[arg-type]


def packed(*hashes: int) -> bytes:
    return struct.pack(f"<{len(hashes)}Q", *hashes)


class FakeWorker:
    """Holds a chain of blocks; answers with a snapshot; counts what it was asked."""

    def __init__(self, bus: Bus, name: str = "w0", incarnation: int = 1) -> None:
        self.bus, self.name, self.incarnation = bus, name, incarnation
        self.chain: list[int] = []
        self.number = 0
        self.asked: list[KvReplay | SnapshotQuery] = []
        self.was_asked = asyncio.Event()

    async def start(self) -> None:
        await self.bus.subscribe(self.bus.subjects.to("snapshot", worker=self.name), self._on_query)

    def store(self, *hashes: int, heard: bool = True) -> None:
        message = self.event(*hashes)
        if heard:
            self.bus.publish(self.bus.subjects.to("kv", worker=self.name), encode(message))

    def event(self, *hashes: int) -> KvEvents:
        """Hold more blocks; what it says of them."""
        self.number += 1
        parent = self.chain[-1] if self.chain else None
        self.chain += hashes
        return KvEvents(
            worker=self.name,
            incarnation=self.incarnation,
            model="m",
            block_size=4,
            first=self.number,
            events=(KvStored(hashes=packed(*hashes), parent=parent),),
        )

    def beat(self) -> None:
        load = WorkerLoad(
            worker=self.name,
            incarnation=self.incarnation,
            model="m",
            card="c",
            block_size=4,
            kv_last=(self.number,),
        )
        self.bus.publish(self.bus.subjects.to("load", worker=self.name), encode(load))

    def _on_query(self, msg: Msg) -> None:
        self.asked.append(_query(msg.data))
        self.was_asked.set()
        page = SnapshotPage(
            worker=self.name,
            incarnation=self.incarnation,
            model="m",
            block_size=4,
            as_of=self.number,
            page=0,
            events=(KvStored(hashes=packed(*self.chain)),) if self.chain else (),
            last=True,
        )
        self.bus.publish(msg.reply, encode(page))


@asynccontextmanager
async def serving(
    server: NatsServer, bus: Bus, data_dir: Path | None = None, beating: FakeWorker | None = None
) -> AsyncIterator[KvIndexer]:
    """A kv-indexer that answers, in this process; it has a name to be restarted under where it has a folder.

    `beating`: beats whenever the indexer does.
    """
    ready = asyncio.Event()
    settings = KvIndexerSettings(nats=server.url, namespace=bus.subjects.namespace)
    if data_dir is not None:
        settings = replace(settings, instance="k0", data_dir=str(data_dir))
    service = KvIndexer(settings)

    def on_beat(msg: Msg) -> None:
        if beating is not None:
            beating.beat()
        if _beat(msg.data).ready:
            ready.set()

    await bus.subscribe(bus.subjects.to("beat", service="kv-indexer"), on_beat)
    async with asyncio.TaskGroup() as group:
        life = group.create_task(service.live())
        await ready.wait()
        yield service
        service.stopping.set()
        await life


async def overlap(bus: Bus, *hashes: int, model: str = "m") -> Overlap:
    query = OverlapQuery(model=model, block_size=4, hashes=packed(*hashes))
    return _overlap(await bus.request(bus.subjects.to("overlap", model=model), encode(query), within=5))


async def until_known(bus: Bus, worker: FakeWorker, *hashes: int) -> dict[str, int]:
    """Beat until the indexer knows the worker for certain; its answer then."""
    while True:
        worker.beat()
        answer = await overlap(bus, *hashes)
        if worker.name in answer.known:
            return {one.worker: one.blocks for one in answer.workers}


@pytest.fixture
async def worker(bus: Bus) -> FakeWorker:
    one = FakeWorker(bus)
    await one.start()
    return one


async def test_events_become_overlap(nats_server: NatsServer, bus: Bus, worker: FakeWorker) -> None:
    async with serving(nats_server, bus):
        worker.store(11, 12, 13)
        assert await until_known(bus, worker, 11, 12, 13, 14) == {"w0": 3}
        worker.store(14)
        assert await until_known(bus, worker, 11, 12, 13, 14) == {"w0": 4}
        assert worker.asked == []
        assert (await overlap(bus, 91, 92)).workers == ()
        assert (await overlap(bus, 11, model="another/model")).workers == ()


async def test_an_indexer_that_comes_late_asks_and_is_warm_when_it_answers(
    nats_server: NatsServer, bus: Bus, worker: FakeWorker
) -> None:
    worker.store(11, 12)
    beating = asyncio.Event()

    def on_beat(_: Msg) -> None:
        worker.beat()
        beating.set()

    await bus.subscribe(bus.subjects.to("beat", service="kv-indexer"), on_beat)
    async with serving(nats_server, bus):
        answer = await overlap(bus, 11, 12)
        assert {one.worker: one.blocks for one in answer.workers} == {"w0": 2}
        assert answer.known == ("w0",)
        assert worker.asked == [KvReplay(rank=0, first=1)]


async def test_a_restarted_indexer_goes_on_with_what_it_held(
    nats_server: NatsServer, bus: Bus, worker: FakeWorker, tmp_path: Path
) -> None:
    async with serving(nats_server, bus, tmp_path):
        worker.store(1, 2, 3)
        assert await until_known(bus, worker, 1, 2, 3) == {"w0": 3}
    worker.asked.clear()
    async with serving(nats_server, bus, tmp_path, worker):
        assert await until_known(bus, worker, 1, 2, 3) == {"w0": 3}
        assert not worker.asked, "its beats say that nothing came since"


async def test_what_came_while_an_indexer_was_away_is_asked_for(
    nats_server: NatsServer, bus: Bus, worker: FakeWorker, tmp_path: Path
) -> None:
    async with serving(nats_server, bus, tmp_path):
        worker.store(1, 2)
        await until_known(bus, worker, 1, 2)
    worker.store(3)
    async with serving(nats_server, bus, tmp_path, worker):
        assert await until_known(bus, worker, 1, 2, 3) == {"w0": 3}


@pytest.mark.parametrize("damage", [b"", b"\xc1", b"\x93\x01\x02\x03"])
async def test_a_damaged_file_is_as_good_as_none(
    nats_server: NatsServer, bus: Bus, worker: FakeWorker, tmp_path: Path, damage: bytes
) -> None:
    file = tmp_path / "kv-index" / "k0.msgpack"
    file.parent.mkdir()
    file.write_bytes(damage)
    worker.store(1)
    async with serving(nats_server, bus, tmp_path):
        assert await until_known(bus, worker, 1) == {"w0": 1}


async def test_a_lost_tail_shows_in_beats(nats_server: NatsServer, bus: Bus, worker: FakeWorker) -> None:
    async with serving(nats_server, bus):
        worker.store(11)
        assert await until_known(bus, worker, 11, 12) == {"w0": 1}
        worker.store(12, heard=False)
        assert await until_known(bus, worker, 11, 12) == {"w0": 2}
        assert worker.asked == [KvReplay(rank=0, first=2)]


async def test_a_gap_is_asked_for_at_once(nats_server: NatsServer, bus: Bus, worker: FakeWorker) -> None:
    async with serving(nats_server, bus):
        worker.store(11)
        worker.store(12, heard=False)
        worker.store(13)
        await worker.was_asked.wait()
        assert worker.asked == [KvReplay(rank=0, first=2)]
        assert await until_known(bus, worker, 11, 12, 13) == {"w0": 3}


async def test_a_worker_that_restarts_or_dies_takes_its_blocks_along(
    nats_server: NatsServer, bus: Bus, worker: FakeWorker
) -> None:
    async with serving(nats_server, bus) as service:
        worker.store(11)
        assert await until_known(bus, worker, 11) == {"w0": 1}
        worker.incarnation, worker.chain, worker.number = 2, [], 0
        worker.beat()
        assert await until_known(bus, worker, 11) == {}
        worker.store(11)
        assert await until_known(bus, worker, 11) == {"w0": 1}
        service.presence.leave("worker", "w0")
        assert await overlap(bus, 11) == Overlap()


async def test_two_indexers_share_the_queries_and_agree(
    nats_server: NatsServer, bus: Bus, worker: FakeWorker, tmp_path: Path
) -> None:
    flags = ["--nats", nats_server.url, "--namespace", bus.subjects.namespace, "--instance", "k1"]
    other = Process("catenary_kv_indexer", flags, tmp_path / "k1.log")
    ready = asyncio.Event()

    def on_beat(msg: Msg) -> None:
        if _beat(msg.data).ready:
            ready.set()

    await bus.subscribe(bus.subjects.to("beat", service="kv-indexer", instance="k1"), on_beat)
    await asyncio.to_thread(other.start)
    try:
        await ready.wait()
        async with serving(nats_server, bus):
            worker.store(11, 12)
            for _ in range(20):
                assert await until_known(bus, worker, 11, 12) == {"w0": 2}
        assert await until_known(bus, worker, 11, 12) == {"w0": 2}
    finally:
        assert await asyncio.to_thread(other.stop) == 0


async def test_events_lost_while_an_indexer_stands_still_are_noticed_and_made_up_for(
    nats_server: NatsServer, bus: Bus, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bus_module, "SUBSCRIPTION_MESSAGES", 100)
    lost = REGISTRY.get_sample_value("catenary_bus_lost_total", {"channel": "kv"}) or 0
    async with serving(nats_server, bus):
        worker.store(1)
        assert await until_known(bus, worker, 1) == {"w0": 1}
        messages = [encode(worker.event(name)) for name in range(2, 5002)]
        publishing = Thread(target=publish_all, args=(nats_server.url, bus.subjects.to("kv", worker="w0"), messages))
        publishing.start()
        Event().wait(STILL_S)  # our loop, which is the indexer's, does not turn
        publishing.join()
        assert await until_known(bus, worker, *range(1, 5002)) == {"w0": 5001}
        assert REGISTRY.get_sample_value("catenary_kv_index_blocks", {"model": "m"}) == 5001
        assert worker.asked, "it asked for what it had missed"
        assert (REGISTRY.get_sample_value("catenary_bus_lost_total", {"channel": "kv"}) or 0) > lost


def publish_all(url: str, subject: str, messages: list[bytes]) -> None:
    """On a connection and a loop of its own."""

    async def publish() -> None:
        nc = await connect_once(url, "elsewhere")
        for message in messages:
            await nc.publish(subject, message)
        await nc.flush()
        await nc.close()

    asyncio.run(publish())


async def test_after_an_outage_of_the_broker_the_index_is_right_again(subjects: Subjects) -> None:
    async with temporary_nats() as server, bus_to(server, "worker", subjects) as bus:
        worker = FakeWorker(bus)
        await worker.start()
        async with serving(server, bus) as service:
            worker.store(11)
            assert await until_known(bus, worker, 11) == {"w0": 1}
            await asyncio.to_thread(server.kill)
            for name in range(1000):
                worker.store(100 + name, heard=False)
            await asyncio.to_thread(server.start)
            async with asyncio.timeout(30):
                while not (bus.connected and service.bus.connected):  # noqa: ASYNC110  # nats-py does it by itself
                    await asyncio.sleep(0)
                await service.bus.nc.flush()
                assert await until_known(bus, worker, 11, *range(100, 1100)) == {"w0": 1001}
