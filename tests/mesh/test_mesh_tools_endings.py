"""Calls that nobody runs, in a mesh whose services have only the rights of the matrix."""

from catenary_runtime.bus import Bus
from catenary_runtime.provision import ensure_consumer
from catenary_tool_dispatch.testing import Caller


async def test_a_tool_nobody_has_is_answered_and_one_nobody_runs_expires(mesh_bus: Bus) -> None:
    caller = Caller(mesh_bus)
    await caller.start()
    unknown = await caller.call("nobody-has-it", {}, left_s=60)
    await ensure_consumer(mesh_bus.js, mesh_bus.subjects, "nobody-runs-it")
    expired = await caller.call("nobody-runs-it", {}, left_s=0.5)
    assert unknown.error is not None
    assert expired.error is not None
    assert [unknown.error.code, expired.error.code] == ["unknown_tool", "expired"]


async def test_what_is_no_call_becomes_a_dead_letter(mesh_bus: Bus) -> None:
    caller = Caller(mesh_bus)
    await caller.start()
    before = await caller.stored("tool_dead")
    subject = mesh_bus.subjects.to("tool_call", tool="calculator", run_by="mesh")
    await mesh_bus.js.publish(subject, b"no call")
    await caller.call("calculator", {"expression": "1"})
    while await caller.stored("tool_dead") == before:
        await mesh_bus.nc.flush()
