"""A Docker engine for one test: started as root with a data root and a socket of its own, and ended with it.

Nothing of an engine that may run already is touched. Where none can start, `NotRun` says why, in the daemon's words.
"""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

START_S = 60.0
END_S = 60.0
POLL_S = 0.2
NEEDED = ("dockerd", "containerd", "runc", "docker", "debootstrap", "iptables")


class NotRun(Exception):  # noqa: N818  # no error of anybody's: this machine has no engine
    """The test cannot be run on this machine; the message says why."""


@dataclass(frozen=True, slots=True)
class Engine:
    """One that runs. Its commands speak to its socket, and build without BuildKit, which Debian's engine lacks."""

    socket: Path
    environment: Mapping[str, str] = field(default_factory=dict)

    def docker(self, *words: str, stderr: int | None = None) -> str:
        """Standard output of a `docker` command; raises `CalledProcessError`."""
        done = subprocess.run(
            ["docker", *words], env=self.env(), check=True, stdout=subprocess.PIPE, stderr=stderr, text=True
        )
        return done.stdout

    def logs(self, container: str) -> str:
        """What it has written."""
        return self.docker("logs", container, stderr=subprocess.STDOUT)

    def containers(self, *filters: str) -> list[dict[str, Any]]:
        """`docker inspect` of those that run, or of all that a filter names."""
        names = self.docker("ps", "-q", *(word for one in filters for word in ("--filter", one))).split()
        found: list[dict[str, Any]] = json.loads(self.docker("inspect", *names)) if names else []
        return found

    def env(self) -> dict[str, str]:
        """For commands that speak to the engine."""
        host = {"DOCKER_HOST": f"unix://{self.socket}", "DOCKER_BUILDKIT": "0", "COMPOSE_DOCKER_CLI_BUILD": "0"}
        return {**os.environ, **host, **self.environment}


def compose() -> list[str]:
    """The command, in the version that is installed; raises `NotRun`."""
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    plugin = ["docker", "compose"]
    if shutil.which("docker") and not subprocess.run([*plugin, "version"], capture_output=True, check=False).returncode:
        return plugin
    raise NotRun("neither docker-compose nor docker compose is installed")


@contextmanager
def running(folder: Path) -> Iterator[Engine]:
    """An engine until the end of the block; raises `NotRun`."""
    if os.geteuid():
        raise NotRun("the engine has to be started as root")
    if missing := [one for one in NEEDED if shutil.which(one) is None]:
        raise NotRun(f"not installed: {', '.join(missing)}")
    log = folder / "dockerd.log"
    socket = folder / "docker.sock"
    command = [
        "dockerd",
        *(f"--data-root={folder / 'data'}", f"--exec-root={folder / 'exec'}", f"--pidfile={folder / 'docker.pid'}"),
        f"--host=unix://{socket}",
        "--bridge=none",  # builds have the host's network, the mesh has its own
    ]
    policy = _forwarding()
    with log.open("wb") as output:
        daemon = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        engine = Engine(socket)
        _await(engine, daemon, log)
        yield engine
    finally:
        daemon.send_signal(signal.SIGTERM)
        try:
            daemon.wait(END_S)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
        _unmount(folder)
        subprocess.run(["iptables", *policy], stdout=subprocess.DEVNULL, check=False)


def _forwarding() -> list[str]:
    """The machine's policy for packets it forwards, which the daemon changes; none where it cannot be read."""
    rules = subprocess.run(["iptables", "-S", "FORWARD"], capture_output=True, text=True, check=False)
    return rules.stdout.partition("\n")[0].split() or ["-V"]


def _unmount(folder: Path) -> None:
    """What a daemon leaves mounted, innermost first."""
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for one in sorted((one for one in mounts if one.startswith(f"{folder}/")), key=len, reverse=True):
        subprocess.run(["umount", one], check=True)


def _await(engine: Engine, daemon: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + START_S
    while subprocess.run(["docker", "info"], env=engine.env(), capture_output=True, check=False).returncode:
        if daemon.poll() is not None or time.monotonic() > deadline:
            lines = [line for line in log.read_text().splitlines() if "level=info" not in line]
            raise NotRun(f"dockerd does not start here: {' / '.join(lines[-3:]) or 'it says nothing'}")
        time.sleep(POLL_S)
