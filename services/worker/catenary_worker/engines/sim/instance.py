"""A value that satisfies a JSON Schema, made of the user's words where they fit.

Rule: what is returned satisfies the schema wherever the schema can be satisfied by looking at one level at a time
(`not`, `if` and relations between properties are not looked at). Strings come, in this order, from: constants and
choices, quoted values, arithmetic, proper names, the gist of what was said; each only if the schema takes it.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil, floor

from catenary_parsers import Json

from catenary_worker.engines.sim import words
from catenary_worker.engines.sim.patterns import compiled, matching
from catenary_worker.engines.sim.schemas import (
    DEEPEST,
    Resolver,
    Schema,
    as_count,
    as_list,
    as_many,
    as_number,
    bounds,
    type_of,
)

_FORMATS = {
    "date": "2025-03-14",
    "time": "09:30:00Z",
    "date-time": "2025-03-14T09:30:00Z",
    "duration": "PT1H",
    "email": "someone@example.org",
    "idn-email": "someone@example.org",
    "hostname": "example.org",
    "idn-hostname": "example.org",
    "uri": "https://example.org/",
    "iri": "https://example.org/",
    "uri-reference": "/path",
    "iri-reference": "/path",
    "uuid": "3b241101-e2bb-4255-8caf-4136c566a962",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "json-pointer": "/a",
    "relative-json-pointer": "0",
    "regex": "^a$",
    "byte": "YWJj",
}
_LONGEST, _MOST_ITEMS = 4096, 64
"""A schema may ask for more; then it is not satisfied."""
_REPEATED_GROUP = re.compile(r"\)[*+{]")


@dataclass(slots=True)
class Source:
    """The user's words, each value given out once."""

    text: str
    _used: set[str] = field(default_factory=set)

    def quoted(self) -> list[str]:
        """Quoted values not given out yet."""
        return [value for value in words.quoted(self.text) if value not in self._used]

    def strings(self) -> Iterator[str]:
        """Candidates for a string, best first."""
        everything = (words.sums(self.text), words.names(self.text), [words.gist(self.text)])
        yield from self.quoted()
        yield from (value for kind in everything for value in kind if value and value not in self._used)

    def numbers(self) -> Iterator[float]:
        """Candidates for a number."""
        yield from (value for value in words.numbers(self.text) if repr(value) not in self._used)

    def use(self, value: str) -> None:
        """Do not give this one out again."""
        self._used.add(value)


def arguments_for(schema: Schema, text: str) -> dict[str, Json]:
    """Arguments of a call: an object that satisfies the schema."""
    maker = _Maker(schema, Source(text))
    value = maker.make({"type": "object", **schema}, 0)
    return value if isinstance(value, dict) else {}


def value_for(schema: Schema, text: str) -> Json:
    """Any value that satisfies the schema."""
    return _Maker(schema, Source(text)).make(schema, 0)


