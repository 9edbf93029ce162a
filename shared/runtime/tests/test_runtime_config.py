"""Settings: flag over environment over file over default; each value knows its origin; unknown keys have suggestions."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from catenary_runtime.config import ConfigError, Loaded, Settings, load, option


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSettings(Settings):
    """Settings of a probe."""

    size: int = option(3, "How large.")
    share: float = option(0.5, "How much.")
    loud: bool = option(False, "Whether it shouts.")
    names: tuple[str, ...] = option((), "Who.")
    limit: int | None = option(None, "At most.")
    tone: str = option("low", "How it sounds.", among=("low", "high"))
    pause_s: float = option(1.0, "Between two words.", positive=True)
    shape: str = option("7", "A number, as a text.", check=int)


def read(*argv: str, file: str = "", environ: dict[str, str] | None = None) -> Loaded[ProbeSettings]:
    return load(ProbeSettings, "worker", [*argv, *(["--config", file] if file else [])], environ or {})


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No `catenary.toml` of whoever runs the tests."""
    monkeypatch.chdir(tmp_path)


def written(text: str) -> str:
    Path("my.toml").write_text(text, encoding="utf-8")
    return "my.toml"


def test_without_anything_all_is_default() -> None:
    loaded = read()
    assert loaded.settings == ProbeSettings()
    assert set(loaded.origins.values()) == {"default"}


def test_the_nearest_source_wins_and_is_named() -> None:
    file = written("[mesh]\nsize = 4\nshare = 1\nhost = '::1'\n[worker]\nsize = 5\n[router]\nanything = 1\n")
    assert read(file=file).settings.size == 5
    environ = {"CATENARY_SIZE": "6", "CATENARY_WORKER_SIZE": "7", "CATENARY_ROUTER_SIZE": "8"}
    loaded = read(file=file, environ=environ)
    assert loaded.settings.size == 7
    assert loaded.origins["size"] == "CATENARY_WORKER_SIZE"
    loaded = read("--size", "9", file=file, environ=environ)
    assert (loaded.settings.size, loaded.origins["size"]) == (9, "flag")
    assert (loaded.settings.share, loaded.origins["share"]) == (1.0, "my.toml")
    assert (loaded.settings.host, loaded.origins["host"]) == ("::1", "my.toml")
    assert loaded.origins["nats"] == "default"


def test_the_file_here_is_read_unless_another_one_is_named() -> None:
    Path("catenary.toml").write_text("[worker]\nsize = 11\n", encoding="utf-8")
    other = written("[worker]\nsize = 12\n")
    assert read().settings.size == 11
    assert read(file=other).settings.size == 12
    assert read(environ={"CATENARY_CONFIG": other}).settings.size == 12


@pytest.mark.parametrize(
    ("argv", "settings"),
    [
        (["--loud"], ProbeSettings(loud=True)),
        (["--loud", "--size", "4"], ProbeSettings(loud=True, size=4)),
        (["--loud", "off"], ProbeSettings(loud=False)),
        (["--names", "a,b,"], ProbeSettings(names=("a", "b"))),
        (["--limit", "4"], ProbeSettings(limit=4)),
        (["--share=0.25"], ProbeSettings(share=0.25)),
        (["--death-limit-s", "3"], ProbeSettings(death_limit_s=3.0)),
        (["--log-level=WARNING", "--tone=High"], ProbeSettings(log_level="warning", tone="high")),
        (["--namespace=acme.mesh-2.v_1"], ProbeSettings(namespace="acme.mesh-2.v_1")),
        (["--shape=08"], ProbeSettings(shape="08")),
    ],
)
def test_flags_of_every_kind(argv: list[str], settings: ProbeSettings) -> None:
    assert read(*argv).settings == settings


