"""`catenary simulate`: trace files, what wrong ones are told, tables, JSON, pictures."""

import json
import shlex
from pathlib import Path

import pytest
from catenary_cli.__main__ import main
from catenary_cli.simulation.files import read_trace
from catenary_cli.simulation.mesh import Shape
from catenary_cli.simulation.play import play
from catenary_protocols.errors import RequestError

MOONCAKE = [
    {"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [1, 2, 3]},
    {"timestamp": 4000, "input_length": 1200, "output_length": 5, "hash_ids": [1, 2, 4]},
]
AGENT = [
    {"session_id": "a", "timestamp": 0, "input_length": 600, "output_length": 8, "hash_ids": [1, 2]},
    {"session_id": "a/sub", "parent_session_id": "a", "input_length": 512, "output_length": 4, "hash_ids": [1]},
    {"session_id": "a", "delay": 500, "input_length": 700, "output_length": 8},
]


def write(folder: Path, rows: list[dict[str, object]]) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_blocks_of_one_hash_id_are_the_same_tokens(tmp_path: Path) -> None:
    first, second = play(read_trace(write(tmp_path, MOONCAKE)), Shape(workers=2), 0)
    assert (first.prompt, second.prompt) == (1100, 1200)
    assert second.at - first.at == pytest.approx(4.0)
    assert second.cached == 2 * 512


def test_speed_and_limit(tmp_path: Path) -> None:
    path = write(tmp_path, MOONCAKE)
    first, second = play(read_trace(path, speed=4.0), Shape(workers=2), 0)
    assert second.at - first.at == pytest.approx(1.0)
    assert read_trace(path, limit=1).turns == 1


def test_agents_pause_fork_and_go_on_from_their_answers(tmp_path: Path) -> None:
    lead, sub, again = play(read_trace(write(tmp_path, AGENT)), Shape(workers=1), 0)
    assert (lead.session, sub.session, again.session) == ("a", "a/sub", "a")
    assert sub.at == pytest.approx(lead.at + lead.ended_s)
    assert again.at == pytest.approx(sub.at + sub.ended_s + 0.5)
    assert again.prompt == 700
    assert again.cached == (600 + 7) // 16 * 16


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"input_length": 0}, "line 3: Expected `int` >= 1 - at `$.input_length`"),
        ({"output_length": None}, "`$.output_length`"),
        ({"input_length": 10**11}, "line 3: Expected `int` <= 16777216 - at `$.input_length`"),
        ({"timestamp": 1764435570000}, "line 3: Expected `float` <= 2678400000.0 - at `$.timestamp`"),
        ({"delay": 1e300}, "line 3: Expected `float` <= 2678400000.0 - at `$.delay`"),
        ({"input_length": 300}, "line 3: input_length: the session's context has 608 tokens already"),
        ({"session_id": "b", "parent_session_id": "c"}, "line 3: parent_session_id: no line before has"),
        ({"session_id": "b"}, "line 3: timestamp: missing"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, change: dict[str, object], told: str) -> None:
    path = write(tmp_path, [*AGENT[:2], AGENT[2] | change])
    with pytest.raises(RequestError, match=r"line 3") as caught:
        read_trace(path)
    assert told in caught.value.message
    assert caught.value.field == "trace"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--trace", "nowhere.jsonl"], "nowhere.jsonl: No such file"),
        (["--policy", "kv,magic"], "--policy: 'magic' is none; known: kv, kv_dynamo"),
        (["--workers", "0"], "--workers: 0; at least 1"),
        (["--speed", "0"], "--speed: 0; it must be above 0"),
        (["--blocks", "0"], "at `$.blocks`"),
        (["--preset", "fast"], "unknown preset 'fast'"),
    ],
)
def test_wrong_flags_are_misuse(capsys: pytest.CaptureFixture[str], arguments: list[str], told: str) -> None:
    assert main(["simulate", *arguments]) == 2
    assert told in capsys.readouterr().err


def test_json_says_how_it_was_made(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trace = write(tmp_path, AGENT)
    picture = tmp_path / "plot.png"
    arguments = ["--trace", str(trace), "--workers", "2", "--policy", "kv,random", "--plot", str(picture)]
    assert main(["simulate", *arguments, "-o", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert list(report["policies"]) == ["kv", "random"]
    assert report["policies"]["kv"]["summary"]["turns"] == 3
    assert picture.read_bytes().startswith(b"\x89PNG")
    command = shlex.split(report["made_with"])
    assert command[:2] == ["catenary", "simulate"]
    assert main([*command[1:], "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == report


def test_a_line_may_name_the_tool_that_ran(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [AGENT[0], AGENT[2] | {"tool": "search"}, AGENT[2] | {"tool": ""}]
    (session,) = read_trace(write(tmp_path, [*rows[:2], rows[2] | {"input_length": 800}])).sessions
    assert [session.call_after(number) for number in range(3)] == [("search",), (), ()]
    assert session.has_tools


def test_retention_is_compared_in_rows_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["fork", "--sessions", "2", "--workers", "1", "--policy", "kv,random", "--retention", "both"]
    assert main(["simulate", *arguments, "--runs", "2"]) == 0
    _, *rows = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows] == ["kv", "kv-untold", "random", "random-untold"]


def test_the_table_has_a_row_for_each_policy(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "fork", "--sessions", "2", "--workers", "2", "--policy", "kv,direct"]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split()[0] == "policy"
    assert [row.split()[0] for row in rows] == ["kv", "direct"]
