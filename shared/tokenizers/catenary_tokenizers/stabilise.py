"""Prompts that stay a prefix of the next one: what changes between turns without meaning is taken out before rendering.

System texts lose volatile preambles; tools are written in one canonical form; fields that only a client's API knows
never reach the template. What users and tools say is not touched.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

__all__ = ["BILLING_HEADER", "Stabiliser", "canonical_tool"]

# A client puts accounting ahead of its system prompt, different in every session: a line, or a block of its own.
BILLING_HEADER = r"(?m)^x-anthropic-billing-header:[^\n]*(?:\n+|\Z)"

# In the order that JSON schemas are usually written, so that a canonical schema reads as its author wrote it.
_KEYWORDS = [
    "$ref",
    "type",
    "title",
    "description",
    "enum",
    "const",
    "default",
    "format",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "pattern",
    "items",
    "prefixItems",
    "minItems",
    "maxItems",
    "uniqueItems",
    "properties",
    "patternProperties",
    "required",
    "additionalProperties",
    "minProperties",
    "maxProperties",
    "anyOf",
    "oneOf",
    "allOf",
    "not",
    "if",
    "then",
    "else",
    "$defs",
    "definitions",
    "examples",
]
_RANK = {keyword: rank for rank, keyword in enumerate(_KEYWORDS)}
_BY_NAME = frozenset({"properties", "patternProperties", "$defs", "definitions"})
_OPAQUE = frozenset({"enum", "const", "default", "examples", "required"})
_SCHEMA_NOISE = frozenset({"$schema", "$id", "$comment", "cache_control"})


class Stabiliser:
    """Takes out what changes without meaning.

    Args:
        patterns: regular expressions; what they match in system texts is removed.
    """

    def __init__(self, patterns: Iterable[str] = (BILLING_HEADER,)) -> None:
        self._patterns = [re.compile(pattern) for pattern in patterns]

    def text(self, text: str) -> str:
        """A system text without volatile passages."""
        for pattern in self._patterns:
            text = pattern.sub("", text)
        return text

    def messages(self, messages: Iterable[Mapping[str, object]]) -> list[Mapping[str, object]]:
        """Messages with stable system texts; a system message of which nothing is left is dropped."""
        stable: list[Mapping[str, object]] = []
        for message in messages:
            if message["role"] != "system":
                stable.append(message)
                continue
            content = self._content(message.get("content"))
            if content:
                stable.append({**message, "content": content})
        return stable

    def _content(self, content: object) -> object:
        if isinstance(content, str):
            return self.text(content)
        if not isinstance(content, Sequence):
            return content
        parts = [{**part, "text": self.text(part["text"])} if part.get("type") == "text" else part for part in content]
        return [part for part in parts if part.get("type") != "text" or part["text"]]


def canonical_tool(tool: Mapping[str, object]) -> dict[str, object]:
    """A function tool in one form: known fields in one order, its schema canonical; properties keep their order."""
    function = tool.get("function")
    if not isinstance(function, Mapping):
        return dict(tool)
    canonical: dict[str, object] = {"name": function["name"]}
    if function.get("description"):
        canonical["description"] = function["description"]
    if isinstance(parameters := function.get("parameters"), Mapping):
        canonical["parameters"] = _schema(parameters)
    if function.get("strict"):
        canonical["strict"] = True
    return {"type": "function", "function": canonical}


def _schema(schema: Mapping[str, object]) -> dict[str, object]:
    known = sorted(
        (key for key in schema if key not in _SCHEMA_NOISE), key=lambda key: (_RANK.get(key, len(_RANK)), key)
    )
    return {key: _keyword(key, schema[key]) for key in known}


def _keyword(key: str, value: object) -> object:
    if key in _OPAQUE:
        return _number(value)
    if isinstance(value, Mapping):
        if key in _BY_NAME:
            return {name: _keyword("", inner) for name, inner in value.items()}
        return _schema(value)
    if isinstance(value, list):
        return [_keyword("", item) for item in value]
    return _number(value)


def _number(value: object) -> object:
    """A number that is whole as a whole number: clients write 1.0 and 1 for one another."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
