"""Settings: a frozen dataclass per service; flag > environment > `catenary.toml` > default; each value has an origin.

A field becomes `--field-name`, `CATENARY_<SECTION>_<FIELD>` (or `CATENARY_<FIELD>`), and `field` in the table
`[<section>]` (or `[mesh]`) of the file. A key nobody knows is an error with a suggestion.
"""

import argparse
import dataclasses
import difflib
import math
import os
import re
import tomllib
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from catenary_protocols.bus.subjects import DEFAULT_NAMESPACE
from catenary_protocols.errors import CatenaryError

S = TypeVar("S", bound="Settings")
SECTIONS = ("mesh", "frontend", "tokenizer", "router", "kv_indexer", "worker", "tool_dispatch", "models")
FILE = "catenary.toml"


class ConfigError(CatenaryError):
    """A setting is unknown or has a wrong value; the message names it and where it stands."""

    default_code = "invalid_value"


def option(
    default: Any,
    about: str,
    *,
    secret: bool = False,
    among: Sequence[Any] = (),
    positive: bool = False,
    check: Callable[[Any], object] | None = None,
) -> Any:
    """A field of a settings class: its default, one sentence about it, and which values it may have.

    Words `among` others are taken in any case. `check` raises a `LookupError`, `OSError` or `ValueError` that says what
    is wrong.
    """
    more = {"secret": secret, "among": among, "positive": positive, "check": check}
    return dataclasses.field(default=default, metadata={"about": about, **more})


PORTS = range(1 << 16)
_NAMESPACE = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
"""Its tokens begin subjects, and with dashes between them they are part of the names of streams and buckets."""


def _check_namespace(text: str) -> None:
    if not _NAMESPACE.fullmatch(text):
        raise ValueError(f"{text!r} is not letters, digits, `-` and `_`, with dots between them")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What every service takes."""

    nats: str = option("nats://127.0.0.1:4222", "Broker URL(s), comma-separated; may hold credentials.", secret=True)
    nats_ca: str = option("", "Authorities that vouch for the broker (PEM); left out with tls://: the system's.")
    nats_cert: str = option("", "Certificate to show the broker (PEM).")
    nats_key: str = option("", "Key of that certificate (PEM).")
    namespace: str = option(
        DEFAULT_NAMESPACE,
        "First tokens of every subject; meshes with different ones share a broker.",
        check=_check_namespace,
    )
    instance: str = option("", "Name of this instance; made up when left out.")
    host: str = option("127.0.0.1", "Address to bind HTTP to.")
    admin_port: int = option(0, "Port of /health, /ready and /metrics; 0 picks a free one.", among=PORTS)
    data_dir: str = option(".data", "Where files that outlive a restart are kept.")
    log_level: str = option("info", "debug, info, warning or error.", among=("debug", "info", "warning", "error"))
    beat_s: float = option(0.25, "Seconds between beats.", positive=True)
    death_limit_s: float = option(1.5, "Seconds of silence after which a neighbour is taken for dead.", positive=True)
    drain_s: float = option(20.0, "Seconds to finish what runs when asked to stop.")


@dataclasses.dataclass(frozen=True, slots=True)
class Loaded(typing.Generic[S]):
    """Settings and where each came from: `flag`, an environment variable's name, a file's path, or `default`."""

    settings: S
    origins: Mapping[str, str]


def load(kind: type[S], section: str, argv: Sequence[str] = (), environ: Mapping[str, str] = os.environ) -> Loaded[S]:
    """Read the settings of one service; raises `ConfigError`."""
    fields = {field.name: field for field in dataclasses.fields(kind)}
    hints = typing.get_type_hints(kind)
    flags, file = _flags(kind, section, argv)
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    path, tables = read_file(file or environ.get("CATENARY_CONFIG", ""))
    for table in ("mesh", section):
        for key, value in tables.get(table, {}).items():
            if key not in fields:
                raise ConfigError(f"{path}: unknown key `{key}` in [{table}]{_suggest(key, fields)}", field=key)
            where = f"{path}: [{table}] {key}"
            values[key], origins[key] = allowed(_checked(value, hints[key], where), fields[key], where), str(path)
    for key, field in fields.items():
        for name in (f"CATENARY_{key}".upper(), f"CATENARY_{section}_{key}".upper()):
            if name in environ:
                values[key], origins[key] = allowed(_parsed(environ[name], hints[key], name), field, name), name
    for key, text in flags.items():
        name = "--" + key.replace("_", "-")
        values[key], origins[key] = allowed(_parsed(text, hints[key], name), fields[key], name), "flag"
    settings = kind(**values)
    return Loaded(settings, {key: origins.get(key, "default") for key in fields})


def read_file(named: str = "") -> tuple[Path | None, dict[str, Any]]:
    """The file's tables: the one named, else `catenary.toml` here, else none. Raises `ConfigError`."""
    path = Path(named or FILE)
    if not path.exists():
        if named:
            raise ConfigError(f"{path} does not exist", field="config")
        return None, {}
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", field="config") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}", field="config") from error
    for table, rows in tables.items():
        if table not in SECTIONS:
            raise ConfigError(f"{path}: unknown table [{table}]{_suggest(table, SECTIONS)}", field=table)
        if table != "models" and not isinstance(rows, dict):
            raise ConfigError(f"{path}: `{table}` must be a table [{table}]", field=table)
    return path, tables


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def _flags(kind: type[Settings], section: str, argv: Sequence[str]) -> tuple[dict[str, str], str]:
    parser = _Parser(prog=f"catenary-{section.replace('_', '-')}", allow_abbrev=False, description=kind.__doc__)
    parser.add_argument("--config", default="", help="Path of catenary.toml.")
    names, hints = ["--config"], typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        names.append("--" + field.name.replace("_", "-"))
        shown = "(secret)" if field.metadata["secret"] else repr(field.default)
        about = f"{field.metadata['about']} Default {shown}."
        if hints[field.name] is bool:
            parser.add_argument(names[-1], dest=field.name, nargs="?", const="true", help=about)
        else:
            parser.add_argument(names[-1], dest=field.name, help=about)
    known, unknown = parser.parse_known_args(argv)
    if unknown:
        raise ConfigError(f"unknown argument {unknown[0]}{_suggest(unknown[0], names)}")
    given = {key: value for key, value in vars(known).items() if value is not None}
    return given, given.pop("config")


