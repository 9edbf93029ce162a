"""What a mesh is made from: the model table, the sources of settings, and what wrong input is told."""

import fcntl
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from catenary_cli.__main__ import COMMANDS, main
from catenary_cli.broker import Broker, claim
from catenary_cli.models import EMBEDDED, Model, read_models
from catenary_cli.options import Flags, resolve
from catenary_cli.plan import plan_services
from catenary_cli.processes import LaunchError
from catenary_protocols.bus.subjects import SERVICES, Subjects
from catenary_runtime.config import ConfigError

FILE = """
[[models]]
name = "m"
path = "models/m"
workers = 4
sim = { preset = "dynamo", time_scale = 1.0, blocks = 8192, block_size = 16 }

[[models]]
name = "org/other"
engine = "llamacpp"
llamacpp = { threads = 2 }
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "catenary.toml"
    path.write_text(FILE)
    return path


def test_models_of_the_file(file: Path) -> None:
    first, second = resolve(Flags(config=str(file)), {}).models
    assert first == Model(
        name="m",
        path="models/m",
        workers=4,
        options={"preset": "dynamo", "time_scale": 1.0, "blocks": 8192, "block_size": 16},
    )
    assert (second.engine, second.workers, second.options) == ("llamacpp", 2, {"threads": 2})


def test_flags_stand_over_the_file(file: Path) -> None:
    first, second = resolve(Flags(config=str(file), workers=1, time_scale=0.0), {}).models
    assert (first.workers, first.options["time_scale"], first.options["blocks"]) == (1, 0.0, 8192)
    assert second.options == {"threads": 2}


def test_a_model_on_the_command_line_is_served_alone(file: Path, tmp_path: Path) -> None:
    gguf, directory = tmp_path / "tiny-Q4.gguf", tmp_path / "qwen"
    gguf.touch()
    directory.mkdir()
    (alone,) = resolve(Flags(config=str(file), model=str(gguf)), {}).models
    assert alone == Model(name="tiny-Q4", path=str(gguf), engine="llamacpp", workers=1)
    (beside,) = resolve(Flags(model=str(gguf), model_path=str(directory), workers=2), {}).models
    assert (beside.path, beside.options, beside.workers) == (str(directory), {"gguf": str(gguf)}, 2)
    (plain,) = resolve(Flags(model=str(directory), engine="trtllm"), {}).models
    assert (plain.name, plain.path, plain.engine) == ("qwen", str(directory), "trtllm")


def test_a_model_that_is_not_there_is_named(tmp_path: Path) -> None:
    for flags, field in (
        (Flags(model=str(tmp_path / "m.gguf")), "model"),
        (Flags(model_path=str(tmp_path / "m")), "model_path"),
        (Flags(model=str(tmp_path), model_path=str(tmp_path)), "model_path"),
    ):
        with pytest.raises(ConfigError) as caught:
            resolve(flags, {})
        assert caught.value.field == field


def test_without_a_file_the_embedded_model_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = resolve(Flags(), {})
    assert [model.name for model in options.models] == [EMBEDDED]
    assert (options.port, options.host, options.broker) == (8000, "127.0.0.1", "")
    assert set(options.tools) == {"get_weather", "calculator", "current_time"}


def test_an_external_broker_may_be_named_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve(Flags(nats="nats://a:1"), {"CATENARY_NATS": "nats://b:2"}).broker == "nats://a:1"
    assert resolve(Flags(), {"CATENARY_NATS": "nats://b:2"}).broker == "nats://b:2"
    (tmp_path / "catenary.toml").write_text('[mesh]\nnats = "nats://c:3"\n')
    assert resolve(Flags(), {}).broker == "nats://c:3"


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"name": "m", "worker": 2}, "did you mean `workers`"),
        ({"name": "m", "workers": 0}, "workers"),
        ({"name": "m", "workers": "2"}, "workers"),
        ({"name": ""}, "name"),
        ({"name": "m", "sim": 3}, "$.sim"),
        ({"name": "m", "engine": "sim", "llamacpp": {}}, "unknown key `llamacpp`"),
        ("m", "must be a table"),
    ],
)
def test_a_wrong_model_entry_is_named(row: object, says: str) -> None:
    with pytest.raises(ConfigError, match="models") as error:
        read_models([row], "catenary.toml")
    assert says in error.value.message


def test_a_name_may_stand_once() -> None:
    with pytest.raises(ConfigError, match="twice"):
        read_models([{"name": "m"}, {"name": "m"}], "catenary.toml")


def test_the_plan_names_every_process_once_and_hides_the_password(file: Path) -> None:
    options = resolve(Flags(config=str(file), port=0, sim_script=True), {})
    plans = plan_services(options, lambda service: f"nats://{service}:secret@127.0.0.1:1", 1234)
    assert [plan.service for plan in plans] == [
        *("frontend", "tokenizer", "router", "kv-indexer", "tool-dispatch"),
        *["worker"] * 6,
    ]
    assert len({plan.instance for plan in plans}) == len({plan.url for plan in plans}) == len(plans)
    assert not any("secret" in word for plan in plans for word in plan.command)
    assert all(plan.environment["CATENARY_NATS"] == f"nats://{plan.service}:secret@127.0.0.1:1" for plan in plans)
    assert "--sim-script=true" in plans[-1].command
    engine_options = next(word for word in plans[-1].command if word.startswith("--engine-options="))
    assert json.loads(engine_options.partition("=")[2]) == {"threads": 2}


def test_passwords_are_this_users_alone_and_stay(tmp_path: Path) -> None:
    first, second = Broker.at(tmp_path / "nats", 0), Broker.at(tmp_path / "nats", 0)
    first.plan(Subjects())
    assert first.passwords == second.passwords
    assert len(set(first.passwords.values())) == len(SERVICES) + 1
    assert first.url("router") == f"nats://router:{first.passwords['router']}@127.0.0.1:{first.port}"
    for name in ("passwords.json", "nats.conf"):
        assert stat.S_IMODE((tmp_path / "nats" / name).stat().st_mode) == 0o600


def test_a_taken_port_is_said() -> None:
    import socket

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(LaunchError, match="in use"):
            claim("127.0.0.1", other.getsockname()[1])
    with pytest.raises(LaunchError, match="65535"):
        claim("127.0.0.1", 99999)


def test_a_data_directory_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["up", "--port", "0", "--data-dir", str(tmp_path / "file" / "data")]) == 2
    assert "choose another with --data-dir" in capsys.readouterr().err


def test_a_data_directory_has_one_mesh(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert main(["up", "--port", "0", "--data-dir", str(tmp_path)]) == 1
    assert "--data-dir" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["upp"], "did you mean `up`"),
        (["up", "--worker", "2"], "did you mean `--workers`"),
        (["up", "--workers", "two"], "--workers"),
        (["config", "shwo"], "did you mean `show`"),
        (["config"], "required: show|docs|validate; `catenary config --help` tells of it"),
        ([], "required: COMMAND; `catenary --help` tells of it"),
        (["tops"], "did you mean `top`"),
        (["top", "--onec"], "did you mean `--once`"),
        (["trace", "-o", "jsn"], "did you mean `json`"),
        ([], "COMMAND"),
    ],
)
def test_a_misspelt_command_line_is_answered_with_what_was_meant(
    argv: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example_that_can_be_parsed(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert f"example: catenary {command}" in " ".join(said.split())


@pytest.mark.parametrize("argv", [["config", "docs"], ["keys", "new"]])
def test_a_reader_that_has_had_enough_is_no_traceback(argv: list[str]) -> None:
    """Whether the text is longer than the buffer or not."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "catenary_cli", *argv]
    with open(writing, "wb") as out:  # noqa: PTH123  # a descriptor
        done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "Error" not in done.stderr
    assert "Traceback" not in done.stderr


