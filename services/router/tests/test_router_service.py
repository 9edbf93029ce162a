"""The router against a real broker; workers, tokenizer and kv-indexer are only their messages."""

import asyncio
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from catenary_protocols.bus.codec import Decoder, encode
from catenary_protocols.bus.messages import (
    Beat,
    CancelPlace,
    LiveTurn,
    Overlap,
    OverlapQuery,
    Placement,
    PlaceQueued,
    PlaceTurn,
    Refused,
    WorkerLoad,
    WorkerOverlap,
)
from catenary_protocols.ids import TurnKey
from catenary_router.service import Router
from catenary_router.settings import RouterSettings
from catenary_runtime.bus import Bus
from catenary_runtime.testing import NatsServer
from nats.aio.msg import Msg

_beat = Decoder(Beat)
_query = Decoder(OverlapQuery)
_answer: Decoder[Placement | PlaceQueued | Refused] = Decoder(Placement | PlaceQueued | Refused)  # type: ignore[arg-type]


def beat(bus: Bus, worker: str, **more: Any) -> None:
    fields: dict[str, Any] = {"incarnation": 1, "model": "m", "card": "c", "block_size": 4, "kv_total": 1000}
    load = WorkerLoad(worker=worker, **(fields | more))
    bus.publish(bus.subjects.to("load", worker=worker), encode(load))


def tokenizer_beat(bus: Bus, incarnation: int) -> None:
    message = Beat(service="tokenizer", instance="t0", incarnation=incarnation)
    bus.publish(bus.subjects.to("beat", service="tokenizer", instance="t0"), encode(message))