class _Maker:
    def __init__(self, root: Schema, source: Source) -> None:
        self._schemas = Resolver(root)
        self._source = source

    def make(self, schema: object, depth: int) -> Json:
        """A value for a schema (or for `true`)."""
        resolved = self._schemas.flat(schema, depth)
        if "const" in resolved:
            return _json(resolved["const"])
        choices = resolved.get("enum")
        if isinstance(choices, list) and choices:
            return self._choose(choices)
        kind = type_of(resolved)
        makers: dict[str, Callable[[Schema, int], Json]] = {
            "object": self._object,
            "array": self._array,
            "string": self._string,
            "integer": self._integer,
            "number": self._number,
            "boolean": lambda _schema, _depth: True,
        }
        make = makers.get(kind)
        return make(resolved, depth) if make else None

    def _choose(self, choices: list[object]) -> Json:
        said = set(words.stems(self._source.text))
        for choice in choices:
            if isinstance(choice, str) and choice and said.issuperset(words.stems(choice)) and any(words.stems(choice)):
                return choice
        return _json(choices[0])

    def _object(self, schema: Schema, depth: int) -> Json:
        properties = schema.get("properties")
        known: dict[str, object] = properties if isinstance(properties, dict) else {}
        required = [name for name in as_list(schema.get("required")) if isinstance(name, str)]
        wanted = list(dict.fromkeys(required))
        if depth == 0:
            wanted += self._worth_filling(known, wanted)
        least = min(as_count(schema.get("minProperties"), 0), _MOST_ITEMS)
        wanted += [name for name in known if name not in wanted][: max(0, least - len(wanted))]
        others = schema.get("additionalProperties")
        wanted += [f"key{number}" for number in range(1, 1 + max(0, least - len(wanted)))]
        return {name: self.make(known.get(name, others), depth + 1) for name in wanted}

    def _worth_filling(self, known: Mapping[str, object], wanted: list[str]) -> list[str]:
        """A quoted value that no required string takes goes to the first optional one; a sole property is filled."""
        if not self._source.quoted() and not (len(known) == 1 and self._source.text):
            return []
        strings = [name for name, schema in known.items() if type_of(self._schemas.flat(schema, 1)) == "string"]
        return [] if set(strings) & set(wanted) else strings[:1]

    def _array(self, schema: Schema, depth: int) -> Json:
        most = as_count(schema.get("maxItems"), 2**31)
        count = min(max(1, as_count(schema.get("minItems"), 0)), most, _MOST_ITEMS)
        first = as_list(schema.get("prefixItems"))
        rest = schema.get("items", {})
        if rest is False:
            count = min(count, len(first))
        if depth >= DEEPEST:
            count = 0
        made = [self.make(first[at] if at < len(first) else rest, depth + 1) for at in range(count)]
        return _distinct(made, self._schemas.flat(rest, depth + 1)) if schema.get("uniqueItems") else made

    def _string(self, schema: Schema, _depth: int) -> Json:
        least = min(as_count(schema.get("minLength"), 0), _LONGEST)
        most = min(as_count(schema.get("maxLength"), _LONGEST), _LONGEST)
        pattern, form = schema.get("pattern"), schema.get("format")
        given = [value for key in ("default", "examples") for value in as_many(schema.get(key))]
        made = [matching(pattern)] if isinstance(pattern, str) else []
        known = [_FORMATS[form]] if isinstance(form, str) and form in _FORMATS else []
        said = [] if known else list(self._source.strings())
        for value in (*said, *given, *known, *made):
            if not isinstance(value, str) or not least <= len(value) <= most:
                continue
            if value in made or _matches(pattern, value):
                self._source.use(value)
                return value
        text = next((value for value in said if value), "text")
        return text[: max(0, most)].ljust(least, "x")

    def _integer(self, schema: Schema, _depth: int) -> Json:
        return int(self._bounded(schema, whole=True))

    def _number(self, schema: Schema, _depth: int) -> Json:
        value = self._bounded(schema, whole=False)
        return int(value) if value.is_integer() else value

    def _bounded(self, schema: Schema, *, whole: bool) -> float:
        step = as_number(schema.get("multipleOf")) or (1.0 if whole else None)
        if step and whole and not step.is_integer():
            step = 1.0
        low, high = bounds(schema, whole=whole)
        for value in self._source.numbers():
            if low <= value <= high and (not step or (value / step).is_integer()):
                self._source.use(repr(value))
                return value
        value = min(max(1.0, low), high)
        if not step:
            return value
        above, below = ceil(value / step) * step, floor(value / step) * step
        return above if above <= high else below


def _distinct(values: list[Json], schema: Schema) -> list[Json]:
    """Make equal items differ, where the kind of item allows it."""
    choices = as_list(schema.get("enum"))
    seen: list[Json] = []
    for value in values:
        fresh = value
        if choices:
            fresh = next((_json(choice) for choice in choices if choice not in seen), value)
        elif isinstance(value, str):
            number = 2
            while fresh in seen:
                fresh, number = f"{value} {number}", number + 1
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            step = as_number(schema.get("multipleOf")) or 1
            further = (value + at * step for at in range(len(seen) + 1))
            fresh = next((more for more in further if more not in seen), value)
        seen.append(fresh)
    return seen


def _matches(pattern: object, value: str) -> bool:
    """Whether a value that was not made for the pattern fits it; a pattern that may take for ever is not tried."""
    if not isinstance(pattern, str):
        return True
    known = compiled(pattern)
    return known is None or (not _REPEATED_GROUP.search(pattern) and known.search(value) is not None)


def _json(value: object) -> Json:
    if isinstance(value, list):
        return [_json(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _json(item) for key, item in value.items()}
    return value if isinstance(value, (str, int, float, bool)) else None
