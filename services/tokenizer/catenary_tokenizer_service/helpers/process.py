"""One helper process, from its parent's side: started when it is needed, killed by its own alarm, started again.

A job that a process dies of, but for its alarm, is given to a second one; then its caller is told.
"""

import asyncio
import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import structlog

from catenary_tokenizer_service.helpers.jobs import Job
from catenary_tokenizer_service.helpers.wire import read_answer
from catenary_tokenizer_service.metrics import HELPER_BYTES, HELPER_CPU, HELPER_ENDED

log = structlog.get_logger()
MODULE = "catenary_tokenizer_service.helpers.child"
TRIES = 2
_PRIVATE = ("CATENARY_", "OTEL_")
"""Settings of the service, credentials among them, are none of its helper's business."""


class HelperLateError(Exception):
    """The job's time was up."""


class HelperLostError(Exception):
    """The process died of it, more than once; or we are stopping."""


class HelperProcess:
    """See the module.

    Attributes:
        thread: does one job after the other, for callers that must not block.
    """

    def __init__(self, name: str, *, memory: int = 0) -> None:
        self.thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._name = name
        self._memory = memory
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False
        self._counted = (0, 0.0)

    @property
    def pid(self) -> int | None:
        """Of the process that runs now."""
        return self._process.pid if self._process is not None else None

    def ask(self, job: Job, within: float) -> bytes:
        """A job's answer. Blocks.

        Raises:
            HelperLateError: it took longer than `within` seconds.
            HelperLostError: the process died of it, twice.
            PromptError, TemplateLimitError, ValueError: as the job does.
        """
        request = pickle.dumps((job, within))
        with self._lock:
            for _ in range(TRIES):
                process = self._running()
                try:
                    return _exchange(process, request)
                except (EOFError, OSError):
                    if self._ended(process) == -signal.SIGALRM:
                        raise HelperLateError from None
        raise HelperLostError

    async def ask_soon(self, job: Job, within: float) -> bytes:
        """`ask`, when those that came before are done."""
        return await asyncio.get_running_loop().run_in_executor(self.thread, self.ask, job, within)

    async def try_soon(self, job: Job, within: float) -> None:
        """`ask_soon` for a job of which nobody wants the answer."""
        try:
            await self.ask_soon(job, within)
        except (HelperLateError, HelperLostError, ValueError) as error:
            if not self._closed:
                log.warning("helper.not_warm", helper=self._name, error=str(error) or type(error).__name__)

    def stop(self) -> None:
        """End the process once its job is done; the next job starts another one."""
        with self._lock:
            if self._process is not None:
                self._kill(self._process)

    def close(self) -> None:
        """End for good; whoever waits is told that it is lost."""
        self._closed = True
        if (process := self._process) is not None:
            process.kill()
        self.thread.shutdown(wait=True, cancel_futures=True)
        self.stop()

    def observe(self) -> None:
        """Bring the metrics up to date; where the system has no `/proc`, they stay 0."""
        pid = self.pid or 0
        cpu_s, size = _usage(pid) if pid else (0.0, 0)
        of, counted = self._counted
        HELPER_BYTES.labels(helper=self._name).set(size)
        HELPER_CPU.labels(helper=self._name).inc(max(0.0, cpu_s - counted if of == pid else cpu_s))
        self._counted = pid, cpu_s

    def _running(self) -> "subprocess.Popen[bytes]":
        if self._closed:
            raise HelperLostError
        if self._process is None:
            command = [sys.executable, "-P", "-m", MODULE, str(self._memory)]
            environment = {key: value for key, value in os.environ.items() if not key.startswith(_PRIVATE)}
            self._process = subprocess.Popen(  # noqa: S603  # our own module
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
            )
        return self._process

    def _ended(self, process: "subprocess.Popen[bytes]") -> int:
        """How it ended."""
        code = self._kill(process)
        if not self._closed:
            why = "late" if code == -signal.SIGALRM else "died"
            HELPER_ENDED.labels(helper=self._name, why=why).inc()
            log.warning("helper.ended", helper=self._name, why=why, code=code)
        return code

    def _kill(self, process: "subprocess.Popen[bytes]") -> int:
        """The exit code; that of its own end, if it has ended."""
        self._process = None
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            return process.wait(1)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


def _exchange(process: "subprocess.Popen[bytes]", request: bytes) -> bytes:
    if process.stdin is None or process.stdout is None:
        raise EOFError
    process.stdin.write(request)
    process.stdin.flush()
    return read_answer(process.stdout)


def _usage(pid: int) -> tuple[float, int]:
    """CPU seconds and resident bytes of a process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return 0.0, 0
    ticks = int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK"), int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
