"""`tools.toml`: which tools this mesh runs, and how. A wrong file is refused whole, with the place named.

RegistryError(field, message)

    [[tools]]
    name = "disk_usage"
    description = "Free space of a file system."
    command = ["df", "-h"]                     # argv, never a shell; or: python = "package.module:callable"
    timeout_s = 5
    schema = { type = "object", properties = {}, additionalProperties = false }   # or: schema = "disk_usage.json"
"""

import json
import tomllib
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import msgspec
from catenary_protocols.errors import CatenaryError

from catenary_tool_dispatch.arguments import ArgumentCheck, SchemaRefusedError

DEMO = Path(__file__).with_name("tools.toml")
MAX_OUTPUT_BYTES = 1024 * 1024
"""A result travels in one bus message of 8 MB, and JSON may need six bytes for one."""


class RegistryError(CatenaryError):
    """The registry file is wrong at `field`."""

    default_code = "invalid_value"


class ToolSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One tool.

    Attributes:
        schema: JSON Schema (draft 2020-12) of the arguments; in the file a table, or the name of a JSON file beside it.
        python: `module:callable`, a function or coroutine function that takes the arguments by keyword.
        command: argv; gets the arguments as JSON on stdin, answers on stdout.
        timeout_s: seconds a run may take.
        max_output_bytes: a longer output is cut there, and marked as truncated.
        concurrency: runs at once in one instance.
        at_most_once: acknowledge before the run: after a crash the call is not run again, and expires.
        approval: wait for a yes on `tool.approve.<tool>.<key>`.
    """

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
    description: str = ""
    schema: dict[str, Any] = {}
    python: str = ""
    command: list[str] = []
    timeout_s: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 30.0
    max_output_bytes: Annotated[int, msgspec.Meta(gt=0, le=MAX_OUTPUT_BYTES)] = 64 * 1024
    concurrency: Annotated[int, msgspec.Meta(gt=0, le=1024)] = 8
    at_most_once: bool = False
    approval: bool = False


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that is ready to be offered: its spec and its compiled argument check."""

    spec: ToolSpec
    check: ArgumentCheck


def load(path: Path = DEMO) -> dict[str, Tool]:
    """The tools of a registry file by name; raises `RegistryError`."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise RegistryError(f"{path}: {error}", field="registry") from error
    _refuse_unknown(document, ("tools",), "")
    rows = document.get("tools", [])
    if not isinstance(rows, list):
        raise RegistryError(f"{path}: tools must be tables [[tools]]", field="tools")
    tools: dict[str, Tool] = {}
    for index, row in enumerate(rows):
        tool = _read(row, f"tools[{index}]", path.parent)
        if tool.spec.name in tools:
            raise RegistryError(f"tool {tool.spec.name!r} stands twice in {path}", field=f"tools[{index}].name")
        tools[tool.spec.name] = tool
    return tools


def _read(row: object, where: str, folder: Path) -> Tool:
    if not isinstance(row, dict):
        raise RegistryError(f"{where} must be a table", field=where)
    _refuse_unknown(row, ToolSpec.__struct_fields__, f"{where}.")
    if isinstance(row.get("schema"), str):
        row = row | {"schema": _read_schema(folder / row["schema"], f"{where}.schema")}
    try:
        spec = msgspec.convert(row, ToolSpec)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$.")
        raise RegistryError(f"{where}: {message}", field=f"{where}.{path.rstrip('`')}" if path else where) from error
    if bool(spec.python) == bool(spec.command):
        raise RegistryError(f"{where}: give one of `python` and `command`", field=where)
    try:
        return Tool(spec, ArgumentCheck(spec.schema))
    except SchemaRefusedError as error:
        raise RegistryError(f"{where}: {error.message}", field=f"{where}.schema") from error


def _read_schema(path: Path, field: str) -> dict[str, Any]:
    try:
        schema = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise RegistryError(f"{field}: {path}: {error}", field=field) from error
    if not isinstance(schema, dict):
        raise RegistryError(f"{field}: {path} holds no JSON object", field=field)
    return schema


def _refuse_unknown(table: dict[str, Any], known: tuple[str, ...], prefix: str) -> None:
    for key in table:
        if key not in known:
            close = get_close_matches(key, known, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(known)}"
            raise RegistryError(f"unknown key {prefix}{key}{hint}", field=f"{prefix}{key}")
