"""What `make clients` takes for a pass, and what it says of a client that it could not run."""

import sys
from pathlib import Path

import pytest

from tests.conformance import __main__ as command
from tests.conformance import install, running
from tests.conformance.agents import Desk, Start
from tests.conformance.running import Client, run, wrong_turns

CHAT = Client("kit", "chat", "stream", lambda _: Start([], {}, str))


def turn(reason: str, code: str = "ok", api: str = "chat", *, stream: bool = True) -> dict[str, object]:
    return {"api": api, "reason": reason, "code": code, "stream": stream}


def test_a_call_and_an_answer_make_a_loop() -> None:
    assert not wrong_turns(CHAT, [turn("tool_calls"), turn("", "cancelled"), turn("stop")])


@pytest.mark.parametrize(
    ("turns", "why"),
    [
        ([], "turns ended in"),
        ([turn("stop")], "turns ended in"),
        ([turn("tool_calls")], "turns ended in"),
        ([turn("tool_calls"), turn("", "invalid_value"), turn("stop")], "turns ended in"),
        ([turn("tool_calls"), turn("stop", api="messages")], "spoke otherwise"),
        ([turn("tool_calls", stream=False), turn("stop")], "spoke otherwise"),
    ],
)
def test_what_the_mesh_did_not_see_is_no_loop(turns: list[dict[str, object]], why: str) -> None:
    assert why in wrong_turns(CHAT, turns)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    one = Desk(tmp_path, "http://127.0.0.1:1")
    for folder in (one.home, one.work):
        folder.mkdir()
    return one


def python(code: str) -> Start:
    return Start([sys.executable, "-c", code], {}, str.strip)


def test_a_client_runs_at_its_desk_with_nothing_of_ours(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CATENARY_SECRET", "x")
    code = "import os, sys; print(os.getcwd(), os.environ['HOME'], 'CATENARY_SECRET' in os.environ, sys.argv[1])"
    assert run(desk, python(code), "Go.") == ("", f"{desk.work} {desk.home} False Go.")


def test_a_client_that_fails_says_so(desk: Desk) -> None:
    assert run(desk, python("import sys; sys.exit('no such model')"), "")[0] == "exit code 1: no such model"


def test_a_client_without_an_answer_fails(desk: Desk) -> None:
    start = Start([sys.executable, "-c", ""], {}, lambda out: out.splitlines()[0])
    assert run(desk, start, "")[0].startswith("no answer in its output")


def test_a_client_has_a_bound_and_leaves_nothing_behind(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "BOUND_S", 1.0)
    code = "import subprocess; child = subprocess.Popen(['sleep', '600']); print(child.pid, flush=True); child.wait()"
    assert run(desk, python(code), "")[0] == "not done in 1 s"
    command_line = Path("/proc") / (desk.folder / "stdout").read_text().strip() / "cmdline"
    while command_line.exists() and command_line.read_bytes():
        pass


def test_without_npm_an_agent_is_not_run_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(install, "CACHE", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(install.NotRunError, match="npm is not installed"):
        install.CODEX.bin()

    def missing(client: Client, mesh: object) -> None:
        install.CODEX.bin()

    monkeypatch.setattr(command, "tool_loop", missing)
    assert command.drive(CHAT, object()) == "NOT RUN"  # type: ignore[arg-type]
    assert capsys.readouterr().out == "NOT RUN kit chat stream: npm is not installed\n"
