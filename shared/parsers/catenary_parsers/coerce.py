"""The one place where text gets a type: from a schema to what a value may be, from a value's text to JSON.

A type is tried only where the whole text has its form, and numbers keep their digits. What converts to nothing that the
schema allows stays a string. Without a schema a value is a string.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from catenary_parsers.lexer import SPACE
from catenary_parsers.strings import escaped
from catenary_parsers.values import JSON, PYTHON, json_of

TYPES = ("null", "boolean", "integer", "number", "object", "array", "string")

_BEGINS = {
    "null": "nN",
    "boolean": "tTfF",
    "integer": "+-.0123456789",
    "number": "+-.0123456789",
    "object": "{",
    "array": "[(",
}
_NUMBER = re.compile(r"(?P<sign>[-+]?)(?P<whole>[0-9]*)(?P<fraction>\.[0-9]*)?(?P<exponent>[eE][-+]?[0-9]+)?", re.ASCII)
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
        return self.types == {"string"} and not any(not isinstance(value, str) for value in self.enum)

    def may_begin(self, char: str) -> bool:
        """Whether a value that is no string may begin with `char`."""
        if any(char in _BEGINS.get(kind, "") for kind in self.types):
            return True
        return any(not isinstance(value, str) and char in json.dumps(value)[0] for value in self.enum)


TEXT = Kind(frozenset({"string"}))
ANY = Kind(frozenset(TYPES))


def convert(text: str, kind: Kind) -> tuple[str, bool]:
    """The JSON of a value's text, and whether it is of its kind."""
    if kind.is_text:
        return f'"{escaped(text)}"', True
    bare = text.strip(SPACE)
    for value in kind.enum:
        spelled = json.dumps(value, ensure_ascii=False)
        if bare == (value if isinstance(value, str) else spelled):
            return spelled, True
    for name in TYPES:
        found = _as_type(bare, name) if name in kind.types else ""
        if found:
            return found, True
    return f'"{escaped(text)}"', "string" in kind.types


def _as_type(text: str, name: str) -> str:
    """`text` as JSON of this type, or an empty string."""
    match name:
        case "null":
            return "null" if text in {"null", "None", "Null", "NULL"} else ""
        case "boolean":
            return text.lower() if text.lower() in {"true", "false"} else ""
        case "integer" | "number":
            return number(text, whole=name == "integer")
        case "object" | "array":
            if not text or text[0] not in _BEGINS[name]:
                return ""
            return json_of(text, JSON) or json_of(text, PYTHON)
        case _:
            return ""


def number(text: str, *, whole: bool = False) -> str:
    """`text` as a JSON number with the same digits, or an empty string; `whole` asks for an integer."""
    found = _NUMBER.fullmatch(text)
    if found is None or len(text) > 4000:
        return ""
    digits, fraction = found["whole"], (found["fraction"] or "")[1:]
    if not digits and not fraction:
        return ""
    if whole and fraction.strip("0"):
        return ""
    if whole and (found["exponent"] or "").startswith(("e-", "E-")):
        return ""
    sign = "-" if found["sign"] == "-" else ""
    return sign + (digits.lstrip("0") or "0") + (f".{fraction}" if fraction else "") + (found["exponent"] or "")


def kind_of(parameters: Mapping[str, object] | None, key: str) -> Kind:
    """What the parameter `key` may be by a tool's schema; a string where the schema does not say."""
    if parameters is None:
        return TEXT
    schema = _resolved(parameters, parameters)
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and key in properties:
        return _kind(properties[key], parameters, 0)
    patterns = schema.get("patternProperties")
    if isinstance(patterns, Mapping):
        for pattern, value in patterns.items():
            if _searches(str(pattern), key):
                return _kind(value, parameters, 0)
    others = schema.get("additionalProperties")
    return _kind(others, parameters, 0) if isinstance(others, Mapping) else TEXT


def required_of(parameters: Mapping[str, object] | None) -> frozenset[str]:
    """The parameters without which a call is not whole."""
    names = (parameters or {}).get("required")
    return frozenset(map(str, names)) if isinstance(names, Sequence) and not isinstance(names, str) else frozenset()


def _searches(pattern: str, key: str) -> bool:
    try:
        return re.search(pattern, key) is not None
    except re.error:
        return False


def _kind(schema: object, root: Mapping[str, object], depth: int) -> Kind:
    if not isinstance(schema, Mapping) or depth > _MAX_REFERENCES:
        return ANY
    schema = _resolved(schema, root)
    enum = _enum(schema)
    names = schema.get("type")
    types: frozenset[str] | None = None
    if isinstance(names, str):
        types = frozenset({names})
    elif isinstance(names, Sequence):
        types = frozenset(str(name) for name in names)
    for word in ("anyOf", "oneOf"):
        options = schema.get(word)
        if isinstance(options, Sequence) and options:
            kinds = [_kind(option, root, depth + 1) for option in options]
            union = frozenset[str]().union(*(kind.types for kind in kinds))
            types = union if types is None else types & union or types
            enum = enum or (tuple(value for kind in kinds for value in kind.enum) if all(k.enum for k in kinds) else ())
    parts = schema.get("allOf")
    for part in parts if isinstance(parts, Sequence) else ():
        kind = _kind(part, root, depth + 1)
        types = kind.types if types is None else types & kind.types or types
        enum = enum or kind.enum
    if types is None:
        types = frozenset(map(type_of, enum)) if enum else _implied(schema)
    if schema.get("nullable") is True:
        types |= {"null"}
    return Kind(types & frozenset(TYPES) or ANY.types, enum)


def _implied(schema: Mapping[str, object]) -> frozenset[str]:
    """The types of a schema that names none."""
    if "properties" in schema:
        return frozenset({"object"})
    return frozenset({"array"}) if "items" in schema else ANY.types


def _enum(schema: Mapping[str, object]) -> tuple[object, ...]:
    if "const" in schema:
        return (schema["const"],)
    values = schema.get("enum")
    return tuple(values) if isinstance(values, Sequence) and not isinstance(values, str) else ()


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


def _resolved(schema: Mapping[str, object], root: Mapping[str, object]) -> Mapping[str, object]:
    """`schema`, or what its `$ref` within the same document leads to."""
    for _ in range(_MAX_REFERENCES):
        reference = schema.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#"):
            return schema
        target: object = root
        for part in reference[1:].split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            target = target.get(name) if isinstance(target, Mapping) else None
        if not isinstance(target, Mapping):
            return {}
        schema = target
    return {}
