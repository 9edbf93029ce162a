"""Prompts that stay a prefix of the next one: what changes between turns without meaning is taken out before rendering.

System texts lose volatile preambles; tools are written in one canonical form; fields that only a client's API knows
never reach the template; what a client moves behind all other messages each turn stands where it first stood. What
users and tools say is not touched.
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
    """Takes out what changes without meaning, and moves back what was moved along.

    Args:
        patterns: regular expressions; what they match in system texts is removed.
        moved_along: regular expressions; a last user message that begins with one belongs to the user message before
            it, and is put directly behind that: in a loop of calls each prompt is then the last one and more.
    """

    def __init__(self, patterns: Iterable[str] = (BILLING_HEADER,), moved_along: Iterable[str] = ()) -> None:
        self._patterns = [re.compile(pattern) for pattern in patterns]
        self._moved_along = [re.compile(pattern) for pattern in moved_along]

    def text(self, text: str) -> str:
        """A system text without volatile passages."""
        for pattern in self._patterns:
            text = pattern.sub("", text)
        return text

    def messages(self, messages: Iterable[Mapping[str, object]]) -> list[Mapping[str, object]]:
        """Messages with stable system texts and places; a system message of which nothing is left is dropped."""
        stable: list[Mapping[str, object]] = []
        for message in messages:
            if message["role"] != "system":
                stable.append(message)
                continue
            content = self._content(message.get("content"))
            if content:
                stable.append({**message, "content": content})
        return self._moved_back(stable)

    def _moved_back(self, messages: list[Mapping[str, object]]) -> list[Mapping[str, object]]:
        """The last message behind the user message that it belongs to; one that stays in its place is not the kind."""
        if not messages or not self._is_moved_along(messages[-1]):
            return messages
        *others, last = messages
        asked = next((at for at in reversed(range(len(others))) if others[at]["role"] == "user"), None)
        if asked is None or self._is_moved_along(others[asked]):
            return messages
        return [*others[: asked + 1], last, *others[asked + 1 :]]

    def _is_moved_along(self, message: Mapping[str, object]) -> bool:
        if message["role"] != "user":
            return False
        content = message.get("content")
        if isinstance(content, Sequence) and not isinstance(content, str):
            content = content[0].get("text") if content else None
        return isinstance(content, str) and any(pattern.match(content) for pattern in self._moved_along)

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
