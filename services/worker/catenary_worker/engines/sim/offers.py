"""The tools a prompt offers, in the three ways templates write them: JSON Schema, XML tags, TypeScript types."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

Schema = Mapping[str, object]

_OBJECT = re.compile(r'\{\s*"(?:type|function|name|description)"\s*:')
_XML = re.compile(r"<function>\s*<name>([^<]+)</name>(.*?)</function>", re.DOTALL)
_XML_PARAMETER = re.compile(r"<parameter>\s*<name>([^<]+)</name>(.*?)</parameter>", re.DOTALL)
_TYPESCRIPT = re.compile(
    r"((?:^[ \t]*//[^\n]*\n)*)^[ \t]*type (\w+) = \((?:_: \{(.*?)^[ \t]*\})?\) => any;", re.DOTALL | re.MULTILINE
)
_TYPESCRIPT_FIELD = re.compile(r"^[ \t]*([\w$]+)(\?)?: ([^\n]*?),?(?:[ \t]*//[^\n]*)?$", re.MULTILINE)
_ANY: Schema = {"type": "object"}


@dataclass(frozen=True, slots=True)
class Offer:
    """A tool as the prompt describes it; `parameters` is the JSON Schema of its arguments."""

    name: str
    description: str = ""
    parameters: Schema = field(default_factory=lambda: _ANY)


@lru_cache(maxsize=16)
def read_offers(text: str) -> tuple[Offer, ...]:
    """Every tool described in the text, each name once, in order."""
    found: dict[str, Offer] = {}
    for reader in (_from_json, _from_xml, _from_typescript):
        for offer in reader(text):
            found.setdefault(offer.name, offer)
        if found:
            break
    return tuple(found.values())


def _from_json(text: str) -> Iterator[Offer]:
    decoder = json.JSONDecoder()
    at = 0
    while start := _OBJECT.search(text, at):
        try:
            value, at = decoder.raw_decode(text, start.start())
        except (ValueError, RecursionError):
            at = start.end()
            continue
        offer = _offer(value)
        if offer is not None:
            yield offer


def _offer(value: Mapping[str, object]) -> Offer | None:
    inner = value.get("function")
    if isinstance(inner, dict):
        value = inner
    name = value.get("name")
    schema = value.get("parameters", value.get("input_schema"))
    # An earlier call may look alike, but its arguments are no schema.
    if not isinstance(name, str) or not (schema is None or _is_schema(schema)):
        return None
    if schema is None and ("description" not in value or "arguments" in value):
        return None
    description = value.get("description")
    return Offer(
        name, description if isinstance(description, str) else "", schema if isinstance(schema, dict) else _ANY
    )


def _is_schema(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    return not value or value.get("type") == "object" or isinstance(value.get("properties"), dict) or "$ref" in value


def _from_xml(text: str) -> Iterator[Offer]:
    for name, body in _XML.findall(text):
        properties: dict[str, object] = {}
        for parameter, inside in _XML_PARAMETER.findall(body):
            properties[parameter.strip()] = _xml_schema(inside)
        outside = _XML_PARAMETER.sub("", body)
        required = _tag(outside, "required")
        schema: dict[str, object] = {"type": "object", "properties": properties}
        schema["required"] = _json(required) if required else list(properties)
        yield Offer(name.strip(), _tag(outside, "description"), schema)


def _xml_schema(body: str) -> dict[str, object]:
    schema: dict[str, object] = {}
    for tag, inside in re.findall(r"<(\w+)>(.*?)</\1>", body, re.DOTALL):
        schema[tag] = inside.strip() if tag in {"type", "description"} else _json(inside)
    if isinstance(kind := schema.get("type"), str) and kind.startswith("["):
        schema["type"] = _json(kind)
    return schema


def _tag(text: str, name: str) -> str:
    found = re.search(rf"<{name}>(.*?)</{name}>", text, re.DOTALL)
    return found[1].strip() if found else ""


def _json(text: str) -> object:
    try:
        return json.loads(text.strip().replace("'", '"'))
    except ValueError:
        return text.strip()


def _from_typescript(text: str) -> Iterator[Offer]:
    for comment, name, body in _TYPESCRIPT.findall(text):
        properties, required = {}, []
        for parameter, optional, kind in _TYPESCRIPT_FIELD.findall(body):
            properties[parameter] = _typescript_schema(kind.strip())
            if not optional:
                required.append(parameter)
        described = " ".join(line.strip().lstrip("/ ") for line in comment.splitlines())
        yield Offer(name, described, {"type": "object", "properties": properties, "required": required})


def _typescript_schema(kind: str) -> dict[str, object]:
    choices = [choice.strip() for choice in kind.split("|")]
    if all(choice.startswith('"') for choice in choices):
        return {"enum": [_json(choice) for choice in choices]}
    first = choices[0]
    if first.endswith("[]"):
        return {"type": "array", "items": _typescript_schema(first[:-2])}
    return {"type": first} if first in {"string", "number", "boolean", "integer", "object", "null"} else {}
