"""What JetStream must hold: made once, kept after; calls are deduplicated; one consumer for all executors of a tool."""

from catenary_protocols.bus.subjects import Subjects
from catenary_runtime.bus import Bus
from catenary_runtime.provision import provision


async def test_everything_is_made_once_and_kept_after(bus: Bus) -> None:
    first = await provision(bus.js, bus.subjects, ["get_weather"])
    again = await provision(bus.js, bus.subjects, ["get_weather"])
    assert [line.split()[0] for line in first] == ["made"] * 5
    assert [line.split()[0] for line in again] == ["kept"] * 5
    info = await bus.js.stream_info(bus.subjects.tool_stream)
    assert info.config.max_age == 3600.0
    assert info.config.duplicate_window == 600.0
    assert info.state.consumer_count == 1


async def test_responses_are_kept_for_a_day_and_cards_for_ever(bus: Bus) -> None:
    await provision(bus.js, bus.subjects)
    assert await _kept_s(bus) == {bus.subjects.responses_bucket: 86_400, bus.subjects.models_bucket: 0}


async def test_a_bucket_that_was_made_otherwise_gets_the_bounds_it_should_have(bus: Bus) -> None:
    await bus.js.create_key_value(bucket=bus.subjects.responses_bucket, max_bytes=1 << 20)
    await (await bus.js.key_value(bus.subjects.responses_bucket)).put("old", b"kept")
    await provision(bus.js, bus.subjects)
    assert (await _kept_s(bus))[bus.subjects.responses_bucket] == 86_400
    info = await bus.js.stream_info(f"KV_{bus.subjects.responses_bucket}")
    assert info.config.max_bytes == 512 << 20
    assert (await (await bus.js.key_value(bus.subjects.responses_bucket)).get("old")).value == b"kept"


async def _kept_s(bus: Bus) -> dict[str, float | None]:
    """Seconds for which each bucket keeps a value."""
    names = (bus.subjects.responses_bucket, bus.subjects.models_bucket)
    return {name: (await (await bus.js.key_value(name)).status()).ttl for name in names}


async def test_a_call_that_is_published_twice_is_stored_once_and_pulled_once(bus: Bus) -> None:
    await provision(bus.js, bus.subjects, ["get.weather"])
    subject = bus.subjects.to("tool_call", tool="get.weather", run_by="mesh")
    acks = [await bus.js.publish(subject, b"{}", headers={"Nats-Msg-Id": "call:t-0-0"}) for _ in range(2)]
    assert [bool(ack.duplicate) for ack in acks] == [False, True]
    consumer = bus.subjects.executor_consumer("get.weather")
    pull = await bus.js.pull_subscribe_bind(consumer, stream=bus.subjects.tool_stream)
    messages = await pull.fetch(5, timeout=0.5)
    assert [msg.subject for msg in messages] == [subject]
    for msg in messages:
        await msg.ack()


async def test_client_calls_are_kept_for_observers_but_no_executor_gets_them(bus: Bus) -> None:
    await provision(bus.js, bus.subjects, ["t"])
    await bus.js.publish(bus.subjects.to("tool_call", tool="t", run_by="client"), b"{}")
    info = await bus.js.consumer_info(bus.subjects.tool_stream, bus.subjects.executor_consumer("t"))
    assert info.num_pending == 0
    assert (await bus.js.stream_info(bus.subjects.tool_stream)).state.messages == 1


async def test_two_meshes_on_a_broker_have_their_own(bus: Bus) -> None:
    other = Subjects("another.v1")
    await provision(bus.js, bus.subjects)
    await provision(bus.js, other)
    assert other.tool_stream != bus.subjects.tool_stream
    await bus.js.publish(other.to("tool_result", tool="t", key="k"), b"{}")
    assert (await bus.js.stream_info(bus.subjects.tool_stream)).state.messages == 0
