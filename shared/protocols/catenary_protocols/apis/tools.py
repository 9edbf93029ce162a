"""A declared function, in whichever API → a tool of the conversation."""

import re
from itertools import accumulate
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw

from catenary_protocols.apis.json_schema import check_schema
from catenary_protocols.apis.reading import read, wrong
from catenary_protocols.conversation import Tool
from catenary_protocols.wire import Wire

Name = Annotated[str, Meta(min_length=1, max_length=256)]
JsonObject = Annotated[Raw, Meta(extra_json_schema={"type": "object"})]


class ToolSchema(Wire, frozen=True):
    """What must hold for the JSON Schema of a tool's arguments: they are an object."""

    type: Literal["object"] = "object"
    properties: dict[str, dict[str, Any] | bool] = {}
    required: list[str] = []


_schema = msgspec.json.Decoder(ToolSchema)
_object = msgspec.json.Decoder(dict[str, Raw])
DEEPEST = 100
"""Objects and arrays of a schema inside one another: whoever reads one, here or in an engine, goes down it."""
_BETWEEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[^]"[{}]+')
"""What is no bracket of JSON text."""
ANY_OBJECT = '{"type":"object"}'
"""The schema of any JSON object."""


def tool_of(name: str, description: str | None, parameters: Raw, *, strict: bool | None, path: str) -> Tool:
    """The tool; raises `RequestError` that names `path` for a schema that is none. No schema: no arguments.

    Of one that is not strict, no more is asked than that its arguments are an object.
    """
    schema = bytes(parameters)
    if schema in {b"", b"null"}:
        return Tool(name=name, description=description or "", strict=bool(strict))
    read(_schema, schema, within=path)
    _check_depth(schema, path)
    if strict:
        check_schema(schema, path)
    return Tool(name=name, description=description or "", strict=bool(strict), schema=schema.decode())


def schema_text(schema: Raw, path: str) -> str:
    """A JSON Schema as JSON text; raises `RequestError` that names the place under `path` of what is wrong in it."""
    read(_object, bytes(schema), within=path)
    _check_depth(bytes(schema), path)
    check_schema(bytes(schema), path)
    return bytes(schema).decode()


def _check_depth(schema: bytes, path: str) -> None:
    if schema.count(b"{") + schema.count(b"[") <= DEEPEST:
        return
    depths = accumulate(1 if one in b"{[" else -1 for one in _BETWEEN.sub(b"", schema))
    if max(depths) > DEEPEST:
        raise wrong(path, f"is nested more than {DEEPEST} levels deep")
