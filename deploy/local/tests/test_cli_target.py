"""Which mesh a command speaks to, and how a chat looks on a terminal."""

import argparse
import json
from pathlib import Path

import pytest
from catenary_cli.ask import told
from catenary_cli.screen import CALL, DIM, PLAIN, Screen
from catenary_cli.target import Target, add_target, target
from catenary_cli.timeline import Turn

STATE = {
    "api": "http://127.0.0.1:5000",
    "broker": "nats://catenary:pw@127.0.0.1:5001",
    "namespace": "other.v1",
    "processes": [{"service": "router", "url": "http://127.0.0.1:5002"}],
}


def found(folder: Path, *words: str, **environ: str) -> Target:
    parser = argparse.ArgumentParser()
    add_target(parser)
    return target(parser.parse_args([*words, "--data-dir", str(folder)]), environ)


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "mesh.json").write_text(json.dumps(STATE))
    return tmp_path


def test_the_mesh_that_runs_here_is_found(here: Path) -> None:
    mesh = found(here)
    assert (mesh.api, mesh.broker, mesh.subjects.namespace) == (STATE["api"], STATE["broker"], "other.v1")
    assert [one["url"] for one in mesh.processes("router")] == ["http://127.0.0.1:5002"]


def test_without_one_it_is_where_it_would_be(tmp_path: Path) -> None:
    mesh = found(tmp_path, CATENARY_FRONTEND_PORT="9000", CATENARY_API_KEY="k")
    assert (mesh.api, mesh.broker, mesh.key) == ("http://127.0.0.1:9000", "nats://127.0.0.1:4222", "k")
    assert mesh.processes("router") == []


def test_a_mesh_that_is_named_is_not_the_one_here(here: Path) -> None:
    mesh = found(here, "--api", "https://mesh.example/", "--nats", "nats://far:4222")
    assert (mesh.api, mesh.broker, mesh.state) == ("https://mesh.example", "nats://far:4222", {})
    assert found(here, CATENARY_NATS="nats://far:4222").state == {}


def test_the_one_here_may_be_named_too(here: Path) -> None:
    mesh = found(here, CATENARY_NATS=str(STATE["broker"]))
    assert (mesh.api, mesh.state) == (STATE["api"], STATE)


def test_a_terminal_shows_reasoning_dim_and_calls_in_colour(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen(colour=True)
    turn = Turn(reasoning="think")
    screen.show(turn, (0, 0))
    turn.text = "say"
    screen.show(turn, (5, 0))
    screen.call({"function": {"name": "f", "arguments": "{}"}}, "1")
    assert capsys.readouterr().out == f"{PLAIN}{DIM}think{PLAIN}\n\nsay\n{PLAIN}{PLAIN}{CALL}f({{}}) = 1\n{PLAIN}"


def test_elsewhere_there_are_no_colours(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen(colour=False)
    screen.show(Turn(reasoning="think", text="say"), (0, 0))
    screen.line()
    assert capsys.readouterr().out == "think\n\nsay\n"


@pytest.mark.parametrize(
    ("body", "says"),
    [(b'{"error": {"message": "no"}}', "no"), (b"Bad Gateway", "Bad Gateway"), (b'{"error": "no"}', '{"error": "no"}')],
)
def test_an_error_body_is_told_by_its_message(body: bytes, says: str) -> None:
    assert told(body) == says
