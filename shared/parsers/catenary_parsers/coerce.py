"""The one place where text gets a type: a value's text and what it may be to JSON.

A type is tried only where the whole text has its form, and numbers keep their digits. What converts to nothing that the
schema allows stays a string.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from catenary_parsers.lexer import SPACE
from catenary_parsers.schema import LITERAL, TYPES, Types
from catenary_parsers.strings import escaped
from catenary_parsers.values import JSON, MAX_DEPTH, MAX_WORD, PYTHON, json_of

if TYPE_CHECKING:
    from catenary_parsers.schema import Kind

_NUMBER = re.compile(r"(?P<sign>[-+]?)(?P<whole>[0-9]*)(?P<fraction>\.[0-9]*)?(?P<exponent>[eE][-+]?[0-9]+)?", re.ASCII)


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
        found = _as_type(bare, name, kind) if name in kind.types else ""
        if found:
            return found, True
    if bare.startswith('"') and "string" not in kind.types and (quoted := json_of(bare, JSON)):
        return quoted, kind == LITERAL
    return f'"{escaped(text)}"', "string" in kind.types


def _as_type(text: str, name: str, kind: Kind) -> str:
    """`text` as JSON of this type, or an empty string."""
    match name:
        case "null":
            # Where it may be a string, only JSON's own word is no string.
            return "null" if text == "null" or (text in {"None", "Null", "NULL"} and "string" not in kind.types) else ""
        case "boolean":
            return text.lower() if text.lower() in {"true", "false"} else ""
        case "integer" | "number":
            return number(text, whole=name == "integer")
        case "object" | "array":
            if not text.startswith("{" if name == "object" else ("[", "(")):
                return ""
            return json_of(text, JSON) or json_of(text, PYTHON)
        case _:
            return ""


def number(text: str, *, whole: bool = False) -> str:
    """`text` as a JSON number with the same digits, or an empty string; `whole` asks for an integer."""
    found = _NUMBER.fullmatch(text)
    if found is None or len(text) > MAX_WORD:
        return ""
    digits, fraction = found["whole"], (found["fraction"] or "")[1:]
    if not digits and not fraction:
        return ""
    if whole and (fraction.strip("0") or (found["exponent"] or "").startswith(("e-", "E-"))):
        return ""
    sign = "-" if found["sign"] == "-" else ""
    return sign + (digits.lstrip("0") or "0") + (f".{fraction}" if fraction else "") + (found["exponent"] or "")


def nested(text: str, opening: str, schema: object, types: Types, depth: int = 0) -> str:
    """The JSON of a value that is made of tags, or an empty string if it is not.

    A tag is `opening`, a name and `>`; `/` before the name closes it. The value is a list where the schema says so, or
    where all tags are named `item`; else it is an object.
    """
    children = _children(text, opening)
    if not children or depth > MAX_DEPTH:
        return ""
    names = {name for name, _ in children}
    kinds = types.kind(schema if schema is not None else {}).types
    listed = "object" not in kinds or (names == {"item"} and "array" in kinds)
    written: list[str] = []
    for name, value in children:
        inner = types.within(schema, None if listed else name)
        json_text = nested(value, opening, inner, types, depth + 1) or convert(value, types.kind(inner))[0]
        written.append(json_text if listed else f"{json.dumps(name, ensure_ascii=False)}: {json_text}")
    return f"[{', '.join(written)}]" if listed else "{" + ", ".join(written) + "}"


def _children(text: str, opening: str) -> list[tuple[str, str]]:
    """Names and texts of the tags that `text` consists of, or nothing if it holds anything else."""
    found: list[tuple[str, str]] = []
    text = text.strip(SPACE)
    while text:
        name = text[len(opening) :].partition(">")[0] if text.startswith(opening) else ""
        value, closed, text = _inside(text, f"{opening}{name}>", f"{opening}/{name}>") if name else ("", False, "")
        if not closed:
            return []
        found.append((name, value))
        text = text.lstrip(SPACE)
    return found


def _inside(text: str, tag: str, closing: str) -> tuple[str, bool, str]:
    """What stands between a tag and its own closing tag, whether that is there, and what follows it."""
    end, at = len(tag), len(tag)
    for _ in range(MAX_DEPTH):
        end = text.find(closing, end)
        if end < 0:
            break
        again = text.find(tag, at, end)
        if again < 0:
            return text[len(tag) : end], True, text[end + len(closing) :]
        at, end = again + len(tag), end + len(closing)
    return "", False, ""
