"""A child process of the launcher: its log, its health, its restarts, its end.

A child that exits non-zero unasked is started again after 0.5 s, then 1 s, … at most 10 s; one that had been up for
half a minute begins anew. Exit 0 unasked means that somebody drained it on purpose: it stays down.
"""

import asyncio
import json
import os
import signal
import ssl
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from catenary_protocols.errors import CatenaryError

LEASH = Path(__file__).with_name("leash.py")
BACKOFF_S, BACKOFF_LIMIT_S, STEADY_S = 0.5, 10.0, 30.0
TAIL_LINES = 15


class LaunchError(CatenaryError):
    """The mesh did not come up; the message says which part, and the end of its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How to run one process.

    Attributes:
        service: as in subjects, or `nats-server`.
        instance: its name on the bus, and of its log.
        command: argv, the program as a path.
        environment: added to ours; where secrets travel.
        url: what answers `/ready`.
        drain_s: seconds it may take to end when asked to.
        death_signal: sent by the kernel when the launcher dies.
    """

    service: str
    instance: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    url: str = ""
    drain_s: float = 20.0
    death_signal: signal.Signals = signal.SIGKILL


@dataclass(slots=True)
class Child:
    """One process by its plan. `say` gets a line when it dies or comes back."""

    plan: Plan
    log: Path
    say: Callable[[str], None] = lambda _: None
    backoff_s: float = BACKOFF_S
    process: asyncio.subprocess.Process | None = None
    restarts: int = 0
    _stopping: bool = False
    _keeper: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        """Of the process that runs now, or ran last; 0 before the first."""
        return self.process.pid if self.process else 0

    @property
    def ended(self) -> int | None:
        """Exit code, None while it runs."""
        return self.process.returncode if self.process else None

    async def start(self) -> None:
        """Run it once, with a new log; the one before is kept as `*.log.1`."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        if self.log.exists():
            self.log.replace(self.log.with_suffix(".log.1"))
        await self._run()

    def keep(self) -> None:
        """From now on start it again when it fails."""
        self._keeper = asyncio.create_task(self._keep(), name=f"keep {self.plan.instance}")

    async def stop(self) -> int:
        """SIGTERM and its time to drain, then SIGKILL. Returns the exit code."""
        self._stopping = True
        if self._keeper:
            self._keeper.cancel()
        if self.process is None:
            return 0
        with suppress(ProcessLookupError):
            self.process.terminate()
        try:
            async with asyncio.timeout(self.plan.drain_s + 2):
                return await self.process.wait()
        except TimeoutError:
            self.kill()
            return await self.process.wait()

    def kill(self) -> None:
        """SIGKILL, no restart."""
        self._stopping = True
        if self.process is not None:
            with suppress(ProcessLookupError):
                self.process.kill()

    def tail(self) -> str:
        """The last lines of its log."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(f"    {line}" for line in text.splitlines()[-TAIL_LINES:]) or "    (nothing logged)"

    async def _run(self) -> None:
        plan = self.plan
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", str(LEASH), str(os.getpid()), str(int(plan.death_signal))),
                *plan.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **plan.environment},
                start_new_session=True,  # Ctrl-C reaches the launcher alone, which drains in order
            )

    async def _keep(self) -> None:
        loop, wait = asyncio.get_running_loop(), self.backoff_s
        while self.process is not None:
            began = loop.time()
            code = await self.process.wait()
            if self._stopping:
                return
            if code == 0:
                self.say(f"{self.plan.instance} ended (drained by someone); it stays down")
                return
            if loop.time() - began > STEADY_S:
                wait = self.backoff_s
            self.say(f"{self.plan.instance} died ({_how(code)}); again in {wait:g} s, log {self.log}")
            await asyncio.sleep(wait)
            wait = min(wait * 2, BACKOFF_LIMIT_S)
            self.restarts += 1
            await self._run()
            self.say(f"{self.plan.instance} runs again, pid {self.pid}")


def _how(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit {code}"


async def warnings(url: str) -> list[str] | None:
    """What a service that is ready warns of; None when its `/ready` does not say within two seconds that it is.

    No certificate is asked for: it is our own process.
    """
    where = urlsplit(url)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if where.scheme == "https" else None
    if tls is not None:
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    try:
        async with asyncio.timeout(2):
            reader, writer = await asyncio.open_connection(where.hostname, where.port, ssl=tls)
            try:
                writer.write(f"GET {where.path} HTTP/1.1\r\nHost: {where.netloc}\r\nConnection: close\r\n\r\n".encode())
                head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            finally:
                writer.close()
        if head.split()[1:2] != [b"200"]:
            return None
        return [f"{row['check']}: {row['detail']}" for row in json.loads(body)["checks"] if not row["ok"]]
    except (OSError, TimeoutError, ValueError):
        return None
