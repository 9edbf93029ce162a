"""Who is alive: deaths, cuts, freezes and new incarnations, against a real broker with short limits."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from catenary_protocols.bus.accounts import accounts
from catenary_protocols.bus.messages import Beat, WorkerLoad
from catenary_protocols.bus.subjects import Subjects
from catenary_runtime.bus import Bus
from catenary_runtime.presence import Listener, Peer, Presence
from catenary_runtime.testing import NatsServer, Proxy, bus_to, free_tcp_port, temporary_nats

BEAT_S = 0.05
LIMIT_S = 1.0


class Node:
    """One instance that watches tokenizers, and keeps what it heard."""

    def __init__(self, url: str, subjects: Subjects, name: str, service: str = "tokenizer", **limits: float) -> None:
        self.name = name
        self.bus = Bus(url, subjects, name, death_limit=LIMIT_S)
        self.presence = Presence(self.bus, service, name, self._beat, interval=BEAT_S, death_limit=LIMIT_S)
        self.presence.on_renewed = lambda old: self._hear(f"i was renewed {old == self.first}")
        self.first = self.presence.incarnation
        self.heard: list[str] = []
        self.made = 0
        self.task: asyncio.Task[None] | None = None
        self._news = asyncio.Condition()
        self._telling: set[asyncio.Task[None]] = set()
        self.presence.listen(
            Listener(
                on_up=lambda peer: self._hear(f"up {peer.instance}"),
                on_down=lambda peer: self._hear(f"down {peer.instance}"),
                on_beat=self._on_beat,
            )
        )

    async def start(self) -> None:
        await self.bus.connect()
        await self.presence.start(("tokenizer", "worker"))
        self.go_on()

    def go_on(self) -> None:
        self.task = asyncio.get_running_loop().create_task(self.presence.run())

    async def hush(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait([self.task])

    async def until(self, ready: Callable[[], object]) -> None:
        async with asyncio.timeout(15), self._news:
            await self._news.wait_for(lambda: bool(ready()))

    async def beats(self, count: int) -> None:
        """So many of our own beats have gone out."""
        goal = self.made + count
        await self.until(lambda: self.made >= goal)

    def _beat(self) -> Beat | WorkerLoad:
        self.made += 1
        self._notify()
        if self.presence.service == "worker":
            return WorkerLoad(
                worker=self.name, incarnation=self.presence.incarnation, model="m", card="", block_size=16
            )
        return Beat(service="tokenizer", instance=self.name, incarnation=self.presence.incarnation)

    def _on_beat(self, _: Peer) -> None:
        self._notify()

    def _hear(self, what: str) -> None:
        self.heard.append(what)
        self._notify()

    def _notify(self) -> None:
        task = asyncio.get_running_loop().create_task(self._tell())
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()


@asynccontextmanager
async def node(url: str, subjects: Subjects, name: str, service: str = "tokenizer") -> AsyncIterator[Node]:
    one = Node(url, subjects, name, service)
    await one.start()
    try:
        yield one
    finally:
        await one.hush()
        await one.bus.close()


async def test_peers_hear_of_each_other_and_of_a_death(nats_server: NatsServer, subjects: Subjects) -> None:
    async with node(nats_server.url, subjects, "a") as a, node(nats_server.url, subjects, "b") as b:
        await a.until(lambda: "up b" in a.heard)
        await b.until(lambda: "up a" in b.heard)
        assert {peer.instance for peer in a.presence.live("tokenizer")} == {"a", "b"}
        peer = a.presence.get("tokenizer", "b")
        assert peer is not None
        assert peer.takes_work
        await b.hush()
        await a.until(lambda: "down b" in a.heard)
        assert a.presence.get("tokenizer", "b") is None
        assert a.heard == ["up a", "up b", "down b"]


async def test_a_worker_is_known_by_its_load(nats_server: NatsServer, subjects: Subjects) -> None:
    async with node(nats_server.url, subjects, "a") as a, node(nats_server.url, subjects, "w", "worker") as w:
        await a.until(lambda: a.presence.live("worker"))
        assert isinstance(a.presence.live("worker")[0].beat, WorkerLoad)
        await w.until(lambda: not w.presence.cut_off)


async def test_who_says_goodbye_is_down_at_once(nats_server: NatsServer, subjects: Subjects) -> None:
    async with node(nats_server.url, subjects, "a") as a, node(nats_server.url, subjects, "b") as b:
        await a.until(lambda: "up b" in a.heard)
        await b.hush()
        a.presence.leave("tokenizer", "b")
        a.presence.leave("tokenizer", "stranger")
        assert a.heard == ["up a", "up b", "down b"]


async def test_a_peer_whose_connection_ended_is_down_unless_it_is_heard_again(
    tmp_path: Path, subjects: Subjects
) -> None:
    """The broker tells of it. Beats alone would take a minute here."""
    server = NatsServer(tmp_path, more={"accounts": accounts(subjects, {}, "pw")}, password="pw")
    await asyncio.to_thread(server.start)
    try:
        async with node(server.url, subjects, "a") as a, node(server.url, subjects, "b") as b:
            for one in (a, b):
                one.presence.death_limit = one.bus.death_limit = 60.0
            await a.until(lambda: "up b" in a.heard)
            async with bus_to(server, "b", subjects):
                pass  # somebody who has its name, and leaves
            b.bus.nc._transport.close()  # type: ignore[union-attr]  # as a cut of the network would
            await a.until(lambda: not b.bus.connected)
            await b.until(lambda: b.bus.connected and not b.presence.cut_off)
            await a.beats(10)
            assert a.heard == ["up a", "up b"]
            await b.hush()
            await b.bus.close()
            await a.until(lambda: "down b" in a.heard)
            await a.beats(10)
            assert a.heard == ["up a", "up b", "down b"]
    finally:
        server.kill()


@pytest.mark.parametrize(("tells", "dies"), [(True, False), (False, False), (True, True)])
async def test_who_was_thought_dead_for_its_lost_connection_thinks_so_too(
    tmp_path: Path, subjects: Subjects, *, tells: bool, dies: bool
) -> None:
    """Not where the broker tells of none, nor where it was the broker that died."""
    server = NatsServer(tmp_path, more={"accounts": accounts(subjects, {}, "pw")} if tells else {}, password="pw")
    await asyncio.to_thread(server.start)
    proxy = Proxy(server)
    await proxy.start()
    try:
        async with node(server.url, subjects, "a") as a, node(server.url if dies else proxy.url, subjects, "b") as b:
            for one in (a, b):
                one.presence.death_limit = one.bus.death_limit = 60.0
            await a.until(lambda: "up b" in a.heard)
            if tells:
                await b.until(lambda: b.presence._told)  # of the connection that it opened to learn it
            if dies:
                server.kill()
            else:
                port = proxy.port
                await proxy.close()
            await b.until(lambda: not b.bus.connected)
            if tells and not dies:
                await a.until(lambda: "down b" in a.heard)
            else:
                await b.beats(20)
            if dies:
                await asyncio.to_thread(server.start)
            else:
                await proxy.start(port)
            await b.until(lambda: b.bus.connected and not b.presence.cut_off)
            await a.until(lambda: a.bus.connected and not a.presence.cut_off)
            await a.beats(10)
            thought_dead = tells and not dies
            assert a.heard == ["up a", "up b", *(["down b", "up b"] if thought_dead else [])]
            assert ("i was renewed True" in b.heard) is thought_dead
    finally:
        await proxy.close()
        server.kill()


async def test_who_comes_back_too_late_by_another_broker_of_the_cluster_thinks_so_too(
    tmp_path: Path, subjects: Subjects
) -> None:
    routes = [f"127.0.0.1:{free_tcp_port()}" for _ in range(2)]
    cluster = {"name": "c", "no_advertise": True, "routes": [f"nats-route://{one}" for one in routes]}
    here, there = (
        NatsServer(
            tmp_path / name,
            more={"accounts": accounts(subjects, {}, "pw"), "cluster": cluster | {"listen": route}},
            password="pw",
        )
        for name, route in zip(("here", "there"), routes, strict=True)
    )
    ways = Proxy(here), Proxy(there)
    try:
        for server, way in zip((here, there), ways, strict=True):
            await asyncio.to_thread(server.start)
            await way.start()
        by_here, by_there = ways
        port = by_there.port
        urls = ",".join(way.url for way in ways)
        await by_there.close()
        async with node(here.url, subjects, "a") as a, node(urls, subjects, "b") as b:
            for one in (a, b):
                one.presence.death_limit = one.bus.death_limit = 60.0
            await a.until(lambda: "up b" in a.heard)
            await b.until(lambda: b.presence._told)
            await by_here.close()
            await a.until(lambda: "down b" in a.heard)
            await by_there.start(port)
            await a.until(lambda: a.heard.count("up b") == 2)
            assert "i was renewed True" in b.heard
    finally:
        for way in ways:
            await way.close()
        for server in (here, there):
            server.kill()


async def test_a_restarted_peer_is_down_then_up_or_renewed_for_who_asks(
    nats_server: NatsServer, subjects: Subjects
) -> None:
    async with node(nats_server.url, subjects, "a") as a, node(nats_server.url, subjects, "b") as b:
        renewed: list[tuple[int, int]] = []
        a.presence.listen(Listener(on_renewed=lambda old, new: renewed.append((old.incarnation, new.incarnation))))
        await a.until(lambda: "up b" in a.heard)
        b.presence.incarnation += 5
        b.presence.beat_soon()
        await a.until(lambda: renewed)
        assert renewed == [(b.first, b.first + 5)]
        assert a.heard == ["up a", "up b", "down b", "up b"]
        b.presence.incarnation -= 1
        b.presence.beat_soon()
        await b.beats(2)
        peer = a.presence.get("tokenizer", "b")
        assert peer is not None
        assert peer.incarnation == b.first + 5
        b.presence.incarnation += 1


async def test_a_beat_that_is_due_soon_goes_out_once(nats_server: NatsServer, subjects: Subjects) -> None:
    async with node(nats_server.url, subjects, "a") as a:
        await a.until(lambda: "up a" in a.heard)
        await a.hush()
        before = a.made
        for _ in range(10):
            a.presence.beat_soon()
        await a.until(lambda: a.made > before)
        assert a.made == before + 1


async def test_a_long_start_is_no_freeze_and_what_was_said_in_it_goes_out(
    nats_server: NatsServer, subjects: Subjects
) -> None:
    one = Node(nats_server.url, subjects, "a")
    got: list[bytes] = []
    await one.bus.connect()
    await one.bus.subscribe("said", lambda msg: got.append(msg.data))
    await one.presence.start(("tokenizer",))
    one.presence._ticked_at -= 60.0
    one.presence._own_heard_at -= 60.0
    one.bus.alive_at -= 60.0
    one.bus.publish("said", b"early")
    one.go_on()
    await one.until(lambda: got and one.heard)
    assert one.heard == ["up a"]
    assert one.presence.incarnation == one.first
    await one.hush()
    await one.bus.close()


async def test_a_short_absence_of_the_broker_changes_nothing_and_what_was_held_arrives(subjects: Subjects) -> None:
    async with temporary_nats() as server, node(server.url, subjects, "a") as a, node(server.url, subjects, "b") as b:
        for one in (a, b):
            one.presence.death_limit = one.bus.death_limit = 20.0
        got: list[bytes] = []
        await a.bus.subscribe("said", lambda msg: got.append(msg.data))  # the other may be back a little later
        await a.until(lambda: "up b" in a.heard)
        await asyncio.to_thread(server.restart)
        a.bus.publish("said", b"held")
        await a.until(lambda: got)
        await a.until(lambda: not a.presence.cut_off)
        await b.until(lambda: b.bus.connected and not b.presence.cut_off)
        assert (got, a.heard, b.presence.incarnation) == ([b"held"], ["up a", "up b"], b.first)


async def test_a_long_absence_of_the_broker_kills_nobody_but_everyone_begins_anew(subjects: Subjects) -> None:
    async with temporary_nats() as server, node(server.url, subjects, "a") as a, node(server.url, subjects, "b") as b:
        got: list[bytes] = []
        await b.bus.subscribe("said", lambda msg: got.append(msg.data))
        await a.until(lambda: "up b" in a.heard)
        await b.until(lambda: "up a" in b.heard)
        await asyncio.to_thread(server.kill)
        await a.beats(2 * round(LIMIT_S / BEAT_S))
        assert a.presence.cut_off
        a.bus.publish("said", b"of the old incarnation")
        await asyncio.to_thread(server.start)
        await a.until(lambda: "i was renewed True" in a.heard)
        await b.until(lambda: "i was renewed True" in b.heard)
        a.bus.publish("said", b"of the new one")
        await b.until(lambda: got)
        assert got == [b"of the new one"]
        await a.beats(2 * round(LIMIT_S / BEAT_S))
        for one, other in ((a, "b"), (b, "a")):
            assert one.presence.incarnation > one.first
            assert one.heard.count(f"down {other}") == one.heard.count(f"up {other}") - 1 <= 1


async def test_who_cannot_be_heard_is_dead_for_others_and_comes_back_in_a_new_incarnation(
    nats_server: NatsServer, subjects: Subjects
) -> None:
    proxy = Proxy(nats_server)
    await proxy.start()
    async with node(nats_server.url, subjects, "a") as a, node(proxy.url, subjects, "b") as b:
        got: list[bytes] = []
        await a.bus.subscribe("said", lambda msg: got.append(msg.data))
        await a.until(lambda: "up b" in a.heard)
        proxy.block()
        await a.until(lambda: "down b" in a.heard)
        await b.until(lambda: b.presence.cut_off)
        assert "down a" not in b.heard
        await b.beats(round(LIMIT_S / BEAT_S))
        b.bus.publish("said", b"by who is thought dead")
        proxy.unblock()
        await b.until(lambda: "i was renewed True" in b.heard)
        b.bus.publish("said", b"by the new incarnation")
        await a.until(lambda: got)
        assert got == [b"by the new incarnation"]
        await a.until(lambda: (peer := a.presence.get("tokenizer", "b")) and peer.incarnation > b.first)
        assert "down a" not in b.heard
    await proxy.close()


async def test_a_process_that_stood_still_takes_one_new_incarnation(
    nats_server: NatsServer, subjects: Subjects
) -> None:
    async with node(nats_server.url, subjects, "a") as a:
        await a.until(lambda: "up a" in a.heard)
        a.presence._ticked_at -= 10.0
        a.presence._own_heard_at -= 10.0
        a.bus.alive_at -= 10.0
        await a.until(lambda: "i was renewed True" in a.heard)
        await a.beats(20)
        assert a.heard.count("i was renewed True") == 1
        assert [what for what in a.heard if what.startswith("i was")] == ["i was renewed True"]


async def test_what_is_said_while_the_new_incarnation_is_taken_goes_out_after_its_beat(
    nats_server: NatsServer, subjects: Subjects
) -> None:
    async with node(nats_server.url, subjects, "a") as a:
        order: list[str] = []
        await a.bus.subscribe(f"{subjects.namespace}.>", lambda msg: order.append(msg.subject))
        await a.until(lambda: order)
        await a.hush()
        said = f"{subjects.namespace}.said"
        a.presence.on_renewed = lambda _: a.bus.publish(said, b"")
        a.bus.alive_at -= 10.0
        a.presence._ticked_at -= 10.0
        order.clear()
        a.presence.tick()
        await a.until(lambda: said in order)
        assert order[0] == subjects.to("beat", service="tokenizer", instance="a")
