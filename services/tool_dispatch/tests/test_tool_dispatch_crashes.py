"""Executors and brokers that die: no call lost, none run twice that must not be."""

import asyncio
import os
import secrets
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from catenary_runtime.testing import NatsServer, Process
from catenary_tool_dispatch.testing import Caller, registry_file, serving
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """A pipe that a tool writes to when it begins."""
    path = tmp_path / "begun"
    os.mkfifo(path)
    return path


async def consumer_for(caller: Caller, tool: str, *, ack_wait: float = 1.0, max_deliver: int = 5) -> None:
    """A consumer of this tool that gives calls to the next executor soon."""
    subjects = caller.bus.subjects
    await caller.bus.js.add_consumer(
        subjects.tool_stream,
        ConsumerConfig(
            durable_name=subjects.executor_consumer(tool),
            filter_subject=subjects.to("tool_call", tool=tool, run_by="mesh"),
            deliver_policy=DeliverPolicy.NEW,
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=ack_wait,
            max_deliver=max_deliver,
        ),
    )


@asynccontextmanager
async def process(server: NatsServer, caller: Caller, registry: Path) -> AsyncIterator[Process]:
    """A tool-dispatch in a process of its own."""
    arguments = ["--nats", server.url, "--namespace", caller.bus.subjects.namespace, "--registry", str(registry)]
    one = Process("catenary_tool_dispatch", arguments, registry.with_suffix(f".{secrets.token_hex(2)}.log"))
    one.start()
    try:
        yield one
    finally:
        if one.process is not None and one.process.poll() is None:
            await asyncio.to_thread(one.stop)


def end_orphans(ran: Path) -> None:
    """A killed executor cannot end the command it ran; the test does."""
    for pid in ran.read_text().split():
        os.killpg(int(pid), signal.SIGKILL)


def tool(name: str, script: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "command": ["sh", "-c", script], "timeout_s": 50, **more}


async def test_a_call_whose_executor_is_killed_is_run_by_the_next(
    server: NatsServer, caller: Caller, tmp_path: Path, begun: Path
) -> None:
    ran = tmp_path / "ran"
    registry = registry_file(
        tmp_path, tool("work", f"echo $$ >> {ran}; echo > {begun}; read line < {begun}; echo done")
    )
    await consumer_for(caller, "work")
    call = caller.make("work", {})
    async with process(server, caller, registry) as first:
        await caller.publish(call)
        await asyncio.to_thread(begun.read_text)
        first.signal(signal.SIGKILL)
        end_orphans(ran)
    async with process(server, caller, registry):
        await asyncio.to_thread(begun.read_text)
        await asyncio.to_thread(begun.write_text, "go\n")
        result = await caller.result(call.key)
    assert (result.output, result.error) == ("done\n", None)
    assert len(ran.read_text().split()) == 2
    assert len(caller.results[call.key]) == 1


