"""JSON schemas and structural tags (see `catenary_parsers.structural_tag`) as grammars for llama.cpp's llguidance.

A marker that is one token of the model's is meant as that token; free text cannot hold it. Any other marker is spelled,
and free text ends where it is spelled first.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import count

import msgspec
from catenary_protocols.errors import RequestError
from llguidance import LLMatcher

_Node = Mapping[str, object]
_ANY = "/(?s:.*)/"
_COMPACT = {"x-guidance": {"whitespace_flexible": False}}
"""Models that are unsure of a value would write white space for ever."""


class Grammars:
    """Writes grammars for one model."""

    def __init__(self, control_tokens: Mapping[str, int]) -> None:
        self._controls = control_tokens

    def of_schema(self, schema: object) -> str:
        """All output is such a value. Raises `RequestError` (field `guide`)."""
        return _Writer(self._controls).whole({"type": "json_schema", "json_schema": schema})

    def of_tag(self, tag: object) -> str:
        """Output that the structural tag allows. Raises `RequestError` (field `guide`)."""
        try:
            tag = msgspec.json.decode(tag) if isinstance(tag, str) else tag
        except msgspec.DecodeError as error:
            raise _refused(f"it is not JSON: {error}") from error
        tag = _object(tag)
        return _Writer(self._controls).whole(_object(tag.get("format", tag)))


class _Writer:
    """One grammar. What a method returns can stand in a rule; the rules it needs are kept."""

    def __init__(self, controls: Mapping[str, int]) -> None:
        self._controls = controls
        self._split = re.compile("|".join(map(re.escape, sorted(controls, key=len, reverse=True))) or r"(?!)")
        self._rules: list[str] = []
        self._numbers = count(1)

    def whole(self, node: _Node) -> str:
        try:
            start = self._node(node)
        except KeyError as error:
            raise _refused(f"it lacks {error}") from error
        grammar = "\n".join(["%llguidance {}", f"start: {start}", f"TEXT: {_ANY}", *self._rules])
        if wrong := LLMatcher.validate_grammar(grammar):  # llama.cpp would go on without it
            raise _refused(wrong.splitlines()[0])
        return grammar

    def _node(self, node: _Node, until: str = "") -> str:  # noqa: C901 - a kind of node is a branch
        """A part of the output, and `until` behind it."""
        match node["type"]:
            case "any_text" if until:
                return self._text_until(until)
            case "any_text":
                return self._text_without(_texts(node.get("excludes", ())))
            case "json_schema" if node.get("style", "json") != "json" and until:
                return self._text_until(until)  # only JSON is known there: the call is sure, its arguments are free
            case "json_schema":
                found = f"%json {json.dumps({**_object(node['json_schema']), **_COMPACT})}"
            case "const_string":
                found = self._literal(str(node["value"]))
            case "regex":
                found = f"/{str(node['pattern']).replace('/', '[/]')}/"
            case "sequence":
                return self._sequence(_objects(node["elements"]), until)
            case "optional":
                found = f"( {self._node(_object(node['content']))} )?"
            case "tag":
                content = self._node(_object(node["content"]), str(node["end"]))
                found = f"{self._literal(str(node['begin']))} {content}"
            case "tags_with_separator":
                found = self._separated(node)
            case "triggered_tags":
                found = self._triggered(node)
            case other:
                raise _refused(f"{other!r} is not known here")
        return f"{found} {self._literal(until)}"

    def _sequence(self, elements: Sequence[_Node], until: str) -> str:
        """What the last part ends with is what the whole ends with."""
        *before, last = elements
        return " ".join([*map(self._node, before), self._node(last, until)])

    def _separated(self, node: _Node) -> str:
        one = self._any_of(_objects(node["tags"]))
        more = "" if node.get("stop_after_first") else f"( {self._literal(str(node['separator']))} {one} )*"
        return f"{one} {more}" if node.get("at_least_one") else f"( {one} {more} )?"

    def _triggered(self, node: _Node) -> str:
        """Text, and tags that begin with the trigger."""
        trigger, *others = _texts(node["triggers"])
        if others:
            raise _refused("it has several triggers")
        tags = [{**tag, "begin": str(tag["begin"]).removeprefix(trigger)} for tag in _objects(node["tags"])]
        one = self._rule(f"{self._text_until(trigger)} {self._any_of(tags)}")
        if node.get("stop_after_first"):
            return one if node.get("at_least_one") else f"( {one} | {self._text_without([trigger])} )"
        return f"{one}{'+' if node.get('at_least_one') else '*'} {self._text_without([trigger])}"

    def _any_of(self, nodes: Sequence[_Node]) -> str:
        return self._rule(" | ".join(map(self._node, nodes)))

    # --- text ---------------------------------------------------------------------------------------------------

    def _literal(self, text: str) -> str:
        """Text as it is written, markers as their tokens."""
        parts, at = [], 0
        for found in self._split.finditer(text):
            parts += [_quoted(text[at : found.start()]), f"<[{self._controls[found[0]]}]>"]
            at = found.end()
        return " ".join(filter(None, [*parts, _quoted(text[at:])]))

    def _text_until(self, end: str) -> str:
        """Any text, and the marker at which it ends."""
        marker = self._split.search(end)
        spelled = end[: marker.start()] if marker else end
        if not spelled:
            return f"TEXT {self._literal(end)}"
        name = f"t{next(self._numbers)}"
        self._rules.append(f"{name}[suffix={_quoted(spelled)}]: {_ANY}")
        return f"{name} {self._literal(end[len(spelled) :])}"

    def _text_without(self, markers: Sequence[str]) -> str:
        """Any text that spells none of the markers."""
        spelled = [re.escape(marker).replace("/", "[/]") for marker in markers if not self._split.match(marker)]
        if not spelled:
            return "TEXT"
        name = f"T{next(self._numbers)}"
        self._rules.append(f"{name}: ~/(?s:.*)({'|'.join(spelled)})(?s:.*)/")
        return name

    def _rule(self, body: str) -> str:
        name = f"r{next(self._numbers)}"
        self._rules.append(f"{name}: {body}")
        return name


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""


def _object(value: object) -> _Node:
    if isinstance(value, Mapping):
        return value
    raise _refused("an object is missing")


def _objects(value: object) -> list[_Node]:
    return list(map(_object, _items(value)))


def _texts(value: object) -> list[str]:
    return list(map(str, _items(value)))


def _items(value: object) -> Iterator[object]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise _refused("a list is missing")
    return iter(value)


def _refused(why: str) -> RequestError:
    return RequestError(f"the guide cannot be kept: {why}", code="unsupported", field="guide")
