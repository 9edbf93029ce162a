"""`catenary doctor` where something is missing: each finding names it and its cure."""

import asyncio
import json
import socket
from pathlib import Path

import pytest
from catenary_cli.__main__ import main
from catenary_protocols.bus.subjects import Subjects
from catenary_runtime.bus import connect_once
from catenary_runtime.provision import provision
from catenary_runtime.testing import NatsServer


def examined(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, dict[str, object]]:
    code = main(["doctor", "-o", "json", *words])
    findings = {one["check"]: one for one in json.loads(capsys.readouterr().out)}
    assert code == int(not all(one["ok"] for one in findings.values()))
    return findings


def test_without_a_mesh_the_machine_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "catenary.toml").write_text('[[models]]\nname = "m"\npath = "./models/m"\n')
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setenv("CATENARY_FRONTEND_PORT", str(taken.getsockname()[1]))
        found = examined(capsys, "--nats", "nats://me:secret@127.0.0.1:1")
    assert found["Python"]["ok"]
    assert found["data directory"]["ok"]
    assert not found["model m"]["ok"]
    assert not found["broker"]["ok"]
    assert "catenary up" in str(found["broker"]["cure"])
    assert "secret" not in str(found)
    assert not found["port of the APIs"]["ok"]
    assert "--port" in str(found["port of the APIs"]["cure"])


def test_a_broker_without_streams_and_services(
    nats_server: NatsServer, subjects: Subjects, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ("--nats", nats_server.url, "--namespace", subjects.namespace, "--data-dir", str(tmp_path))
    found = examined(capsys, *words, "--api", "http://127.0.0.1:1")
    assert found["broker"]["ok"]
    assert found["longest message"]["ok"]
    assert not found["streams"]["ok"]
    assert found["streams"]["cure"] == "catenary provision"
    assert not found["services"]["ok"]
    assert "frontend" in str(found["services"]["found"])
    assert not found["ready"]["ok"]
    assert not found["APIs"]["ok"]

    async def make() -> None:
        nc = await connect_once(nats_server.url, "test")
        await provision(nc.jetstream(), subjects, ("get_weather", "calculator"))
        await nc.close()

    asyncio.run(make())
    found = examined(capsys, *words)
    assert found["streams"]["found"] == f"not there: {subjects.executor_consumer('current_time')}"


def test_a_person_is_told_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", "--nats", "nats://127.0.0.1:1"]) == 1
    lines = capsys.readouterr().out.splitlines()
    broken = next(at for at, line in enumerate(lines) if line.startswith("FAIL  broker"))
    assert lines[broken + 1].strip().startswith("-> start a mesh with `catenary up`")
