"""What a JSON Schema is, of that in it which binds a value: an engine that is held to a schema must be able to read it.

The drafts that clients write differ (2020-12, 7, what OpenAPI takes); what any of them takes is taken. Words that bind
nothing (`title`, `default`), unknown ones, and where references lead are not looked at. It is checked as it is decoded,
in microseconds, so nothing is kept.
"""

import re
from typing import Annotated, Any, Literal, TypedDict

import msgspec
from msgspec import Meta, Raw

from catenary_protocols.apis.reading import read

_PIECES = re.compile(r"\\.|\[(?:\\.|[^]\\])*+\]|[()\\[]|\A[*+?]", re.DOTALL)
"""Of a regular expression: what is escaped, a class, and what is neither."""


class Pattern(str):
    """A regular expression.

    There are many kinds, and an engine may know more than this place does: one is refused for what is wrong in all.
    """

    __slots__ = ()


TypeName = Literal["array", "boolean", "integer", "null", "number", "object", "string"]
Count = Annotated[int, Meta(ge=0)] | Annotated[float, Meta(ge=0, multiple_of=1)]

Schema = TypedDict(
    "Schema",
    {
        "type": TypeName | list[TypeName],
        "enum": list[Raw],
        "properties": "dict[str, Schema | bool]",
        "patternProperties": "dict[Pattern, Schema | bool]",
        "additionalProperties": "Schema | bool",
        "unevaluatedProperties": "Schema | bool",
        "propertyNames": "Schema | bool",
        "required": list[str],
        "dependentRequired": dict[str, list[str]],
        "dependentSchemas": "dict[str, Schema | bool]",
        "dependencies": "dict[str, Schema | bool | list[str]]",
        "minProperties": Count,
        "maxProperties": Count,
        "items": "Schema | bool | list[Schema | bool]",
        "prefixItems": "list[Schema | bool]",
        "additionalItems": "Schema | bool",
        "unevaluatedItems": "Schema | bool",
        "contains": "Schema | bool",
        "minContains": Count,
        "maxContains": Count,
        "minItems": Count,
        "maxItems": Count,
        "uniqueItems": bool,
        "pattern": Pattern,
        "minLength": Count,
        "maxLength": Count,
        "minimum": float,
        "maximum": float,
        "exclusiveMinimum": bool | float,
        "exclusiveMaximum": bool | float,
        "multipleOf": Annotated[float, Meta(gt=0)],
        "allOf": "list[Schema | bool]",
        "anyOf": "list[Schema | bool]",
        "oneOf": "list[Schema | bool]",
        "not": "Schema | bool",
        "if": "Schema | bool",
        "then": "Schema | bool",
        "else": "Schema | bool",
        "$defs": "dict[str, Schema | bool]",
        "definitions": "dict[str, Schema | bool]",
        "$ref": str,
    },
    total=False,
)


def check_schema(schema: bytes, path: str) -> None:
    """Raise `RequestError` that names the place, under `path`, of what is wrong in this JSON text of a schema."""
    read(_schema, schema, within=path)


def _pattern(kind: type[Any], said: object) -> Any:
    if not isinstance(said, str) or not _is_pattern(said):
        raise ValueError("is no regular expression")
    return kind(said)


def _is_pattern(text: str) -> bool:
    depth = 0
    for piece in _PIECES.finditer(text):
        match piece.group():
            case "(":
                depth += 1
            case ")":
                depth -= 1
            case "\\" | "[" | "*" | "+" | "?":
                return False
        if depth < 0:
            return False
    return depth == 0


_schema = msgspec.json.Decoder(Schema, dec_hook=_pattern)
