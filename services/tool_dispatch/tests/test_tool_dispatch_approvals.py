"""Calls that wait for a person."""

import asyncio
from pathlib import Path

import pytest
from catenary_runtime.testing import NatsServer
from catenary_tool_dispatch.testing import Caller, registry_file, serving


@pytest.fixture
def registry(tmp_path: Path) -> Path:
    return registry_file(
        tmp_path,
        {
            "name": "deploy",
            "command": ["sh", "-c", f"echo x >> {tmp_path}/ran; cat"],
            "approval": True,
            "concurrency": 1,
            "at_most_once": True,
        },
    )


async def test_a_yes_runs_the_call_and_a_no_ends_it(
    server: NatsServer, caller: Caller, registry: Path, tmp_path: Path
) -> None:
    async with serving(server, caller, registry):
        first, second, third = (caller.make("deploy", {"to": place}) for place in ("a", "b", "c"))
        for call in (first, second, third):
            await caller.publish(call)
        await caller.approve(second, approved=False, reason="not on a Friday")
        await caller.approve(third, approved=True)
        refused, ran = await asyncio.gather(caller.result(second.key), caller.result(third.key))
        assert first.key not in caller.results
        await caller.approve(first, approved=True)
        await caller.result(first.key)
    assert refused.error is not None
    assert (refused.error.code, refused.output) == ("denied", "not on a Friday")
    assert (ran.error, ran.output) == (None, '{"to": "c"}')
    assert (tmp_path / "ran").read_text() == "x\nx\n"


async def test_an_answer_may_come_before_its_call(server: NatsServer, caller: Caller, registry: Path) -> None:
    call = caller.make("deploy", {})
    await caller.approve(call, approved=True)
    async with serving(server, caller, registry):
        await caller.publish(call)
        result = await caller.result(call.key)
    assert result.error is None


async def test_without_an_answer_the_call_expires(
    server: NatsServer, caller: Caller, registry: Path, tmp_path: Path
) -> None:
    async with serving(server, caller, registry):
        result = await caller.call("deploy", {}, left_s=0.4)
    assert result.error is not None
    assert result.error.code == "expired"
    assert not (tmp_path / "ran").exists()


async def test_a_call_that_waits_goes_to_the_next_instance_when_this_one_stops(
    server: NatsServer, caller: Caller, registry: Path
) -> None:
    call, after = caller.make("deploy", {}), caller.make("deploy", {})
    await caller.approve(after, approved=True)
    async with serving(server, caller, registry):
        await caller.publish(call)
        await caller.publish(after)
        await caller.result(after.key)
    async with serving(server, caller, registry) as second:
        await caller.approve(call, approved=True)
        result = await caller.result(call.key)
    assert (result.error, result.executor) == (None, second.instance)
