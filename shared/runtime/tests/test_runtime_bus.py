"""One connection with the mesh's rules, against a real broker."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from catenary_protocols.bus.codec import Decoder, encode
from catenary_protocols.bus.messages import Drain
from catenary_protocols.bus.subjects import Subjects
from catenary_protocols.errors import TransportError
from catenary_runtime import bus as bus_module
from catenary_runtime.bus import Bus, redact
from catenary_runtime.metrics import BUS_DROPPED, BUS_UNDECODABLE
from catenary_runtime.testing import NatsServer, Proxy, bus_to, free_tcp_port, temporary_nats
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.msg import Msg


class Inbox:
    """Keeps messages; wait for a number of them."""

    def __init__(self) -> None:
        self.messages: list[Msg] = []
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    def __call__(self, msg: Msg) -> None:
        self.messages.append(msg)
        for ready, future in self._waiting:
            if ready() and not future.done():
                future.set_result(None)

    @property
    def data(self) -> list[bytes]:
        return [msg.data for msg in self.messages]

    async def until(self, count: int) -> None:
        if len(self.messages) < count:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((lambda: len(self.messages) >= count, future))
            async with asyncio.timeout(10):
                await future


async def flushed(bus: Bus) -> None:
    """Subscriptions are known to the broker."""
    await bus.nc.flush()


async def test_messages_come_in_order_with_reply_and_headers(bus: Bus) -> None:
    inbox = Inbox()
    await bus.subscribe("a.*", inbox)
    for n in range(500):
        bus.publish(f"a.{n % 7}", str(n).encode())
    bus.publish("a.last", b"x", reply="back", headers={"traceparent": "00-1"})
    await inbox.until(501)
    assert inbox.data[:-1] == [str(n).encode() for n in range(500)]
    assert inbox.messages[-1].reply == "back"
    assert inbox.messages[-1].headers == {"traceparent": "00-1"}


async def test_a_flush_is_behind_the_subscription_before_it(subjects: Subjects) -> None:
    said = bytearray()

    async def broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"max_payload": 8388608}\r\n')
        while line := await reader.readline():
            said.extend(line)
            if line.startswith(b"PING"):
                writer.write(b"PONG\r\n")
        writer.close()

    async with await asyncio.start_server(broker, "127.0.0.1", 0) as server:
        bus = Bus(f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}", subjects, "test", death_limit=1e9)
        await bus.connect()
        await flushed(bus)
        said.clear()
        await bus.subscribe("late", Inbox())
        await flushed(bus)
        await bus.close()
    assert said.startswith(b"SUB late")


async def test_what_had_not_left_when_the_connection_ended_is_not_said_later(
    nats_server: NatsServer, bus: Bus, subjects: Subjects
) -> None:
    inbox, proxy = Inbox(), Proxy(nats_server)
    await bus.subscribe("a", inbox)
    await flushed(bus)
    await proxy.start()
    speaker = Bus(proxy.url, subjects, "speaker", death_limit=1e9)
    await speaker.connect()
    back = asyncio.Event()
    speaker.on_back = back.set
    try:
        proxy.block()
        for _ in range(32):  # more than sockets hold
            speaker.publish("a", b"old" * 300_000)
            await asyncio.sleep(0)
        port = proxy.port
        await proxy.close()
        await proxy.start(port)
        async with asyncio.timeout(10):
            await back.wait()
        speaker.publish("a", b"new")
        await inbox.until(1)
        assert inbox.data == [b"new"]
    finally:
        await speaker.close()
        await proxy.close()


async def test_a_queue_group_shares_the_messages(bus: Bus) -> None:
    every, shared = Inbox(), Inbox()
    await bus.subscribe("a", every)
    for _ in range(2):
        await bus.subscribe("a", shared, queue="q")
    for _ in range(50):
        bus.publish("a", b"")
    await every.until(50)
    await shared.until(50)
    assert len(shared.messages) == 50


async def test_what_is_no_message_is_counted_and_the_next_one_is_handled(bus: Bus) -> None:
    decode, got = Decoder(Drain), Inbox()

    def handler(msg: Msg) -> None:
        decode(msg.data)
        got(msg)

    subject = bus.subjects.to("do", worker="w")
    before = BUS_UNDECODABLE.labels(channel="worker")._value.get()
    await bus.subscribe(subject, handler)
    bus.publish(subject, b"\xc1")
    bus.publish(subject, encode(Drain()))
    await got.until(1)
    assert BUS_UNDECODABLE.labels(channel="worker")._value.get() == before + 1


async def test_a_handler_that_fails_does_not_end_its_subscription(bus: Bus) -> None:
    got = Inbox()

    def handler(msg: Msg) -> None:
        if msg.data == b"bad":
            raise ZeroDivisionError
        got(msg)

    await bus.subscribe("a", handler)
    bus.publish("a", b"bad")
    bus.publish("a", b"good")
    await got.until(1)


async def test_a_message_over_the_brokers_limit_is_a_typed_error(bus: Bus) -> None:
    with pytest.raises(TransportError, match="over the broker's limit"):
        bus.publish("a", b"x" * (9 * 1024 * 1024))


async def test_a_broker_with_a_low_limit_is_refused_at_once(tmp_path: Path) -> None:
    server = NatsServer(tmp_path, max_payload="1MB")
    await asyncio.to_thread(server.start)
    try:
        bus = Bus(server.url, Subjects(), "test")
        with pytest.raises(TransportError, match="max_payload is 1048576; 8388608 is needed"):
            await bus.connect()
    finally:
        server.kill()


async def test_no_broker_is_an_error_that_keeps_the_password() -> None:
    bus = Bus(f"nats://me:secret@127.0.0.1:{free_tcp_port()}", Subjects(), "test")
    with pytest.raises(TransportError, match=r"no broker at nats://me:\*\*\*@127\.0\.0\.1") as caught:
        await bus.connect(within=0.1)
    assert "secret" not in str(caught.value)
    await bus.close()


@given(st.text("abcXYZ123", min_size=1), st.text("abcXYZ123:", min_size=1))
def test_a_password_is_never_shown(user: str, password: str) -> None:
    url = f"nats://{user}:{password}@host:4222,nats://host2"
    assert redact(url) == f"nats://{user}:***@host:4222,nats://host2"


# --- ask and answer ---------------------------------------------------------------------------------------------------


async def test_an_ask_gets_every_reply_until_it_is_closed(bus: Bus) -> None:
    replies = Inbox()

    def answer(msg: Msg) -> None:
        for n in range(3):
            bus.publish(msg.reply, str(n).encode())

    await bus.subscribe("q", answer)
    ask = bus.ask("q", b"", replies, pytest.fail)
    await replies.until(3)
    ask.close()
    ask.close()
    last = Inbox()
    await bus.subscribe("end", last)
    bus.publish(f"_INBOX.{bus.instance}.ask.{ask.number}", b"late")
    bus.publish("end", b"")
    await last.until(1)
    assert replies.data == [b"0", b"1", b"2"]


async def test_who_asks_where_nobody_listens_is_told_at_once(bus: Bus) -> None:
    told = asyncio.Event()
    bus.ask("nobody.here", b"", lambda _: pytest.fail("a reply"), told.set)
    async with asyncio.timeout(2):
        await told.wait()


async def test_an_empty_reply_is_a_reply(bus: Bus) -> None:
    await bus.subscribe("q", lambda msg: bus.publish(msg.reply, b""))
    assert await bus.request("q", b"", within=5) == b""


async def test_a_request_says_why_there_is_no_answer(bus: Bus) -> None:
    with pytest.raises(TransportError, match="nobody listens on nobody"):
        await bus.request("nobody.here", b"", within=5)
    await bus.subscribe("silent", lambda _: None)
    with pytest.raises(TransportError, match=r"no answer on silent in 0\.05 s"):
        await bus.request("silent", b"", within=0.05)
    assert not bus._asks


# --- the gate ---------------------------------------------------------------------------------------------------------


async def test_while_our_beats_do_not_come_back_messages_are_held_then_released_in_order(
    nats_server: NatsServer, subjects: Subjects
) -> None:
    async with bus_to(nats_server, "listener", subjects) as listener, bus_to(nats_server, "cut", subjects) as bus:
        inbox = Inbox()
        await listener.subscribe("a", inbox)
        await flushed(listener)
        await flushed(bus)
        bus.death_limit, bus.alive_at = 1.0, -1e9
        bus.publish("a", b"1")
        bus.publish_now("a", b"beat")
        bus.alive_at = 1e12
        bus.publish("a", b"2")
        await inbox.until(1)
        assert inbox.data == [b"beat"]
        bus.release()
        bus.publish("a", b"3")
        await inbox.until(4)
        assert inbox.data == [b"beat", b"1", b"2", b"3"]


async def test_what_was_held_under_an_old_incarnation_is_discarded(bus: Bus) -> None:
    inbox = Inbox()
    await bus.subscribe("a", inbox)
    bus.death_limit, bus.alive_at = 1.0, -1e9
    bus.publish("a", b"old")
    bus.publish("a", b"old")
    assert bus.discard() == 2
    bus.alive_at = 1e12
    bus.publish("a", b"new")
    await inbox.until(1)
    assert inbox.data == [b"new"]


async def test_what_is_held_is_bounded_and_the_oldest_goes_first(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bus_module, "HELD_LIMIT", 100)
    inbox, before = Inbox(), BUS_DROPPED._value.get()
    await bus.subscribe("a", inbox)
    bus.death_limit, bus.alive_at = 1.0, -1e9
    for n in range(5):
        bus.publish("a", bytes([n]) * 30)
    assert BUS_DROPPED._value.get() == before + 2
    bus.release()
    await inbox.until(3)
    assert [data[0] for data in inbox.data] == [2, 3, 4]


async def test_while_the_broker_is_away_messages_are_held_and_beats_are_dropped() -> None:
    async with temporary_nats() as server, bus_to(server, "test") as bus:
        inbox, lost, back = Inbox(), asyncio.Event(), asyncio.Event()
        bus.on_lost, bus.on_back = lost.set, back.set
        await bus.subscribe("a", inbox)
        await asyncio.to_thread(server.kill)
        async with asyncio.timeout(10):
            await lost.wait()
        bus.publish("a", b"held")
        bus.publish_now("a", b"beat")
        await asyncio.to_thread(server.start)
        async with asyncio.timeout(10):
            await back.wait()
        bus.death_limit = 60.0
        assert bus.connected
        assert bus.fresh
        bus.publish("a", b"behind what is held")
        bus.release()
        await inbox.until(2)
        assert inbox.data == [b"held", b"behind what is held"]
