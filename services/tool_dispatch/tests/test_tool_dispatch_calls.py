"""Calls through a real broker: what an executor owes to whoever called."""

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from catenary_protocols.bus.codec import encode_json
from catenary_protocols.ids import call_key
from catenary_runtime import telemetry
from catenary_runtime.testing import NatsServer
from catenary_tool_dispatch.testing import Caller, caller_on, registry_file, serving
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


async def test_a_demo_tool_is_run_and_its_result_published(server: NatsServer, caller: Caller) -> None:
    async with serving(server, caller) as service:
        result = await caller.call("calculator", {"expression": "6 * 7"})
    assert json.loads(result.output) == {"expression": "6 * 7", "result": 42}
    assert result.error is None
    assert result.executor == service.instance
    assert result.turn_id == result.key.rsplit("-", 2)[0]
    assert result.started_at > 0


async def test_arguments_that_do_not_fit_are_refused_and_nothing_runs(
    server: NatsServer, caller: Caller, tmp_path: Path
) -> None:
    schema = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}
    registry = registry_file(tmp_path, {"name": "touch", "command": ["touch", str(tmp_path / "ran")], "schema": schema})
    async with serving(server, caller, registry):
        wrong_type = await caller.call("touch", {"n": "one"})
        missing = await caller.call("touch", {})
        no_object = await caller.call("touch", [1])
    for result, said in ((wrong_type, "arguments.n"), (missing, "'n' is a required property"), (no_object, "object")):
        assert result.error is not None
        assert result.error.code == "invalid_arguments"
        assert said in result.output
    assert not (tmp_path / "ran").exists()


async def test_a_tool_nobody_has_is_answered_at_once(server: NatsServer, caller: Caller) -> None:
    async with serving(server, caller):
        result = await caller.call("no_such_tool", {}, left_s=600)
    assert result.error is not None
    assert result.error.code == "unknown_tool"


async def test_a_call_with_the_key_of_one_that_runs_for_another_tool_ends_nothing(
    server: NatsServer, caller: Caller, tmp_path: Path
) -> None:
    begun, go = tmp_path / "begun", tmp_path / "go"
    os.mkfifo(begun)
    os.mkfifo(go)
    registry = registry_file(
        tmp_path,
        {"name": "slow", "command": ["sh", "-c", f"echo x > {begun}; cat {go}"]},
        {"name": "quick", "command": ["cat"]},
    )
    slow = caller.make("slow", {})
    async with serving(server, caller, registry):
        await caller.publish(slow)
        await asyncio.to_thread(begun.read_text)
        await caller.publish(caller.make("quick", {}, key=slow.key), {"Nats-Msg-Id": "another"})
        assert (await caller.call("quick", {"a": 1})).error is None
        await asyncio.to_thread(go.write_text, "through")
        assert (await caller.result(slow.key)).output == "through"


async def test_client_calls_are_never_run(server: NatsServer, caller: Caller) -> None:
    async with serving(server, caller):
        theirs = caller.make("calculator", {"expression": "1"}, run_by="client")
        await caller.publish(theirs)
        await caller.call("calculator", {"expression": "2"})
    assert theirs.key not in caller.results


async def test_of_three_calls_at_once_each_gets_its_own_result(
    server: NatsServer, caller: Caller, tmp_path: Path
) -> None:
    registry = registry_file(
        tmp_path,
        {"name": "good", "command": ["cat"]},
        {"name": "bad", "command": ["sh", "-c", "echo broken >&2; exit 3"]},
        {"name": "slow", "command": ["sleep", "60"], "timeout_s": 0.3},
    )
    turn = caller.make("good", {}).turn_id
    calls = [
        caller.make(tool, {"a": 1}, turn_id=turn, index=index, key=call_key(turn, 0, index))
        for index, tool in enumerate(("good", "bad", "slow"))
    ]
    async with serving(server, caller, registry):
        for call in calls:
            await caller.publish(call)
        good, bad, slow = await asyncio.gather(*(caller.result(call.key) for call in calls))
    results = sorted((good, slow, bad), key=lambda result: result.key)
    assert [(one.key, one.tool) for one in results] == [(call.key, call.tool) for call in calls], "as they were made"
    assert {key: len(all_of) for key, all_of in caller.results.items()} == dict.fromkeys(
        (call.key for call in calls), 1
    )
    assert (json.loads(good.output), good.error) == ({"a": 1}, None)
    assert bad.error is not None
    assert (bad.error.code, bad.output) == ("failed", "broken\n")
    assert "status 3" in bad.error.message
    assert slow.error is not None
    assert slow.error.code == "timeout"
    assert 300 <= slow.duration_ms < 3000