def test_config_show_tells_origins_and_hides_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "catenary.toml"
    path.write_text("[frontend]\nport = 9001\n")
    monkeypatch.setenv("CATENARY_NATS", "nats://user:secret@host:4222")
    assert main(["config", "show", "--config", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "secret" not in shown
    assert [line.split() for line in shown.splitlines() if line.startswith("frontend.port")] == [
        ["frontend.port", "9001", str(path)]
    ]
    assert "CATENARY_NATS" in shown
    assert main(["config", "show", "--config", str(path), "-o", "json"]) == 0
    told = capsys.readouterr().out
    assert "secret" not in told
    assert json.loads(told)["settings"]["frontend.port"] == {"value": "9001", "origin": str(path)}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[frontend]\nprot = 9001\n", "unknown key `prot` in [frontend]; did you mean `port`?"),
        ("[frontend]\nport = 99999\n", "[frontend] port: 99999 is not from 0 to 65535"),
        ("[router]\npolicyy = 'kv'\n", "unknown key `policyy` in [router]; did you mean `policy`?"),
        ("frontend = 3\n", "`frontend` must be a table [frontend]"),
        ("[[models]]\nengine = 'nosuch'\n", "unknown engine 'nosuch'; installed: "),
        ("[[models]]\nname = 'm'\npath = '/no/such'\n", "model 'm': nothing is at /no/such"),
        ("[[models]]\nname = 'm'\nparser = 'nosuch'\n", "model 'm': parser: unknown format 'nosuch'; known: "),
        ("[[models]]\nname = 'm'\nreasoning = 'no'\n", "model 'm': reasoning: unknown style of thinking 'no'; known: "),
        ("[worker]\nparser = 'nosuch'\n", "catenary.toml: [worker] parser: unknown format 'nosuch'; known: "),
        (
            "[worker]\nengine_options = '[1]'\n",
            "[worker] engine_options: not a JSON object: Expected `object`",
        ),
        ("[router]\npolicy = 'fair'\n", "catenary.toml: [router] policy: unknown policy 'fair'; known: direct, kv, "),
        ("[frontend]\naliases = ['gpt']\n", "catenary.toml: [frontend] aliases: 'gpt' is not name=model"),
        ("[frontend]\napi_keys = ['sesame']\n", "catenary.toml: [frontend] api_keys: an entry is no hash of a key"),
        ("[frontend]\nkeys_file = 'no.toml'\n", "keys_file: [Errno 2] No such file or directory: 'no.toml'"),
        ("[frontend]\nkeys_file = 'catenary.toml'\n", "keys_file: Object contains unknown field `frontend`"),
        ("[frontend]\ntls_cert = 'no.pem'\n", "tls_cert, tls_key (no.pem, ): [Errno 2] No such file or directory"),
        ("[tokenizer]\nvolatile = ['(']\n", "catenary.toml: [tokenizer] volatile: '(' is no regular expression: "),
        (
            "[tokenizer]\nmoved_along = ['[']\n",
            "catenary.toml: [tokenizer] moved_along: '[' is no regular expression: ",
        ),
        ("[mesh]\nnamespace = 'a b'\n", "catenary.toml: [mesh] namespace: 'a b' is not letters, digits, "),
    ],
)
def test_what_is_wrong_in_the_file_is_told_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("catenary.toml").write_text(text)
    for command in (["config", "validate"], ["up", "--port", "0", "--data-dir", "mesh"]):
        assert main(command) == 2
        told = capsys.readouterr().err
        assert says in told
        assert told.startswith("catenary: ")
        assert told.count("\n") == 1
    assert not Path("mesh").exists()
