"""Children of the launcher: they come back when they fail, end when told, and never outlive it."""

import asyncio
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from catenary_cli.processes import Child, Plan

SHELL = "/bin/sh"


def child(tmp_path: Path, script: str, *, drain_s: float = 5.0) -> tuple[Child, asyncio.Queue[str]]:
    said: asyncio.Queue[str] = asyncio.Queue()
    plan = Plan(service="x", instance="x", command=(SHELL, "-c", script), drain_s=drain_s)
    return Child(plan, tmp_path / "logs" / "x.log", said.put_nowait, backoff_s=0.01), said


def ends(pid: int, within: float = 10.0) -> bool:
    """Whether a process that is not our child ends in time."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], within)[0])
    finally:
        os.close(handle)


async def test_a_child_that_fails_is_started_again(tmp_path: Path) -> None:
    counter = tmp_path / "starts"
    one, said = child(tmp_path, f"echo . >> {counter}; [ $(wc -l < {counter}) -ge 3 ] && exec sleep 60; exit 3")
    await one.start()
    one.keep()
    said_in_order = [await said.get() for _ in range(4)]
    assert ["exit 3" in said_in_order[0], "runs again" in said_in_order[1]] == [True, True]
    assert one.restarts == 2
    assert one.ended is None
    assert await one.stop() == -signal.SIGTERM


async def test_a_child_that_was_drained_stays_down(tmp_path: Path) -> None:
    one, said = child(tmp_path, "exit 0")
    await one.start()
    one.keep()
    assert "stays down" in await said.get()
    assert one.restarts == 0


async def test_stop_kills_who_does_not_listen(tmp_path: Path) -> None:
    one, _ = child(tmp_path, "trap '' TERM; echo deaf; while :; do read x < /dev/zero; done", drain_s=-1.8)
    await one.start()
    assert await one.stop() in {-signal.SIGKILL, -signal.SIGTERM}


async def test_the_log_before_is_kept(tmp_path: Path) -> None:
    one, _ = child(tmp_path, "echo first")
    await one.start()
    assert one.process is not None
    await one.process.wait()
    await one.start()
    await one.process.wait()
    assert one.log.with_suffix(".log.1").read_text() == one.log.read_text() == "first\n"
    assert "first" in one.tail()


LAUNCHER = """
import asyncio, sys
from pathlib import Path
from catenary_cli.processes import Child, Plan

async def main():
    child = Child(Plan(service="x", instance="x", command=("/bin/sleep", "600")), Path(sys.argv[1]) / "x.log")
    await child.start()
    print(child.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")
def test_children_die_with_a_launcher_that_is_killed(tmp_path: Path) -> None:
    launcher = subprocess.Popen([sys.executable, "-c", LAUNCHER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    with launcher:
        assert launcher.stdout is not None
        pid = int(launcher.stdout.readline())
        os.kill(pid, 0)
        launcher.kill()
        launcher.wait()
        assert ends(pid)
