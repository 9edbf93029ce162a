"""`tools.toml`: which tools this mesh runs, and how. A wrong file is refused whole, with the place named.

RegistryError(field, message)

    [[tools]]
    name = "disk_usage"
    description = "Free space of a file system."
    command = ["df", "-h"]                     # argv, never a shell; or: python = "package.module:callable"; or: url
    timeout_s = 5
    schema = { type = "object", properties = {}, additionalProperties = false }   # or: schema = "disk_usage.json"

    [[mcp]]
    name = "files"                             # its tools are found when it starts, and offered as files_<name>
    command = ["files-server", "/srv/data"]    # or: url
"""

import json
import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from catenary_tool_dispatch.arguments import ArgumentCheck, SchemaRefusedError
from catenary_tool_dispatch.specs import McpSpec, Registry, RegistryError, Tool, ToolSpec, check_way

__all__ = ["DEMO", "RegistryError", "load", "read"]

DEMO = Path(__file__).with_name("tools.toml")
S = TypeVar("S", ToolSpec, McpSpec)


def load(path: Path = DEMO) -> dict[str, Tool]:
    """The tools that a registry file names itself; raises `RegistryError`."""
    return dict(read(path).tools)


def read(path: Path) -> Registry:
    """Everything that a registry file says; raises `RegistryError`."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise RegistryError(f"{path}: {error}", field="registry") from error
    try:
        return _registry(document, path.parent)
    except RegistryError as error:
        raise RegistryError(f"{path}: {error.message}", field=error.field) from error


def _registry(document: dict[str, Any], folder: Path) -> Registry:
    _refuse_unknown(document, ("tools", "mcp"), "")
    tools: dict[str, Tool] = {}
    for where, row in _rows(document, "tools"):
        tool = _read_tool(row, where, folder)
        _add(tools, tool.spec.name, tool, where)
    servers: dict[str, McpSpec] = {}
    for where, row in _rows(document, "mcp"):
        server = _convert(row, McpSpec, where)
        check_way(server, ("command", "url"), where)
        _add(servers, server.name, server, where)
    return Registry(tools, servers)


def _rows(document: dict[str, Any], key: str) -> list[tuple[str, object]]:
    rows = document.get(key, [])
    if not isinstance(rows, list):
        raise RegistryError(f"{key} must be tables [[{key}]]", field=key)
    return [(f"{key}[{index}]", row) for index, row in enumerate(rows)]


def _add(to: dict[str, Any], name: str, value: object, where: str) -> None:
    if name in to:
        raise RegistryError(f"{where}: {name!r} stands twice", field=f"{where}.name")
    to[name] = value


def _read_tool(row: object, where: str, folder: Path) -> Tool:
    if isinstance(row, dict) and isinstance(row.get("schema"), str):
        row = row | {"schema": _read_schema(folder / row["schema"], f"{where}.schema")}
    spec = _convert(row, ToolSpec, where)
    check_way(spec, ("python", "command", "url"), where)
    try:
        return Tool(spec, ArgumentCheck(spec.schema))
    except SchemaRefusedError as error:
        raise RegistryError(f"{where}: {error.message}", field=f"{where}.schema") from error


def _convert(row: object, kind: type[S], where: str) -> S:
    if not isinstance(row, dict):
        raise RegistryError(f"{where} must be a table", field=where)
    _refuse_unknown(row, kind.__struct_fields__, f"{where}.")
    try:
        return msgspec.convert(row, kind)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$.")
        raise RegistryError(f"{where}: {message}", field=f"{where}.{path.rstrip('`')}" if path else where) from error


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
