"""`catenary why`: a turn's placements, asked of the routers of the mesh that runs here."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import msgspec
import pytest
from catenary_cli.__main__ import main
from catenary_router.core.history import Considered, Decision

DECISION = Decision(
    turn_id="t 1",
    attempt=0,
    worker="w1",
    policy="kv",
    reason="load",
    at=1_700_000_000.0,
    waited_s=0.0021,
    prompt_tokens=1601,
    block_size=16,
    blocks=100,
    considered=(
        Considered(worker="w1", cost=12.5, overlap=60, turns=2, queued_ms=0.0),
        Considered(worker="w0", cost=140.0, overlap=80, turns=30, queued_ms=450.0),
    ),
)


class Router(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        found = [DECISION] if self.path == "/placements/t%201" else []
        self.send_response(200 if found else 404)
        self.end_headers()
        self.wfile.write(msgspec.json.encode(found))

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[Path]:
    with HTTPServer(("127.0.0.1", 0), Router) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        processes = [
            {"service": "frontend", "url": "http://127.0.0.1:1"},
            {"service": "router", "url": f"http://127.0.0.1:{server.server_port}"},
        ]
        (tmp_path / "mesh.json").write_text(json.dumps({"processes": processes}))
        yield tmp_path
        server.shutdown()
        thread.join()


def test_every_worker_considered_is_told(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", "t 1", "--data-dir", str(data_dir)]) == 0
    said = capsys.readouterr().out
    assert "t 1 attempt 0: w1, since another held more of the prompt but was too busy" in said
    assert "1,601 prompt tokens, placed by kv" in said
    *_, header, first, second = said.splitlines()
    assert header.split() == ["worker", "cost", "overlap", "turns", "queued", "ms"]
    assert first.split() == ["w1", "12.5", "60", "of", "100", "blocks", "2", "0.0"]
    assert second.split() == ["w0", "140.0", "80", "of", "100", "blocks", "30", "450.0"]


def test_json_is_what_the_router_told(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", "t 1", "--data-dir", str(data_dir), "-o", "json"]) == 0
    assert msgspec.json.decode(capsys.readouterr().out, type=list[Decision]) == [DECISION]


def test_a_turn_nobody_remembers(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", "t2", "--data-dir", str(data_dir)]) == 1
    assert capsys.readouterr().out == "no router remembers t2\n"


def test_without_a_mesh_a_router_must_be_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", "t", "--data-dir", str(tmp_path)]) == 1
    assert "no mesh runs in" in capsys.readouterr().err
    assert main(["why", "t", "--router", "http://127.0.0.1:1"]) == 1
    assert "the router at http://127.0.0.1:1 does not tell" in capsys.readouterr().err
