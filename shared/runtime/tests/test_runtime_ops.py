"""The broker under load: what is pending, what is kept, and what a reader finds where something is gone."""

import asyncio
import struct

import pytest
from catenary_protocols.bus.codec import encode
from catenary_protocols.bus.messages import KvEvents, KvStored
from catenary_runtime.bus import Bus
from catenary_runtime.provision import provision
from catenary_runtime.testing import NatsServer, bus_to
from nats.aio.msg import Msg

PATIENCE_S = 30.0
KB = 1024


@pytest.mark.slow  # a machine that others keep busy is no reader that keeps up
async def test_a_reader_that_keeps_up_has_nothing_pending(nats_server: NatsServer, bus: Bus) -> None:
    got, everything = 0, asyncio.Event()
    out_of_order: list[int] = []

    def count(msg: Msg) -> None:
        nonlocal got
        if msg.headers != {"n": str(got)}:
            out_of_order.append(got)
        got += 1
        if got == 20_000:
            everything.set()

    async with bus_to(nats_server, "sender", bus.subjects) as sender:
        subject = bus.subjects.to("kv", worker="w")
        reading = await bus.subscribe(subject, count)
        await bus.nc.flush()
        for number in range(20_000):
            sender.publish(subject, b"x" * KB, headers={"n": str(number)})
            if number % 500 == 0:
                await sender.nc.flush()
        async with asyncio.timeout(PATIENCE_S):
            await everything.wait()
        assert out_of_order == []
        assert (reading.pending_msgs, reading.pending_bytes) == (0, 0)
        assert bus.nc.last_error is None
        assert bus.nc.stats["errors_received"] == 0


async def test_a_million_kv_events_leave_nothing_on_disk(nats_server: NatsServer, bus: Bus) -> None:
    """They are no stream's: with a reader or without one, nothing of them is kept. Every stream has its bounds."""
    await provision(bus.js, bus.subjects)
    before = (await bus.js.account_info()).storage
    hashes = struct.pack("<Q", 7)
    events = tuple(KvStored(hashes=hashes) for _ in range(1000))
    subject = bus.subjects.to("kv", worker="w")
    for number in range(1000):
        message = KvEvents(worker="w", incarnation=1, model="m", block_size=4, first=number * 1000 + 1, events=events)
        bus.publish(subject, encode(message))
        if number % 20 == 0:
            await bus.nc.flush()
    await bus.nc.flush()
    assert (await bus.js.account_info()).storage == before
    for stream in await bus.js.streams_info():
        if bus.subjects.slug in str(stream.config.name):
            assert (stream.config.max_bytes or 0) > 0, stream.config.name


async def test_a_full_stream_stalls_nobody_and_shows_its_hole(bus: Bus) -> None:
    await provision(bus.js, bus.subjects, ["t"])
    limit = 256 * KB
    config = (await bus.js.stream_info(bus.subjects.tool_stream)).config
    config.max_bytes = limit
    await bus.js.update_stream(config)
    consumer = bus.subjects.executor_consumer("t")
    pull = await bus.js.pull_subscribe_bind(consumer, stream=bus.subjects.tool_stream)
    subject = bus.subjects.to("tool_call", tool="t", run_by="mesh")
    await bus.js.publish(subject, b"x" * KB)
    (first,) = await pull.fetch(1)
    await first.ack()
    acks = [await bus.js.publish(subject, b"x" * KB) for _ in range(3 * limit // KB)]
    assert [ack.seq for ack in acks] == list(range(2, len(acks) + 2))
    state = (await bus.js.stream_info(bus.subjects.tool_stream)).state
    assert state.bytes <= limit
    assert state.last_seq == acks[-1].seq
    (after,) = await pull.fetch(1)
    await after.ack()
    assert after.metadata.sequence.stream == state.first_seq
    assert after.metadata.sequence.stream > first.metadata.sequence.stream + 1
    assert after.metadata.sequence.consumer == first.metadata.sequence.consumer + 1
