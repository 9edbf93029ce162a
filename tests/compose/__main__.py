"""`python -m tests.compose`: the Compose file on a Docker engine of the test's own, from building to `down`.

Exit code 0 when all of it holds, and where no engine can start, which is said (`NOT RUN`).
"""

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from catenary_cli.broker import free_ports
from catenary_cli.nats_permissions import variable
from catenary_protocols.bus.accounts import ADMIN
from catenary_worker.engines.llamacpp.testing import write_tiny_gguf

from tests.compose import images
from tests.compose.engine import Engine, NotRun, compose, running

READY_S = 180.0
BACK_S = 90.0
POLL_S = 0.5
PROJECT = "catenary-test"
SERVICES = ("frontend", "tokenizer", "router", "kv-indexer", "worker", "tool-dispatch")
REPLICAS = {"tokenizer": 2, "router": 2, "kv-indexer": 2, "worker": 2}
KILLED = ("worker", "router", "kv-indexer", "tokenizer", "tool-dispatch", "nats", "frontend")
ENDS_TURNS = ("tokenizer", "frontend")
GGUF = "tiny"
QUESTION = {
    "messages": [{"role": "user", "content": "Tell of the harbour."}],
    "max_tokens": 200,
    "stream": True,
}


def passwords() -> dict[str, str]:
    """One for each user of the broker, in the variables that the Compose file reads. They begin with a letter."""
    names = re.findall(r"^CATENARY_PASSWORD_\w+", (images.DEPLOY / ".env.example").read_text(), re.MULTILINE)
    return {name: f"pw{secrets.token_hex(8)}" for name in names}


@dataclass(slots=True)
class Stand:
    """The mesh in its containers."""

    engine: Engine
    folder: Path
    passwords: dict[str, str] = field(default_factory=passwords)
    port: int = 0
    nats_port: int = 0

    def __post_init__(self) -> None:
        self.port, self.nats_port = free_ports(2)
        self.models.mkdir()

    @property
    def models(self) -> Path:
        """Where the profile `cpu` finds its GGUF file."""
        return self.folder / "models"

    @property
    def api(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def broker(self) -> str:
        return f"nats://catenary:{self.passwords[variable(ADMIN)]}@127.0.0.1:{self.nats_port}"

    def compose(self, *words: str) -> None:
        """One Compose command."""
        files = (images.DEPLOY / "compose.yaml", images.override(self.folder / "override.yaml"))
        command = [*compose(), "-p", PROJECT, *(word for one in files for word in ("-f", str(one))), *words]
        given = {
            **self.passwords,
            "CATENARY_PORT": str(self.port),
            "CATENARY_NATS_PORT": str(self.nats_port),
            "CATENARY_MODELS": str(self.models),
            "CATENARY_MODEL_NAME": GGUF,
        }
        with (self.folder / "compose.log").open("ab") as log:
            done = subprocess.run(command, env={**self.engine.env(), **given}, stdout=log, stderr=log, check=False)
        if done.returncode:
            tail = (self.folder / "compose.log").read_text(errors="replace").splitlines()[-30:]
            raise AssertionError("\n".join([f"compose {words[0]} ended with {done.returncode}:", *tail]))

    def containers(self, service: str) -> list[dict[str, Any]]:
        """Those of one service that run."""
        return self.engine.containers(
            f"label=com.docker.compose.project={PROJECT}", f"label=com.docker.compose.service={service}"
        )

    def healthy(self, service: str) -> bool:
        """As many as there should be, all of them ready."""
        found = self.containers(service)
        return len(found) == REPLICAS.get(service, 1) and all(
            one["State"]["Health"]["Status"] == "healthy" for one in found
        )

    def ask(self, at_first: Callable[[str], object] = str, model: str = "catenary-sim") -> str:
        """The answer's text, the same each time; `at_first` gets the worker's name when the first of it is there."""
        body = json.dumps({**QUESTION, "model": model}).encode()
        request = urllib.request.Request(  # noqa: S310  # our own address
            f"{self.api}/v1/chat/completions", body, {"content-type": "application/json"}
        )
        said = ""
        with urllib.request.urlopen(request, timeout=BACK_S) as answer:  # noqa: S310
            for line in answer:
                if line.startswith(b"data: {"):
                    event = json.loads(line.removeprefix(b"data: "))
                    assert "error" not in event, event
                    delta = event["choices"][0]["delta"]
                    piece = delta.get("reasoning_content") or delta.get("content") or ""
                    if piece and not said:
                        at_first(answer.headers["x-catenary-worker"])
                    said += piece
        return said

    def kill(self, service: str, instance: str = "") -> int:
        """SIGKILL to the first process of one container, as a crash would end it; its process id."""
        found = [one for one in self.containers(service) if instance in self.engine.logs(one["Id"])]
        assert found, f"no container of {service} runs {instance}"
        pid = int(found[0]["State"]["Pid"])
        os.kill(pid, signal.SIGKILL)
        return pid

    def pids(self, service: str) -> set[int]:
        """Of its containers' first processes."""
        return {int(one["State"]["Pid"]) for one in self.containers(service)}


@contextmanager
def step(name: str) -> Iterator[None]:
    """Say what was done and how long it took."""
    began = time.monotonic()
    yield
    print(f"ok {name} ({time.monotonic() - began:.0f} s)", flush=True)


def until(what: str, holds: Callable[[], bool], within: float) -> None:
    """Wait for it; raises `AssertionError`."""
    deadline = time.monotonic() + within
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within:.0f} s: {what}")
        time.sleep(POLL_S)