async def test_a_long_run_is_kept_by_signs_of_life(server: NatsServer, caller: Caller, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    registry = registry_file(tmp_path, tool("work", f"echo $$ >> {ran}; sleep 2; echo done"))
    await consumer_for(caller, "work")
    async with serving(server, caller, registry), serving(server, caller, registry):
        result = await caller.call("work", {})
    assert result.output == "done\n"
    assert len(ran.read_text().split()) == 1


async def test_of_an_executor_that_was_frozen_in_a_run_nothing_more_is_stored(
    server: NatsServer, caller: Caller, tmp_path: Path, begun: Path
) -> None:
    ran = tmp_path / "ran"
    script = f"echo $$ >> {ran}; echo > {begun}; read line < {begun}; echo $line"
    registry = registry_file(tmp_path, tool("work", script), tool("ping", "true"))
    for name in ("work", "ping"):
        await consumer_for(caller, name)
    async with process(server, caller, registry) as frozen:
        itself = (await caller.call("ping", {})).executor
        call = caller.make("work", {})
        await caller.publish(call)
        await asyncio.to_thread(begun.read_text)
        frozen.signal(signal.SIGSTOP)
        end_orphans(ran)
        async with serving(server, caller, registry) as other:
            await asyncio.to_thread(begun.read_text)
            await asyncio.to_thread(begun.write_text, "go\n")
            assert (await caller.result(call.key)).executor == other.instance
            frozen.signal(signal.SIGCONT)
            while (await caller.call("ping", {})).executor != itself:
                pass
    assert await caller.stored("tool_result", tool="work", key=call.key) == 1


async def test_a_call_that_lay_with_a_frozen_executor_is_run_by_another_alone(
    server: NatsServer, caller: Caller, tmp_path: Path, begun: Path
) -> None:
    ran = tmp_path / "ran"
    script = f"echo $CATENARY_CALL_KEY >> {ran}; echo > {begun}; read line < {begun}"
    registry = registry_file(tmp_path, tool("pay", script, at_most_once=True), tool("ping", "true"))
    for name in ("pay", "ping"):
        await consumer_for(caller, name)
    async with process(server, caller, registry) as frozen:
        itself = (await caller.call("ping", {})).executor
        frozen.signal(signal.SIGSTOP)
        call = caller.make("pay", {})
        await caller.publish(call)
        async with serving(server, caller, registry) as other:
            await asyncio.to_thread(begun.read_text)
            frozen.signal(signal.SIGCONT)
            while (await caller.call("ping", {})).executor != itself:
                pass
            await asyncio.to_thread(begun.write_text, "go\n")
            assert (await caller.result(call.key)).executor == other.instance
    assert ran.read_text().split() == [call.key]


async def test_an_at_most_once_call_whose_executor_is_killed_expires(
    server: NatsServer, caller: Caller, tmp_path: Path, begun: Path
) -> None:
    ran = tmp_path / "ran"
    script = f"echo $$ >> {ran}; echo > {begun}; sleep 60"
    registry = registry_file(tmp_path, tool("pay", script, at_most_once=True))
    await consumer_for(caller, "pay")
    call = caller.make("pay", {}, left_s=3.0)
    async with process(server, caller, registry) as first:
        await caller.publish(call)
        await asyncio.to_thread(begun.read_text)
        first.signal(signal.SIGKILL)
        end_orphans(ran)
    async with serving(server, caller, registry):
        result = await caller.result(call.key)
    assert result.error is not None
    assert result.error.code == "expired"
    assert len(ran.read_text().split()) == 1


async def test_a_call_that_takes_its_executors_down_becomes_a_dead_letter(
    server: NatsServer, caller: Caller, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    registry = registry_file(tmp_path, tool("poison", f"echo $$ >> {ran}; kill -9 $PPID"))
    await consumer_for(caller, "poison", max_deliver=3)
    call = caller.make("poison", {})
    await caller.publish(call)
    for _ in range(2):
        async with process(server, caller, registry) as victim:
            assert victim.process is not None
            assert await asyncio.to_thread(victim.process.wait, 20) == -signal.SIGKILL
    async with process(server, caller, registry):
        result = await caller.result(call.key)
    assert result.error is not None
    assert result.error.code == "failed"
    assert len(ran.read_text().split()) == 2
    assert await caller.stored("tool_dead") == 1


async def test_a_foreign_executor_that_never_acknowledges_is_given_up(server: NatsServer, caller: Caller) -> None:
    await consumer_for(caller, "foreign", ack_wait=0.1, max_deliver=1)
    async with serving(server, caller):
        subjects = caller.bus.subjects
        theirs = await caller.bus.js.pull_subscribe_bind(subjects.executor_consumer("foreign"), subjects.tool_stream)
        call = caller.make("foreign", {})
        await caller.publish(call)
        await theirs.fetch(1)
        more = caller.bus.nc.new_inbox()
        await caller.bus.nc.publish(  # the broker notices when somebody asks for the next call
            f"$JS.API.CONSUMER.MSG.NEXT.{subjects.tool_stream}.exec-foreign", b'{"expires":5000000000}', reply=more
        )
        result = await caller.result(call.key)
    assert result.error is not None
    assert result.error.code == "failed"
    assert await caller.stored("tool_dead") == 1


async def test_a_call_nobody_answers_expires_at_its_deadline_and_a_later_result_is_marked(
    server: NatsServer, caller: Caller
) -> None:
    await consumer_for(caller, "foreign", ack_wait=30)
    async with serving(server, caller) as service:
        call = caller.make("foreign", {}, left_s=0.4)
        await caller.publish(call)
        expired = await caller.result(call.key)
        answer = expired.__class__(key=call.key, tool="foreign", output="too late")
        await service.watch.desk.answers.publish(answer)
        late = await caller.result(call.key, number=2)
    assert expired.error is not None
    assert expired.error.code == "expired"
    assert (late.output, late.late) == ("too late", True)


async def test_a_call_left_open_while_no_dispatcher_lived_expires_when_one_comes(
    server: NatsServer, caller: Caller
) -> None:
    await consumer_for(caller, "foreign", ack_wait=30)
    call = caller.make("foreign", {}, left_s=-5)
    await caller.publish(call)
    async with serving(server, caller):
        result = await caller.result(call.key)
    assert result.error is not None
    assert result.error.code == "expired"


async def test_a_run_outlives_a_restart_of_the_broker(
    server: NatsServer, caller: Caller, tmp_path: Path, begun: Path
) -> None:
    registry = registry_file(tmp_path, tool("work", f"echo > {begun}; read line < {begun}; echo $line"))
    async with serving(server, caller, registry):
        call = caller.make("work", {})
        await caller.publish(call)
        await asyncio.to_thread(begun.read_text)
        await asyncio.to_thread(server.restart)
        await asyncio.to_thread(begun.write_text, "through\n")
        result = await caller.result(call.key)
        assert result.output == "through\n"
        again = caller.make("work", {})
        await caller.publish(again)
        await asyncio.to_thread(begun.read_text)
        await asyncio.to_thread(begun.write_text, "and on\n")
        result = await caller.result(again.key)
        assert result.output == "and on\n"


async def test_asked_to_stop_it_finishes_what_runs_and_exits_in_order(
    server: NatsServer, caller: Caller, tmp_path: Path, begun: Path
) -> None:
    registry = registry_file(tmp_path, tool("work", f"echo > {begun}; read line < {begun}; echo $line"))
    async with process(server, caller, registry) as service:
        call = caller.make("work", {})
        await consumer_for(caller, "work")
        await caller.publish(call)
        await asyncio.to_thread(begun.read_text)
        service.signal(signal.SIGTERM)
        await asyncio.to_thread(begun.write_text, "finished\n")
        result = await caller.result(call.key)
        assert service.process is not None
        assert await asyncio.to_thread(service.process.wait, 20) == 0
    assert result.output == "finished\n"