class Asker:
    """Asks as a tokenizer does; keeps every answer."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.answers: list[Placement | PlaceQueued | Refused] = []
        self._news = asyncio.Condition()
        self._told: list[asyncio.Task[None]] = []

    def ask(self, turn_id: str, *, attempt: int = 0, **more: Any) -> None:
        fields: dict[str, Any] = {
            "tokenizer": "t0",
            "tokenizer_incarnation": 1,
            "model": "m",
            "card": "c",
            "block_size": 4,
            "hashes": struct.pack("<3Q", 1, 2, 3),
            "prompt_tokens": 13,
            "session": turn_id,
            "arrived_at": time.time(),
            "max_tokens": 16,
        }
        message = PlaceTurn(turn=TurnKey(turn_id=turn_id, attempt=attempt), **(fields | more))
        self.bus.ask(self.bus.subjects.to("place", router="r0"), encode(message), self._on_answer, _nobody)

    def cancel(self, turn_id: str) -> None:
        message = CancelPlace(turn=TurnKey(turn_id=turn_id))
        self.bus.publish(self.bus.subjects.to("place", router="r0"), encode(message))

    def _on_answer(self, msg: Msg) -> None:
        self.answers.append(_answer(msg.data))
        self._told.append(asyncio.create_task(self._tell()))

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()

    async def count(self, number: int) -> list[Placement | PlaceQueued | Refused]:
        """The answers, once there are so many."""
        async with self._news:
            await self._news.wait_for(lambda: len(self.answers) >= number)
        return self.answers


def _nobody() -> None:
    raise AssertionError("the router does not listen")


@asynccontextmanager
async def serving(server: NatsServer, bus: Bus, **settings: Any) -> AsyncIterator[Router]:
    """A router that has begun, in this process."""
    ready = asyncio.Event()
    service = Router(RouterSettings(nats=server.url, namespace=bus.subjects.namespace, instance="r0", **settings))

    def on_beat(msg: Msg) -> None:
        if _beat(msg.data).ready:
            ready.set()

    await bus.subscribe(bus.subjects.to("beat", service="router"), on_beat)
    async with asyncio.TaskGroup() as group:
        life = group.create_task(service.live())
        await ready.wait()
        yield service
        service.stopping.set()
        await life


async def indexer(bus: Bus, **blocks: int) -> list[OverlapQuery]:
    """Answers overlap queries; returns the list of those that come."""
    queries: list[OverlapQuery] = []
    workers = tuple(WorkerOverlap(worker=name, blocks=count) for name, count in blocks.items())

    def on_query(msg: Msg) -> None:
        queries.append(_query(msg.data))
        bus.publish(msg.reply, encode(Overlap(workers=workers, known=tuple(blocks))))

    await bus.subscribe(bus.subjects.to("overlap"), on_query, queue=bus.subjects.queue_group("kv-indexer"))
    return queries


async def test_a_turn_goes_where_its_blocks_are(nats_server: NatsServer, bus: Bus) -> None:
    queries = await indexer(bus, w1=3)
    async with serving(nats_server, bus):
        for worker in ("w0", "w1", "w2"):
            beat(bus, worker)
        asker = Asker(bus)
        asker.ask("t")
        (placement,) = await asker.count(1)
    assert isinstance(placement, Placement)
    assert (placement.worker, placement.worker_incarnation, placement.overlap) == ("w1", 1, 3)
    assert (placement.router, placement.policy) == ("r0", "kv")
    assert {one.worker for one in placement.candidates} == {"w0", "w1", "w2"}
    assert queries[0].hashes == struct.pack("<3Q", 1, 2, 3)


async def test_the_same_turn_gets_the_same_answer_again(nats_server: NatsServer, bus: Bus) -> None:
    await indexer(bus)
    async with serving(nats_server, bus):
        beat(bus, "w0")
        beat(bus, "w1")
        asker = Asker(bus)
        for number in range(1, 6):
            asker.ask("t")
            answers = await asker.count(number)
    assert len(set(answers)) == 1


async def test_without_a_kv_indexer_turns_are_placed_by_load(nats_server: NatsServer, bus: Bus) -> None:
    async with serving(nats_server, bus):
        beat(bus, "w0", running=9)
        beat(bus, "w1")
        asker = Asker(bus)
        began = time.monotonic()
        for number in range(1, 6):
            asker.ask(f"t{number}")
            answers = await asker.count(number)
        assert time.monotonic() - began < 2
    assert [one.worker for one in answers if isinstance(one, Placement)] == ["w1"] * 5


async def test_the_admin_port_tells_why_a_turn_runs_where_it_does(nats_server: NatsServer, bus: Bus) -> None:
    await indexer(bus, w1=2)
    async with serving(nats_server, bus) as service:
        beat(bus, "w0")
        beat(bus, "w1")
        asker = Asker(bus)
        asker.ask("t/1")
        await asker.count(1)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(service.app()), base_url="http://router") as http:
            told = await http.get("/placements/t/1")
            nothing = await http.get("/placements/t2")
            alive = await http.get("/health")
    (decision,) = told.json()
    assert decision["worker"] == "w1"
    assert decision["considered"][0]["overlap"] == 2
    assert (nothing.status_code, alive.status_code) == (404, 200)


async def test_a_silent_kv_indexer_is_waited_for_three_times_and_then_not(nats_server: NatsServer, bus: Bus) -> None:
    asked: list[Msg] = []
    await bus.subscribe(bus.subjects.to("overlap"), asked.append)
    async with serving(nats_server, bus, overlap_timeout_s=0.05) as service:
        beat(bus, "w0")
        asker = Asker(bus)
        for number in range(1, 4):
            asker.ask(f"t{number}")
            await asker.count(number)
        assert service._overlaps.open
        asker.ask("t4")
        await asker.count(4)
    assert len(asked) == 3


async def test_a_turn_waits_for_room_and_hears_its_position(nats_server: NatsServer, bus: Bus) -> None:
    await indexer(bus)
    async with serving(nats_server, bus):
        beat(bus, "w0", max_batch=1)
        asker = Asker(bus)
        asker.ask("first")
        await asker.count(1)
        asker.ask("second")
        asker.ask("third")
        answers = await asker.count(3)
        assert [one.position for one in answers[1:] if isinstance(one, PlaceQueued)] == [1, 2]
        await asker.count(5)  # repeated after a second, without being asked
        asker.cancel("second")
        live = LiveTurn(turn_id="first", at="t0")
        beat(bus, "w0", max_batch=1, running=1, turns=(live,))
        beat(bus, "w0", max_batch=1)
        answers = await asker.count(6)
    last = answers[-1]
    assert isinstance(last, Placement)
    assert last.turn.turn_id == "third"


async def test_a_model_without_workers_is_refused_with_a_time(nats_server: NatsServer, bus: Bus) -> None:
    async with serving(nats_server, bus):
        asker = Asker(bus)
        asker.ask("t", deadline=0.0)  # it waits while the router is too young to know
        answers = await asker.count(3)
    assert isinstance(answers[0], PlaceQueued)
    last = answers[-1]
    assert isinstance(last, Refused)
    assert last.error.code == "no_worker"
    assert last.error.retry_after > 0


async def test_a_deadline_is_kept(nats_server: NatsServer, bus: Bus) -> None:
    await indexer(bus)
    async with serving(nats_server, bus):
        beat(bus, "w0", max_batch=1, running=1)
        asker = Asker(bus)
        asker.ask("t", deadline=time.time() + 0.3)
        answers = await asker.count(2)
    assert isinstance(answers[1], Refused)
    assert answers[1].error.code == "deadline_exceeded"


async def test_a_dead_tokenizers_turns_leave_the_queue(nats_server: NatsServer, bus: Bus) -> None:
    await indexer(bus)
    async with serving(nats_server, bus) as service:
        beat(bus, "w0", max_batch=1, running=1)
        tokenizer_beat(bus, 1)
        asker = Asker(bus)
        asker.ask("t")
        await asker.count(1)
        assert "t" in service._desk.queue
        tokenizer_beat(bus, 2)
        asker.ask("other", tokenizer_incarnation=2)
        answers = await asker.count(2)
        assert isinstance(answers[1], PlaceQueued)
        assert answers[1].position == 1
        assert "t" not in service._desk.queue