def is_ready(api: str) -> bool:
    """Whether the frontend takes turns."""
    try:
        with urllib.request.urlopen(f"{api}/ready", timeout=2) as answer:  # noqa: S310  # our own address
            return bool(answer.status == 200)  # HTTP
    except (OSError, urllib.error.URLError):
        return False


def check(stand: Stand) -> None:
    """What holds of a mesh that is up."""
    with step("every service is healthy, in its number, not root, with no right and a read-only file system"):
        for service in SERVICES:
            until(f"{service} is healthy", partial(stand.healthy, service), READY_S)
        for service in (*SERVICES, "nats"):
            for one in stand.containers(service):
                assert one["Config"]["User"].startswith("10001"), (service, one["Config"]["User"])
                assert one["HostConfig"]["ReadonlyRootfs"], service
                assert one["HostConfig"]["CapDrop"] == ["ALL"], service
    with step("the demo against it"):
        command = [sys.executable, "-m", "catenary_cli", "demo", "--api", stand.api, "--nats", stand.broker]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def kills(stand: Stand) -> None:
    """A container of each service is killed while a turn runs. It comes back; what may end a turn is in the design."""
    said = stand.ask()
    for service in KILLED:
        whole = service not in ENDS_TURNS
        with step(f"{service} killed: {'the turn goes on, ' if whole else ''}it comes back, and answers are the same"):
            killed: list[int] = []

            def strike(worker: str, service: str = service, killed: list[int] = killed) -> None:
                killed.append(stand.kill(service, worker if service == "worker" else ""))

            if whole:
                assert stand.ask(strike) == said
            else:
                strike("")
            until(f"{service} is back", partial(_back, stand, service, killed[0]), BACK_S)
            until("the frontend is ready", partial(is_ready, stand.api), BACK_S)
            assert stand.ask() == said


def cores(stand: Stand) -> None:
    """A GGUF file is served by a container of its own."""
    with step("profile cpu: llama.cpp serves a GGUF file"):
        write_tiny_gguf(stand.models / "model.gguf")
        stand.compose("--profile", "cpu", "up", "-d", "--build", "worker-cpu")
        until("worker-cpu is healthy", partial(stand.healthy, "worker-cpu"), READY_S)
        until(f"{GGUF} is served", lambda: GGUF in models(stand.api), BACK_S)
        assert stand.ask(model=GGUF)


def models(api: str) -> list[str]:
    """Names that are served."""
    with urllib.request.urlopen(f"{api}/v1/models", timeout=2) as answer:  # noqa: S310  # our own address
        return [str(one["id"]) for one in json.load(answer)["data"]]


def _back(stand: Stand, service: str, killed: int) -> bool:
    return killed not in stand.pids(service) and stand.healthy(service)


def main() -> int:
    """Run it; exit code 1 at the first thing that does not hold."""
    with tempfile.TemporaryDirectory(prefix="catenary-compose-") as name:
        folder = Path(name)
        try:
            command = compose()
            with running(folder) as engine:
                print(
                    f"docker {engine.docker('version', '--format', '{{.Server.Version}}').strip()}, {' '.join(command)}"
                )
                with step("base images made"):
                    images.make(engine, folder)
                _run(Stand(engine, folder))
        except NotRun as why:
            print(f"NOT RUN compose: {why}")
        except AssertionError as error:
            print(f"FAILED {error}")
            return 1
    return 0


def _run(stand: Stand) -> None:
    with step("images built"):
        stand.compose("build")
    try:
        with step("up"):
            stand.compose("up", "-d")
        check(stand)
        kills(stand)
        cores(stand)
    except AssertionError:
        stand.compose("logs", "--no-color", "--tail=30")
        print((stand.folder / "compose.log").read_text(errors="replace")[-20000:])
        raise
    finally:
        with step("down, and nothing is left"):
            stand.compose("--profile", "cpu", "down", "-v", "-t", "30")
            assert not stand.engine.containers("status=running")


if __name__ == "__main__":
    sys.exit(main())
