"""Commands, on both event loops: every way one can go wrong is an outcome, and nothing of it stays behind."""

import asyncio
import json
import os
import select
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop
from catenary_tool_dispatch.executors.base import Invocation, Outcome
from catenary_tool_dispatch.executors.command import CommandExecutor

Run = Callable[[Coroutine[Any, Any, Outcome]], Outcome]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    with asyncio.Runner(loop_factory=request.param) as runner:
        yield runner.run


async def sh(script: str, *, seconds: float = 20, max_output: int = 1000, **values: Any) -> Outcome:
    invocation = Invocation("turn-0-0", values, json.dumps(values).encode())
    return await CommandExecutor(("sh", "-c", script), max_output).run(invocation, seconds)


def gone(pid: int) -> bool:
    """Dead, or about to be: a kill is done a moment after it was sent."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], 2)[0])
    finally:
        os.close(handle)


def test_a_command_gets_json_on_stdin_and_the_key_and_no_secrets_of_ours(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CATENARY_NATS", "nats://user:secret@example")
    outcome = run(sh("cat; env", a="ø"))
    assert outcome.output.startswith(json.dumps({"a": "ø"}))
    assert "CATENARY_CALL_KEY=turn-0-0" in outcome.output
    assert "secret" not in outcome.output


def test_large_arguments_arrive_whole(run: Run) -> None:
    assert run(sh("wc -c", a="x" * 3_000_000)).output.strip() == str(3_000_000 + len('{"a": ""}'))


def test_a_command_may_leave_its_arguments_unread(run: Run) -> None:
    assert run(sh("echo ok", a="x" * 1_000_000)) == Outcome("ok\n")


def test_a_failed_command_says_how_and_what(run: Run) -> None:
    assert run(sh("echo why >&2; exit 3")) == Outcome("why\n", "failed", "the command ended with status 3")
    assert run(sh("kill -9 $$")).message == "the command was killed by signal 9"
    missing = run(CommandExecutor(("/no/such/program",), 10).run(Invocation("k", {}, b"{}"), 5))
    assert missing.code == "failed"
    assert "cannot be started" in missing.message


def test_endless_output_is_dropped_until_time_is_up(run: Run) -> None:
    assert run(sh("yes", seconds=0.3)).code == "timeout"
    outcome = run(sh("yes | head -c 3000000", max_output=10))
    assert (outcome.output, outcome.truncated) == ("y\ny\ny\ny\ny\n", True)


def test_the_whole_group_is_killed_when_time_is_up(run: Run, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    assert run(sh(f"sleep 60 & echo $! $$ > {pids}; wait", seconds=0.5)).code == "timeout"
    assert all(gone(int(pid)) for pid in pids.read_text().split())


def test_what_a_command_leaves_behind_neither_holds_nor_outlives_it(run: Run, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    assert run(sh(f"sleep 60 & echo $! > {pid}; echo done", seconds=30)) == Outcome("done\n")
    assert gone(int(pid.read_text()))


def test_a_cancelled_run_kills_its_command(run: Run, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    os.mkfifo(begun)
    pids: list[int] = []

    async def cancel_it() -> Outcome:
        running = asyncio.create_task(sh(f"echo $$ > {begun}; sleep 60"))
        pids.append(int(await asyncio.to_thread(begun.read_text)))
        running.cancel()
        return await running

    with pytest.raises(asyncio.CancelledError):
        run(cancel_it())
    assert gone(pids[0])
