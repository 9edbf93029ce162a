"""What a request lets the model say: an engine that constrains decoding knows no more than this.

Options of a turn: `json_schema` (all output is such a value), `tool_choice` ("none", "required", "auto" or a tool's
name), `parallel_calls` (false: one call), and `structural_tag`, which says all of that in xgrammar's form: tags that
begin with a tool's name, `at_least_one` of them, `stop_after_first`, or a JSON schema alone.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from catenary_protocols.errors import RequestError


@dataclass(frozen=True, slots=True)
class Constraint:
    """What may be said.

    Attributes:
        schema: a JSON schema that all output satisfies.
        begins: beginnings of the calls that may be made; None: any.
        named: the one tool that must be called.
        must_call: a call must come, whatever the prompt says.
        may_call: a call may come.
        one_call: nothing comes after the first call.
    """

    schema: Mapping[str, object] | None = None
    begins: tuple[str, ...] | None = None
    named: str = ""
    must_call: bool = False
    may_call: bool = True
    one_call: bool = False

    def allows(self, tool: str) -> bool:
        """Whether this tool may be called."""
        if self.named:
            return tool == self.named
        return self.begins is None or any(_names(begin, tool) for begin in self.begins)


def read_constraint(options: Mapping[str, object]) -> Constraint:
    """From a turn's options. Raises `RequestError` (field `guide`) for a structural tag that is none."""
    found = Constraint()
    if tag := options.get("structural_tag"):
        found = _from_tag(_parsed(tag))
    schema = options.get("json_schema")
    if isinstance(schema, Mapping):
        found = replace(found, schema=schema)
    if options.get("parallel_calls") is False:
        found = replace(found, one_call=True)
    match options.get("tool_choice"):
        case None | "auto":
            return found
        case "none":
            return replace(found, may_call=False)
        case "required":
            return replace(found, must_call=True)
        case name:
            return replace(found, must_call=True, named=str(name))


def _parsed(tag: object) -> Mapping[str, object]:
    if isinstance(tag, str):
        try:
            tag = json.loads(tag)
        except ValueError as error:
            raise RequestError(f"the guide is not JSON: {error}", code="invalid_value", field="guide") from error
    inner = tag.get("format", tag) if isinstance(tag, Mapping) else None
    if not isinstance(inner, Mapping):
        raise RequestError("the guide is no structural tag", code="invalid_value", field="guide")
    return inner


def _from_tag(top: Mapping[str, object]) -> Constraint:
    schema = top.get("json_schema")
    if isinstance(schema, Mapping) and "begin" not in top:
        return Constraint(schema=schema, may_call=False)
    nodes = list(_nodes(top))
    begins = tuple(begin for node in nodes if isinstance(begin := node.get("begin"), str))
    return Constraint(
        begins=begins or None,
        must_call="begin" in top or any(node.get("at_least_one") is True for node in nodes),
        one_call=any(node.get("stop_after_first") is True for node in nodes),
    )


def _nodes(value: object) -> Iterator[Mapping[str, object]]:
    """Every format inside a format; schemas are not looked into."""
    if isinstance(value, Mapping):
        yield value
        for key, inner in value.items():
            if key not in {"json_schema", "schema"}:
                yield from _nodes(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _nodes(inner)


def _names(begin: str, tool: str) -> bool:
    at = begin.find(tool)
    edges = (begin[at - 1 : at], begin[at + len(tool) : at + len(tool) + 1])
    return at >= 0 and not any(edge.isalnum() or edge in {"_", "-"} for edge in edges if edge)