def _suggest(key: str, known: typing.Iterable[str]) -> str:
    close = difflib.get_close_matches(key, list(known), n=1)
    return f"; did you mean `{close[0]}`?" if close else ""


def _parsed(text: str, kind: Any, where: str) -> Any:
    """A value from text: a flag's or an environment variable's."""
    if kind is bool:
        if text.lower() in {"1", "true", "yes", "on"}:
            return True
        if text.lower() in {"0", "false", "no", "off"}:
            return False
    elif kind is str:
        return text
    elif typing.get_origin(kind) is tuple:
        return tuple(part for part in text.split(",") if part)
    else:
        try:
            number = _plain(kind)(text)
        except ValueError:
            pass
        else:
            return _counted(number, where)
    raise ConfigError(f"{where}: {text!r} is not {_said(kind)}", field=where)


def _checked(value: Any, kind: Any, where: str) -> Any:
    """A value from the file."""
    if typing.get_origin(kind) is tuple:
        if isinstance(value, list) and all(isinstance(one, str) for one in value):
            return tuple(value)
    elif type(value) is _plain(kind):
        return value if isinstance(value, str | bool) else _counted(value, where)
    elif _plain(kind) is float and type(value) is int:
        return _counted(float(value), where)
    raise ConfigError(f"{where}: {value!r} is not {_said(kind)}", field=where)


def _counted(number: Any, where: str) -> Any:
    """Seconds, bytes, ports, instances: no setting is below nothing."""
    if number == math.inf:
        raise ConfigError(f"{where}: {number} is not finite", field=where)
    if number >= 0:
        return number
    raise ConfigError(f"{where}: {number} is not 0 or more", field=where)


def allowed(value: Any, field: "dataclasses.Field[Any]", where: str) -> Any:
    """The value, if the field may have it; raises `ConfigError` that begins with `where` it stands."""
    among, check = field.metadata["among"], field.metadata["check"]
    if among and isinstance(value, str):
        value = value.lower()
    if among and value not in among:
        known = f"from {among[0]} to {among[-1]}" if isinstance(among, range) else f"one of {', '.join(among)}"
        raise ConfigError(f"{where}: {value!r} is not {known}", field=where)
    if field.metadata["positive"] and not value:
        raise ConfigError(f"{where}: {value!r} is not more than 0", field=where)
    if check is not None:
        try:
            check(value)
        except (LookupError, OSError, ValueError) as error:
            raise ConfigError(f"{where}: {error}", field=where) from error
    return value


def _plain(kind: Any) -> Any:
    if isinstance(kind, types.UnionType):
        return next(one for one in typing.get_args(kind) if one is not type(None))
    return kind


def _said(kind: Any) -> str:
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
    return words.get(_plain(kind), "a list of texts")
