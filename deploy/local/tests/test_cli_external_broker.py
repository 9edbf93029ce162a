"""A broker of somebody else's: what it lacks is said before anything starts."""

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from catenary_cli.__main__ import main
from catenary_cli.broker import free_ports
from catenary_runtime.testing import nats_binary

MB = 1024 * 1024
Start = Callable[..., str]


@pytest.fixture
def external(tmp_path: Path) -> Iterator[Start]:
    """Starts nats-server with these settings; its URL."""
    started: list[subprocess.Popen[bytes]] = []

    def start(**settings: object) -> str:
        (port,) = free_ports(1)
        ports = tmp_path / "ports"
        ports.mkdir()
        config = tmp_path / "external.conf"
        config.write_text(json.dumps({"listen": f"127.0.0.1:{port}", "ports_file_dir": str(ports), **settings}))
        started.append(subprocess.Popen([nats_binary(), "-c", str(config)], stderr=subprocess.DEVNULL))
        deadline = time.monotonic() + 15
        while not any(ports.iterdir()) and time.monotonic() < deadline:
            assert started[0].poll() is None
        return f"nats://127.0.0.1:{port}"

    yield start
    for process in started:
        process.kill()
        process.wait()


def up(url: str, folder: Path) -> int:
    return main(["up", "--port", "0", "--nats", url, "--data-dir", str(folder / "data")])


def test_a_limit_that_is_too_low_is_named(external: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = {"store_dir": str(tmp_path / "store")}
    assert up(external(jetstream=store, max_payload=MB), tmp_path) == 2
    assert "max_payload: 8MB" in capsys.readouterr().err
    assert not (tmp_path / "data" / "logs").exists()


def test_a_broker_without_jetstream_is_told_so(
    external: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert up(external(max_payload=8 * MB), tmp_path) == 2
    assert "JetStream" in capsys.readouterr().err


def test_streams_are_made_once_and_kept(external: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = external(jetstream={"store_dir": str(tmp_path / "store")}, max_payload=8 * MB)
    argv = ["provision", "--nats", url, "--tool", "lookup"]
    assert main(argv) == 0
    assert "made stream catenary-v1-TOOLS" in (first := capsys.readouterr().out)
    assert "made consumer exec-lookup" in first
    assert main(argv) == 0
    assert "kept stream catenary-v1-TOOLS" in (again := capsys.readouterr().out)
    assert "kept consumer exec-lookup" in again


def test_nobody_on_the_bus_is_exit_code_1(external: Start, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["services", "--nats", external(), "--wait-s", "0.05"]) == 1
    assert "nobody answers" in capsys.readouterr().out


def test_no_broker_is_said_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    (port,) = free_ports(1)
    assert main(["services", "--nats", f"nats://me:secret@127.0.0.1:{port}"]) == 1
    said = capsys.readouterr().err
    assert "no broker" in said
    assert "secret" not in said