async def test_output_is_bounded_and_valid_text(server: NatsServer, caller: Caller, tmp_path: Path) -> None:
    registry = registry_file(
        tmp_path,
        {"name": "long", "command": ["sh", "-c", "yes | head -c 1000000"], "max_output_bytes": 100},
        {"name": "odd", "command": ["printf", "a\\377b"]},
    )
    async with serving(server, caller, registry):
        long, odd = await asyncio.gather(caller.call("long", {}), caller.call("odd", {}))
    assert (long.output, long.truncated, long.error) == ("y\n" * 50, True, None)
    assert (odd.output, odd.truncated) == ("a\ufffdb", False)


async def test_no_more_calls_of_a_tool_run_at_once_than_it_allows(
    server: NatsServer, caller: Caller, tmp_path: Path
) -> None:
    registry = registry_file(tmp_path, {"name": "nap", "command": ["sleep", "0.2"], "concurrency": 2})
    async with serving(server, caller, registry):
        results = await asyncio.gather(*(caller.call("nap", {}) for _ in range(6)))
    spans = [(result.started_at, result.started_at + result.duration_ms / 1e3) for result in results]
    for began, _ in spans:
        assert sum(start <= began < end for start, end in spans) <= 2


async def test_a_call_that_got_its_slot_too_late_is_not_run(server: NatsServer, caller: Caller, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    registry = registry_file(
        tmp_path, {"name": "nap", "command": ["sh", "-c", f"echo x >> {ran}; sleep 0.5"], "concurrency": 1}
    )
    async with serving(server, caller, registry):
        first = caller.make("nap", {})
        second = caller.make("nap", {}, left_s=0.3)
        for call in (first, second):
            await caller.publish(call)
        results = await asyncio.gather(caller.result(first.key), caller.result(second.key))
    assert [result.error.code if result.error else "ok" for result in results] == ["ok", "expired"]
    assert ran.read_text() == "x\n"


async def test_a_run_is_a_span_of_the_calls_trace_without_content(
    server: NatsServer, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(telemetry, "_tracer", provider.get_tracer("test"))
    turn = telemetry.start("turn")
    async with serving(server, caller):
        call = caller.make("calculator", {"expression": "12345 / 0"})
        await caller.publish(call, telemetry.headers_of(turn))
        await caller.result(call.key)
    (span,) = (one for one in exporter.get_finished_spans() if one.name == "execute_tool calculator")
    assert span.parent is not None
    assert span.parent.span_id == turn.get_span_context().span_id
    attributes = dict(span.attributes or {})
    assert attributes["gen_ai.operation.name"] == "execute_tool"
    assert attributes["gen_ai.tool.call.id"] == call.id
    assert attributes["error.type"] == "failed"
    assert "12345" not in str(attributes)


async def test_a_call_published_twice_is_run_once(server: NatsServer, caller: Caller, tmp_path: Path) -> None:
    log = tmp_path / "log"
    registry = registry_file(tmp_path, {"name": "note", "command": ["sh", "-c", f"cat >> {log}; echo >> {log}"]})
    call = caller.make("note", {"n": 1})
    async with serving(server, caller, registry):
        await caller.publish(call)
        await caller.result(call.key)
        await caller.publish(call, {"Nats-Msg-Id": "as after the duplicate window"})
        await caller.call("note", {"n": 2})
    async with serving(server, caller, registry):
        await caller.publish(call, {"Nats-Msg-Id": "as after a restart"})
        await caller.call("note", {"n": 3})
    assert log.read_text() == '{"n": 1}\n{"n": 2}\n{"n": 3}\n'
    assert len(caller.results[call.key]) == 1


async def test_a_call_whose_deadline_is_over_is_not_run(server: NatsServer, caller: Caller, tmp_path: Path) -> None:
    registry = registry_file(tmp_path, {"name": "touch", "command": ["touch", str(tmp_path / "ran")]})
    async with serving(server, caller, registry):
        result = await caller.call("touch", {}, left_s=-1)
    assert result.error is not None
    assert result.error.code == "expired"
    assert not (tmp_path / "ran").exists()


async def test_a_run_ends_at_the_calls_deadline_when_that_is_first(
    server: NatsServer, caller: Caller, tmp_path: Path
) -> None:
    registry = registry_file(tmp_path, {"name": "slow", "command": ["sleep", "60"], "timeout_s": 50})
    async with serving(server, caller, registry):
        call = caller.make("slow", {}, left_s=0.5)
        await caller.publish(call)
        result = await caller.result(call.key)
    assert result.error is not None
    assert result.error.code == "expired"
    assert call.deadline <= time.time() < call.deadline + 5


async def test_a_cancelled_call_stops_and_one_cancelled_before_never_runs(
    server: NatsServer, caller: Caller, tmp_path: Path
) -> None:
    begun = tmp_path / "begun"
    os.mkfifo(begun)
    argv = ["sh", "-c", f"echo > {begun}; sleep 60"]
    registry = registry_file(
        tmp_path,
        {"name": "slow", "command": argv, "timeout_s": 50},
        {"name": "touch", "command": ["touch", str(tmp_path / "ran")]},
    )
    never = caller.make("touch", {})
    await caller.cancel(never)
    async with serving(server, caller, registry):
        call = caller.make("slow", {})
        await caller.publish(call)
        await asyncio.to_thread(begun.read_text)
        await caller.cancel(call)
        stopped = await caller.result(call.key)
        await caller.publish(never)
        not_begun = await caller.result(never.key)
    for result in (stopped, not_begun):
        assert result.error is not None
        assert result.error.code == "cancelled"
    assert not (tmp_path / "ran").exists()


async def test_what_cannot_be_decoded_is_put_aside(server: NatsServer, caller: Caller) -> None:
    async with serving(server, caller):
        subject = caller.bus.subjects.to("tool_call", tool="calculator", run_by="mesh")
        await caller.bus.js.publish(subject, b"\xff no call")
        foreign = caller.make("get_weather", {"city": "Oslo"})
        await caller.publish(foreign)
        await caller.result(foreign.key)
        await caller.call("calculator", {"expression": "1"})
    assert await caller.stored("tool_dead") == 1


async def test_what_happened_can_be_read_again_in_its_order(server: NatsServer, caller: Caller) -> None:
    async with serving(server, caller):
        done = await caller.call("calculator", {"expression": "6 * 7"})
        stopped = caller.make("calculator", {"expression": "1"})
        await caller.cancel(stopped)
        await caller.publish(stopped)
        await caller.result(stopped.key)
    subjects = caller.bus.subjects
    replay = await caller.bus.js.subscribe(f"{subjects.namespace}.tool.>", ordered_consumer=True)
    told = [(await replay.next_msg(timeout=10)).subject.removeprefix(f"{subjects.namespace}.tool.") for _ in range(5)]
    assert told == [
        "call.calculator.mesh",
        f"result.calculator.{done.key}",
        f"cancel.calculator.{stopped.key}",
        "call.calculator.mesh",
        f"result.calculator.{stopped.key}",
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"key": ""},
        {"key": "k" * 5000},
        {"key": "a.b *>\r\nX: y\0"},
        {"tool": ""},
        {"deadline": 1e308},
        {"deadline": -1e308, "published_at": -1.0},
        {"arguments": msgspec.Raw(b'{"expression":' + b"[" * 3000 + b"]" * 3000 + b"}")},
        {"arguments": msgspec.Raw(b'{"expression": "\\ud800"}')},
        {"arguments": msgspec.Raw(b"1e999")},
    ],
    ids="-".join,
)
async def test_a_strange_call_does_no_harm(server: NatsServer, caller: Caller, change: dict[str, Any]) -> None:
    async with serving(server, caller):
        odd = encode_json(structs.replace(caller.make("calculator", {"expression": "1"}), **change))
        for tool in ("calculator", "unheard-of"):
            await caller.bus.js.publish(caller.bus.subjects.to("tool_call", tool=tool, run_by="mesh"), odd)
        assert (await caller.call("calculator", {"expression": "1"})).error is None


@given(st.binary(max_size=40))
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_bytes_of_no_meaning_on_any_subject_do_no_harm(server: NatsServer, data: bytes) -> None:
    async def send() -> None:
        async with caller_on(server) as caller, serving(server, caller):
            call = caller.make("calculator", {"expression": "1"})
            subjects = caller.bus.subjects
            for channel in ("tool_call", "tool_result", "tool_cancel", "tool_approve"):
                subject = subjects.to(channel, tool="calculator", key=call.key, run_by="mesh")
                await caller.bus.js.publish(subject, data)
            await caller.bus.nc.publish(f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{subjects.tool_stream}.x", data)
            await caller.publish(call)
            async with asyncio.timeout(10):
                while await caller.stored("tool_result", tool="calculator", key=call.key) < 2:
                    await caller.bus.nc.flush()

    asyncio.run(send())
