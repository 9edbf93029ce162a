"""`catenary config`: what holds and why (`show`), what there is (`docs`), whether a file is right (`validate`)."""

import argparse
import dataclasses
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
from catenary_runtime.bus import redact
from catenary_runtime.config import ConfigError, allowed, load
from catenary_runtime.hub import is_hub_id
from catenary_runtime.tls import server_tls
from catenary_worker.engines.base import engine_for
from catenary_worker.settings import WorkerSettings

from catenary_cli.options import Flags, Options, resolve
from catenary_cli.sections import SECTIONS
from catenary_cli.welcome import columns

ABOUT = "Show settings and their origins, document them, or check a file."
EXAMPLE = "catenary config show --config catenary.toml"


def add(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    parser.add_argument(
        "what",
        choices=("show", "docs", "validate"),
        metavar="show|docs|validate",
        help="show values, document all, or check the file",
    )
    parser.add_argument(
        "--config", default="", help="catenary.toml to read (env CATENARY_CONFIG; default ./catenary.toml)"
    )
    parser.add_argument(
        "-o", "--output", choices=("table", "json"), default="table", help="how to print `show` (table)"
    )


def run(args: argparse.Namespace) -> int:
    """Do what was asked; a wrong setting is an error that names it."""
    if args.what == "docs":
        print(docs(), end="")
        return 0
    rows = list(_values(args.config, os.environ))
    options = resolve(Flags(config=args.config))
    if args.what == "validate":
        check(options)
    if args.what == "show" and args.output == "json":
        settings = {name: {"value": value, "origin": origin} for name, value, origin in rows}
        print(msgspec.json.format(msgspec.json.encode({"settings": settings, "models": options.models})).decode())
    elif args.what == "show":
        print("\n".join(columns([("setting", "value", "origin"), *rows], indent="")))
        for model in options.models:
            print(f"model {model.name}: {model.engine} x {model.workers} {model.options or ''}".rstrip())
    else:
        models = len(options.models)
        print(f"{len(rows)} settings and {models} model{'s' * (models != 1)} are fine")
    return 0


def check(options: Options, environ: Mapping[str, str] = os.environ) -> None:
    """What can be known before anything starts. Raises `CatenaryError`.

    That is every table, the APIs' certificate, and every model's engine, formats and place.
    """
    for _ in _values(options.flags.config, environ):
        pass
    server_tls(options.tls_cert, options.tls_key)
    of_worker = {field.name: field for field in dataclasses.fields(WorkerSettings)}
    for model in options.models:
        engine_for(model.engine)
        if model.path and not Path(model.path).exists() and not is_hub_id(model.path):
            raise ConfigError(f"model {model.name!r}: nothing is at {model.path}", field="models.path")
        for key in ("parser", "reasoning"):
            if value := getattr(model, key):
                allowed(value, of_worker[key], f"model {model.name!r}: {key}")


def _values(config: str, environ: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    for section, kind in SECTIONS.items():
        loaded = load(kind, section, [f"--config={config}"] if config else [], environ)
        for field in _own_fields(section):
            value = getattr(loaded.settings, field.name)
            yield f"{section}.{field.name}", _shown(value, secret=field.metadata["secret"]), loaded.origins[field.name]


def _shown(value: object, *, secret: bool) -> str:
    """A URL without its password; of other secrets only whether there are any."""
    if secret:
        return (
            redact(value) if isinstance(value, str) else f"({len(value)} hidden)" if isinstance(value, tuple) else "***"
        )
    return str(value)


def docs() -> str:
    """Every setting as Markdown, from the settings classes."""
    lines = [
        "# Settings",
        "",
        "A flag stands over the environment, that over `catenary.toml`, that over the default. `[mesh]` holds what",
        "every service takes; the same keys may stand in a service's own table. An unknown key is an error.",
        "",
    ]
    for section, kind in SECTIONS.items():
        about = "Every service." if section == "mesh" else (kind.__doc__ or "").splitlines()[0]
        lines += [
            f"## [{section}]",
            "",
            about,
            "",
            "| key | flag | environment | default | what |",
            "| --- | --- | --- | --- | --- |",
        ]
        for field in _own_fields(section):
            name = f"CATENARY_{field.name}" if section == "mesh" else f"CATENARY_{section}_{field.name}"
            flag = "--" + field.name.replace("_", "-")
            lines.append(
                f"| `{field.name}` | `{flag}` | `{name.upper()}` | `{field.default!r}` | {field.metadata['about']} |"
            )
        lines.append("")
    return "\n".join(lines)


def _own_fields(section: str) -> list[dataclasses.Field[object]]:
    common = {field.name for field in dataclasses.fields(SECTIONS["mesh"])}
    return [field for field in dataclasses.fields(SECTIONS[section]) if section == "mesh" or field.name not in common]
