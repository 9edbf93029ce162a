"""`catenary chat`, `top`, `trace`, `doctor` and `services` against a mesh of real processes."""

import io
import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from catenary_cli.__main__ import main

from tests.mesh.harness import MODEL, PATIENCE_S, WEATHER, RunningMesh, running_mesh

Said = Callable[..., str]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    """What a command prints; its exit code must be the one that is given."""

    def run(mesh: RunningMesh, *words: str, code: int = 0) -> str:
        ended = main([*words, "--data-dir", str(mesh.data_dir)])
        printed = capsys.readouterr()
        assert ended == code, printed.err
        return printed.out or printed.err

    return run


def ask(mesh: RunningMesh, **more: Any) -> httpx.Response:
    request = {"model": MODEL, "messages": [{"role": "user", "content": "What is the weather in `Oslo`?"}], **more}
    answer = httpx.post(f"{mesh.api}/v1/chat/completions", json=request, timeout=PATIENCE_S)
    assert answer.status_code == 200, answer.text
    return answer


def test_chat_shows_reasoning_a_call_its_result_and_the_answer(mesh: RunningMesh, said: Said) -> None:
    shown = said(mesh, "chat", "What is the weather in `Oslo`?", "--tools", "get_weather")
    call = shown.index('get_weather({"city": "Oslo"}) = {')
    assert shown[:call].strip()
    assert "\033" not in shown  # no colours off a terminal
    assert shown[call:].splitlines()[1:]


def test_a_conversation_goes_on_where_it_was(mesh: RunningMesh, said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sys, "stdin", io.StringIO("Tell me of the harbour of Bergen and of its ferries.\nAnd then?\n\nno\n")
    )
    first, second = (json.loads(line) for line in said(mesh, "chat", "-o", "json", "--max-tokens", "60").splitlines())
    assert first["content"]
    told = first["usage"]["completion_tokens"] - first["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert told > 0
    assert second["usage"]["prompt_tokens"] > first["usage"]["prompt_tokens"] + told


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--model", "catenary-sin"), f"no model 'catenary-sin'; there are {MODEL}"),
        (("--tools", "get_wether"), "no tool 'get_wether'; there are get_weather"),
    ],
)
def test_chat_names_what_is_not_there(mesh: RunningMesh, said: Said, words: tuple[str, ...], says: str) -> None:
    assert says in said(mesh, "chat", "Hello", *words, code=2)


def test_chat_offers_the_tools_of_the_registry_that_is_set(
    mesh: RunningMesh, said: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = tmp_path / "tools.toml"
    registry.write_text('[[tools]]\nname = "disk_usage"\ncommand = ["df"]\n')
    monkeypatch.setenv("CATENARY_TOOL_DISPATCH_REGISTRY", str(registry))
    assert said(mesh, "chat", "Hello", "--tools", "get_weather", code=2).strip().endswith("there are disk_usage")


def test_top_tells_of_services_workers_and_what_they_generate(paced_mesh: RunningMesh, said: Said) -> None:
    request = threading.Thread(target=ask, args=(paced_mesh,), kwargs={"max_tokens": 400})
    request.start()
    view = json.loads(said(paced_mesh, "top", "--once", "-o", "json", "--interval-s", "1.5"))
    request.join()
    assert set(view["services"]) >= {"frontend", "tokenizer", "router", "kv-indexer", "tool-dispatch", "worker"}
    assert [one["worker"] for one in view["workers"]] == sorted(paced_mesh.workers)
    assert view["tokens_per_s"] > 0
    assert any(one["step_ms"] > 0 for one in view["workers"])


def test_top_counts_no_turn_that_has_ended(mesh: RunningMesh, said: Said) -> None:
    request = {"model": MODEL, "input": "Hello"}
    answer = httpx.post(f"{mesh.api}/v1/responses", json=request, timeout=PATIENCE_S)  # its client may come back
    assert answer.status_code == 200
    view = json.loads(said(mesh, "top", "--once", "-o", "json", "--interval-s", "0.6"))
    assert (view["turns"], view["unplaced"]) == (0, 0)


def test_top_is_a_table_for_people(mesh: RunningMesh, said: Said) -> None:
    lines = said(mesh, "top", "--once", "--interval-s", "0.5").splitlines()
    header = next(line for line in lines if line.startswith("worker"))
    assert header.split()[:4] == ["worker", "model", "state", "turns"]
    assert [line.split()[0] for line in lines if line.startswith("worker-")] == sorted(mesh.workers)


def test_a_trace_shows_the_tool_run_inside_the_decoding(paced_mesh: RunningMesh, said: Said) -> None:
    answer = ask(paced_mesh, tools=[WEATHER], nvext={"run_tools": True})
    turn = answer.headers["x-catenary-turn-id"]
    trace = json.loads(said(paced_mesh, "trace", turn, "-o", "json"))
    stages = {one["name"]: one for one in trace["stages"]}
    assert trace["turn_id"] == turn
    assert stages.keys() == {"prepare", "place", "prefill", "decode", "call", "run", "end"}
    assert stages["place"]["ended"] <= stages["prefill"]["ended"] == stages["decode"]["began"]
    assert stages["decode"]["began"] < stages["call"]["began"] <= stages["run"]["ended"] < stages["decode"]["ended"]
    assert "get_weather" in stages["run"]["detail"]
    shown = said(paced_mesh, "trace", "--last").splitlines()
    assert shown[0].split() == [turn, "chat", MODEL, "ok"]
    assert sum("▇" in line for line in shown) == len(trace["stages"])


def test_a_call_that_was_refused_has_a_result_and_no_run(mesh: RunningMesh, said: Said) -> None:
    town = {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]}
    weather = {"type": "function", "function": {"name": "get_weather", "parameters": town}}
    turn = ask(mesh, tools=[weather], nvext={"run_tools": True}).headers["x-catenary-turn-id"]
    stages = {one["name"]: one for one in json.loads(said(mesh, "trace", turn, "-o", "json"))["stages"]}
    assert "run" not in stages
    assert stages["result"]["detail"] == "get_weather: invalid_arguments"
    assert stages["call"]["began"] <= stages["result"]["began"] == stages["result"]["ended"]