def test_values_of_every_kind_in_a_file() -> None:
    file = written("[worker]\nsize = 1\nshare = 2\nloud = true\nnames = ['a', 'b']\nlimit = 5\n")
    assert read(file=file).settings == ProbeSettings(size=1, share=2.0, loud=True, names=("a", "b"), limit=5)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--sise", "3"], "unknown argument --sise; did you mean `--size`?"),
        (["--siz", "3"], "unknown argument --siz; did you mean `--size`?"),
        (["--zzzzzz"], "unknown argument --zzzzzz"),
        (["--size", "three"], "--size: 'three' is not a whole number"),
        (["--share", "much"], "--share: 'much' is not a number"),
        (["--size=-1"], "--size: -1 is not 0 or more"),
        (["--share=nan"], "--share: nan is not 0 or more"),
        (["--share=inf"], "--share: inf is not finite"),
        (["--tone=shrill"], "--tone: 'shrill' is not one of low, high"),
        (["--pause-s=0"], "--pause-s: 0.0 is not more than 0"),
        (["--admin-port=65536"], "--admin-port: 65536 is not from 0 to 65535"),
        (["--log-level=loud"], "--log-level: 'loud' is not one of debug, info, warning, error"),
        (
            ["--namespace=acme mesh"],
            "--namespace: 'acme mesh' is not letters, digits, `-` and `_`, with dots between them",
        ),
        (["--namespace=acme.*"], "--namespace: 'acme.*' is not letters, digits, `-` and `_`, with dots between them"),
        (["--namespace=acme."], "--namespace: 'acme.' is not letters, digits, `-` and `_`, with dots between them"),
        (["--shape=round"], "--shape: invalid literal for int() with base 10: 'round'"),
        (["--config", "."], ". cannot be read: Is a directory"),
        (["--loud", "maybe"], "--loud: 'maybe' is not true or false"),
        (["--config", "absent.toml"], "absent.toml does not exist"),
        (["--size"], "argument --size: expected one argument"),
    ],
)
def test_a_wrong_flag_is_named(argv: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(*argv)
    assert caught.value.message == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "[worker]\nshape = 'round'\n",
            "my.toml: [worker] shape: invalid literal for int() with base 10: 'round'",
        ),
        ("[worker]\nsise = 3\n", "my.toml: unknown key `sise` in [worker]; did you mean `size`?"),
        ("[mesh]\nnamespaces = 'x'\n", "my.toml: unknown key `namespaces` in [mesh]; did you mean `namespace`?"),
        ("[workers]\n", "my.toml: unknown table [workers]; did you mean `worker`?"),
        ("[worker]\nsize = '3'\n", "my.toml: [worker] size: '3' is not a whole number"),
        ("[worker]\nsize = true\n", "my.toml: [worker] size: True is not a whole number"),
        ("[worker]\nshare = -1\n", "my.toml: [worker] share: -1.0 is not 0 or more"),
        ("[worker]\nshare = inf\n", "my.toml: [worker] share: inf is not finite"),
        ("[mesh]\nbeat_s = 0\n", "my.toml: [mesh] beat_s: 0.0 is not more than 0"),
        ("[mesh]\nadmin_port = 70000\n", "my.toml: [mesh] admin_port: 70000 is not from 0 to 65535"),
        ("worker = 3\n", "my.toml: `worker` must be a table [worker]"),
        ("[[mesh]]\n", "my.toml: `mesh` must be a table [mesh]"),
        ("[worker]\nloud = 1\n", "my.toml: [worker] loud: 1 is not true or false"),
        ("[worker]\nhost = 1\n", "my.toml: [worker] host: 1 is not a text"),
        ("[worker]\nnames = 'a'\n", "my.toml: [worker] names: 'a' is not a list of texts"),
        ("[worker]\nnames = [1]\n", "my.toml: [worker] names: [1] is not a list of texts"),
    ],
)
def test_a_wrong_file_is_named_with_the_place(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(file=written(text))
    assert caught.value.message == said


def test_a_file_that_is_no_toml_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^my\.toml: "):
        read(file=written("size = = 3"))
    Path("my.toml").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"^my\.toml: "):
        read(file="my.toml")


def test_a_wrong_variable_is_named() -> None:
    with pytest.raises(ConfigError, match="CATENARY_SIZE: 'x' is not a whole number"):
        read(environ={"CATENARY_SIZE": "x"})
    with pytest.raises(ConfigError, match="CATENARY_TONE: 'shrill' is not one of low, high"):
        read(environ={"CATENARY_TONE": "shrill"})
    with pytest.raises(ConfigError, match="CATENARY_WORKER_SHAPE: invalid literal"):
        read(environ={"CATENARY_WORKER_SHAPE": "round"})


def test_the_models_table_is_for_the_launcher() -> None:
    assert read(file=written("[[models]]\nname = 'm'\n")).settings == ProbeSettings()


def test_help_names_every_setting_but_shows_no_secret(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read("--help")
    shown = capsys.readouterr().out
    assert "--death-limit-s" in shown
    assert "nats://127.0.0.1" not in shown
