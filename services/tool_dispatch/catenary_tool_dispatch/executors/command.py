"""Commands: an argv, never a shell; arguments as JSON on stdin, the answer on stdout.

Each run has a process group of its own, which is killed whole when the run is over, whatever way it ended: a child
that a command leaves behind does not outlive it. The environment holds `PASSED` and nothing else of ours.
"""

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from dataclasses import dataclass

from catenary_tool_dispatch.executors.base import Invocation, Outcome, bounded

PASSED = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR")
_CHUNK = 64 * 1024
_STDERR_LIMIT = 4 * 1024


@dataclass(frozen=True, slots=True)
class CommandExecutor:
    """Runs `argv` for each call. `CATENARY_CALL_KEY` in its environment names the call."""

    argv: Sequence[str]
    max_output: int

    async def run(self, invocation: Invocation, seconds: float) -> Outcome:
        """Start it, feed it, wait for its end."""
        environment = {name: os.environ[name] for name in PASSED if name in os.environ}
        environment["CATENARY_CALL_KEY"] = invocation.key
        try:
            process = await asyncio.create_subprocess_exec(
                *self.argv, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=environment, start_new_session=True
            )
        except OSError as error:
            return Outcome(code="failed", message=f"the command cannot be started: {error.strerror or error}")
        try:
            async with asyncio.timeout(seconds):
                return await self._converse(process, invocation.json)
        except TimeoutError:
            return Outcome(code="timeout", message=f"the command did not end in {seconds:.3g} s")
        finally:
            _kill_group(process)
            await process.wait()

    async def _converse(self, process: Process, arguments: bytes) -> Outcome:
        async with asyncio.TaskGroup() as group:
            group.create_task(_feed(process.stdin, arguments))
            out = group.create_task(_read(process.stdout, self.max_output))
            err = group.create_task(_read(process.stderr, _STDERR_LIMIT))
            status = await process.wait()
            _kill_group(process)  # what it left behind holds the pipes open
        if status == 0:
            output, truncated = bounded(out.result(), self.max_output)
            return Outcome(output, truncated=truncated)
        said, truncated = bounded(err.result() or out.result(), min(_STDERR_LIMIT, self.max_output))
        return Outcome(said, code="failed", message=_how(status), truncated=truncated)


def _kill_group(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


async def _feed(stdin: asyncio.StreamWriter | None, data: bytes) -> None:
    """A command need not read its arguments, so a closed pipe is no failure."""
    assert stdin is not None  # noqa: S101  # PIPE was asked for
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        stdin.write(data)
        await stdin.drain()
    stdin.close()


async def _read(stream: asyncio.StreamReader | None, limit: int) -> bytes:
    """The first bytes of the stream, one more than `limit` so that a cut is seen; the rest is read and dropped."""
    assert stream is not None  # noqa: S101  # PIPE was asked for
    kept = bytearray()
    while chunk := await stream.read(_CHUNK):
        kept += chunk[: limit + 1 - len(kept)]
    return bytes(kept)


def _how(status: int) -> str:
    return f"the command was killed by signal {-status}" if status < 0 else f"the command ended with status {status}"