def test_a_trace_of_a_turn_nobody_knows(mesh: RunningMesh, said: Said) -> None:
    assert "nothing is known of" in said(mesh, "trace", "0" * 26, code=1)
    assert "'t1' is no turn id" in said(mesh, "trace", "t1", code=2)


def test_turns_are_followed_as_they_end(mesh: RunningMesh, said: Said) -> None:
    over = threading.Event()

    def keep_asking() -> None:
        while not over.is_set():
            ask(mesh, max_tokens=5)

    asking = threading.Thread(target=keep_asking)
    asking.start()
    try:
        lines = said(mesh, "trace", "--count", "2", "-o", "json").splitlines()
    finally:
        over.set()
        asking.join()
    assert len({json.loads(line)["turn_id"] for line in lines}) == 2
    assert all(json.loads(line)["facts"]["code"] == "ok" for line in lines)


def test_the_doctor_finds_a_whole_mesh_whole(mesh: RunningMesh, said: Said) -> None:
    findings = json.loads(said(mesh, "doctor", "-o", "json"))
    assert all(one["ok"] for one in findings)
    checks = {one["check"] for one in findings}
    assert checks >= {"broker", "streams", "services", "versions", "ready", "clocks", "APIs", "data directory"}
    assert "secret" not in str(findings)
    assert mesh.broker.split(":")[2].split("@")[0] not in str(findings)


@pytest.mark.slow
def test_an_mcp_server_that_is_dead_is_warned_of_and_stops_nothing(
    tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = tmp_path / "tools.toml"
    registry.write_text('[[mcp]]\nname = "dead"\ncommand = ["/no/such/program"]\n')
    monkeypatch.setenv("CATENARY_TOOL_DISPATCH_REGISTRY", str(registry))
    with running_mesh(tmp_path / "mesh", "--workers", "1") as mesh:
        assert ask(mesh).json()["choices"]
        findings = {one["check"]: one for one in json.loads(said(mesh, "doctor", "-o", "json", code=1))}
    assert [name for name, one in findings.items() if not one["ok"]] == ["warnings"]
    told = "tool-dispatch: mcp: dead: not connected: FileNotFoundError: [Errno 2] "
    assert told in findings["warnings"]["found"]
    assert f"catenary: warning: {told}" in (tmp_path / "mesh" / "up.log").read_text()


def test_services_are_listed(mesh: RunningMesh, said: Said) -> None:
    rows = json.loads(said(mesh, "services", "-o", "json"))
    assert {row["service"] for row in rows} >= {"catenary-frontend", "catenary-worker"}
