"""Commands: an argv, never a shell; arguments as JSON on stdin, the answer on stdout.

Each run has a process group of its own, which is killed whole when the command has ended, whatever way: what it leaves
behind neither holds up its answer nor outlives it. The environment holds `PASSED` and nothing else of ours.
"""

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import PIPE
from collections.abc import Sequence
from dataclasses import dataclass
from tempfile import TemporaryFile

from catenary_tool_dispatch.executors.base import Invocation, Outcome, bounded

PASSED = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR")
_STDOUT, _STDERR = 1, 2
_STDERR_LIMIT = 4 * 1024
_LINGER_S = 0.5


@dataclass(frozen=True, slots=True)
class CommandExecutor:
    """Runs `argv` for each call. `CATENARY_CALL_KEY` in its environment names the call."""

    argv: Sequence[str]
    max_output: int

    async def run(self, invocation: Invocation, seconds: float) -> Outcome:
        """Start it, wait for its end."""
        starting = asyncio.ensure_future(self._start(invocation))
        try:
            transport, said = await asyncio.shield(starting)  # a start that is cut in two leaves a process to nobody
            async with asyncio.timeout(seconds):
                await said.exited.wait()
        except TimeoutError:
            return Outcome(code="timeout", message=f"the command did not end in {seconds:.3g} s")
        except OSError as error:
            return Outcome(code="failed", message=f"the command cannot be started: {error.strerror or error}")
        finally:
            await _end(starting)
        return self._outcome(transport.get_returncode() or 0, said)

    async def close(self) -> None:
        """Nothing is kept between runs."""

    async def _start(self, invocation: Invocation) -> "_Started":
        environment = {name: os.environ[name] for name in PASSED if name in os.environ}
        environment["CATENARY_CALL_KEY"] = invocation.key
        with TemporaryFile() as stdin:  # not a pipe: nothing to feed, and nothing to wait for when it is not read
            stdin.write(invocation.json)
            stdin.seek(0)
            return await asyncio.get_running_loop().subprocess_exec(
                lambda: _Said(self.max_output),
                *self.argv,
                stdin=stdin,
                stdout=PIPE,
                stderr=PIPE,
                env=environment,
                start_new_session=True,
            )

    def _outcome(self, status: int, said: "_Said") -> Outcome:
        if status == 0:
            output, truncated = bounded(bytes(said.kept[_STDOUT]), self.max_output)
            return Outcome(output, truncated=truncated)
        words, truncated = bounded(bytes(said.kept[_STDERR] or said.kept[_STDOUT]), min(_STDERR_LIMIT, self.max_output))
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        return Outcome(words, code="failed", message=f"the command {how}", truncated=truncated)


class _Said(asyncio.SubprocessProtocol):
    """What a command has said so far, one byte over the limit so that a cut shows; the rest is dropped as it comes."""

    def __init__(self, max_output: int) -> None:
        self.kept = {_STDOUT: bytearray(), _STDERR: bytearray()}
        self._limits = {_STDOUT: max_output + 1, _STDERR: _STDERR_LIMIT + 1}
        self._open = {_STDOUT, _STDERR}
        self.exited = asyncio.Event()
        self.closed = asyncio.Event()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        kept = self.kept[fd]
        kept += data[: self._limits[fd] - len(kept)]

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:  # noqa: ARG002  # asyncio's signature
        self._open.discard(fd)
        if not self._open:
            self.closed.set()

    def process_exited(self) -> None:
        self.exited.set()


_Started = tuple[asyncio.SubprocessTransport, _Said]


async def _end(starting: asyncio.Future[_Started]) -> None:
    """Kill the whole group, hear its last words, let go of it."""
    try:
        transport, said = await starting
    except OSError:
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(transport.get_pid(), signal.SIGKILL)
    await said.exited.wait()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LINGER_S):
            await said.closed.wait()
    transport.close()
