"""What a tool's JSON Schema lets a value be: the subset of the language that tells types.

Read are `type` (also a list of them), `enum`, `const`, `anyOf`, `oneOf`, `allOf`, `nullable`, `$ref` within the schema,
`properties`, `additionalProperties` and `items`. A pattern is never run on what a model wrote: what `patternProperties`
might describe may be anything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Schema: TypeAlias = Mapping[str, object]

TYPES = ("null", "boolean", "integer", "number", "object", "array", "string")
"""JSON's types, in the order in which they are tried."""
_BEGINS = {
    "null": "nN",
    "boolean": "tTfF",
    "integer": "+-.0123456789",
    "number": "+-.0123456789",
    "object": "{",
    "array": "[(",
}
_MAX_REFERENCES = 32


@dataclass(frozen=True, slots=True)
class Kind:
    """What a value may be."""

    types: frozenset[str]
    enum: tuple[object, ...] = ()
    """The values it is limited to, if it is."""

    @property
    def is_text(self) -> bool:
        """Whether it is a string whatever it looks like."""
        return self.types == {"string"} and all(isinstance(value, str) for value in self.enum)

    def may_begin(self, char: str) -> bool:
        """Whether a value that is not to be read as a bare string may begin with `char`."""
        if char == '"' and "string" not in self.types:
            return True
        if any(char in _BEGINS.get(name, "") for name in self.types):
            return True
        return any(not isinstance(value, str) and json.dumps(value).startswith(char) for value in self.enum)


TEXT = Kind(frozenset({"string"}))
ANY = Kind(frozenset(TYPES))
LITERAL = Kind(frozenset(TYPES) - {"string"})
"""A JSON value as it stands: a string has quotes."""
_NOTHING = Kind(frozenset())


class Types:
    """A schema, asked what the values it describes may be. Each part of it is read once."""

    __slots__ = ("_read", "root")

    def __init__(self, root: Schema | None) -> None:
        self.root: Schema | None = root
        """The schema of the parameters; without one every value is a string."""
        self._read: dict[int, Kind] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The declared parameters."""
        properties = self._resolved(self.root).get("properties")
        return tuple(map(str, properties)) if isinstance(properties, Mapping) else ()

    @property
    def required(self) -> frozenset[str]:
        """The parameters without which a call is not whole."""
        names = self._resolved(self.root).get("required")
        return frozenset(map(str, names)) if isinstance(names, Sequence) and not isinstance(names, str) else frozenset()

    def parameter(self, key: str) -> object:
        """The schema of a parameter, or None if nothing is said of it."""
        return self.within(self.root, key)

    def within(self, schema: object, key: str | None) -> object:
        """The schema of a property of what `schema` describes, or without `key` of a list's items; None if unsaid."""
        resolved = self._resolved(schema)
        if key is None:
            return resolved.get("items")
        properties = resolved.get("properties")
        if isinstance(properties, Mapping) and key in properties:
            return properties[key]
        if "patternProperties" in resolved:
            return {}
        others = resolved.get("additionalProperties")
        return others if isinstance(others, Mapping) else None

    def kind(self, schema: object) -> Kind:
        """What a value may be by `schema`: a string where nothing is said of it."""
        if schema is None:
            return TEXT
        kind = self._kind(schema)
        return kind if kind.types else ANY

    def _kind(self, schema: object) -> Kind:
        if not isinstance(schema, Mapping):
            return ANY
        known = self._read.get(id(schema))
        if known is not None:
            return known
        self._read[id(schema)] = _NOTHING  # what a schema says by way of itself
        kind = self._made(self._resolved(schema))
        self._read[id(schema)] = kind
        return kind

    def _made(self, schema: Schema) -> Kind:
        enum = _enum(schema)
        types = _named(schema.get("type"))
        for word in ("anyOf", "oneOf"):
            kinds = [self._kind(option) for option in _list(schema.get(word))]
            if kinds:
                union = frozenset[str]().union(*(kind.types for kind in kinds))
                types = union if types is None else types & union or types
                enum = enum or (tuple(v for kind in kinds for v in kind.enum) if all(k.enum for k in kinds) else ())
        for part in _list(schema.get("allOf")):
            kind = self._kind(part)
            types = kind.types if types is None else types & kind.types or types
            enum = enum or kind.enum
        if types is None:
            types = frozenset(map(type_of, enum)) if enum else _implied(schema)
        if schema.get("nullable") is True:
            types |= {"null"}
        return Kind(types & frozenset(TYPES), enum)

    def _resolved(self, schema: object) -> Schema:
        """`schema`, or what its `$ref` leads to; empty where it leads nowhere."""
        for _ in range(_MAX_REFERENCES):
            if not isinstance(schema, Mapping):
                return {}
            reference = schema.get("$ref")
            if not isinstance(reference, str) or not reference.startswith("#"):
                return schema
            target: object = self.root
            for part in reference[1:].split("/")[1:]:
                name = part.replace("~1", "/").replace("~0", "~")
                target = target.get(name) if isinstance(target, Mapping) else None
            schema = target
        return {}


def type_of(value: object) -> str:
    """The JSON Schema type of a value."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case Mapping():
            return "object"
        case _:
            return "array"


def _named(names: object) -> frozenset[str] | None:
    if isinstance(names, str):
        return frozenset({names})
    return frozenset(map(str, names)) if isinstance(names, Sequence) else None


def _list(value: object) -> Sequence[object]:
    return value if isinstance(value, Sequence) and not isinstance(value, str) else ()


def _implied(schema: Schema) -> frozenset[str]:
    """The types of a schema that names none."""
    if "properties" in schema:
        return frozenset({"object"})
    return frozenset({"array"}) if "items" in schema else ANY.types


def _enum(schema: Schema) -> tuple[object, ...]:
    return (schema["const"],) if "const" in schema else tuple(_list(schema.get("enum")))
