"""`[[models]]` of `catenary.toml`: which models a mesh serves, from where, with which engine, on how many workers.

[[models]]
name = "m"
path = "models/m"               # a model directory, GGUF file or hub id; left out: the embedded default
engine = "sim"
workers = 4
sim = { preset = "dynamo", time_scale = 1.0, blocks = 8192, block_size = 16 }   # options of that engine, by its name
"""

import difflib
from collections.abc import Iterable
from typing import Annotated, Any

import msgspec
from catenary_runtime.config import ConfigError

EMBEDDED = "catenary-sim"


class Model(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry.

    Attributes:
        path: model directory, GGUF file or hub id; "" is the embedded default.
        parser, reasoning: format names; "" detects them.
        context: tokens; 0 leaves it to the model.
        options: of the engine.
    """

    name: Annotated[str, msgspec.Meta(min_length=1)] = EMBEDDED
    path: str = ""
    engine: Annotated[str, msgspec.Meta(min_length=1)] = "sim"
    workers: Annotated[int, msgspec.Meta(ge=1, le=256)] = 2
    parser: str = ""
    reasoning: str = ""
    context: Annotated[int, msgspec.Meta(ge=0)] = 0
    options: dict[str, Any] = {}


def read_models(rows: object, where: str) -> list[Model]:
    """The entries of the file; raises `ConfigError` that names the key."""
    if not isinstance(rows, list):
        raise ConfigError(f"{where}: models must be tables [[models]]", field="models")
    models = [_read(row, f"{where}: models[{index}]") for index, row in enumerate(rows)]
    names = [model.name for model in models]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{where}: model {name!r} stands twice in [[models]]", field="models.name")
    return models


def _read(row: object, where: str) -> Model:
    if not isinstance(row, dict):
        raise ConfigError(f"{where} must be a table", field=where)
    engine = row.get("engine", "sim")
    known = [name for name in Model.__struct_fields__ if name != "options"]
    for key in row:
        if key not in known and key != engine:
            raise ConfigError(f"{where}: unknown key `{key}`{_suggest(key, [*known, str(engine)])}", field=key)
    options = row.get(engine, {})
    try:
        return msgspec.convert({**{key: row[key] for key in row if key != engine}, "options": options}, Model)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {str(error).replace('$.options', f'$.{engine}')}", field=where) from error


def _suggest(key: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(key, list(known), n=1)
    return f"; did you mean `{close[0]}`?" if close else ""
