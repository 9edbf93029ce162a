"""Values made for JSON Schemas satisfy them, and use the user's words."""

import json
import re
from typing import Any

import jsonschema
import pytest
from catenary_worker.engines.sim import words
from catenary_worker.engines.sim.instance import arguments_for, value_for
from catenary_worker.engines.sim.patterns import matching
from hypothesis import given, settings
from hypothesis import strategies as st

small = st.integers(0, 4)
texts = st.text("aBc 1-", max_size=6)


def _range(low: int, width: int, kind: str) -> dict[str, Any]:
    return {"type": kind, "minimum": low, "maximum": low + width}


strings = st.one_of(
    st.builds(lambda low, width: {"type": "string", "minLength": low, "maxLength": low + width}, small, small),
    st.sampled_from(["^[A-Z]{3}-\\d{2,4}$", "^(foo|bar)+$", "^#[0-9a-f]{6}$", "x.?y", "^\\S+@\\S+$", "^$"]).map(
        lambda pattern: {"type": "string", "pattern": pattern}
    ),
    st.sampled_from(["date", "date-time", "time", "email", "uri", "uuid", "ipv4", "ipv6", "hostname"]).map(
        lambda form: {"type": "string", "format": form}
    ),
)
numbers = st.one_of(
    st.builds(_range, st.integers(-9, 9), small, st.sampled_from(["integer", "number"])),
    st.builds(lambda low: {"type": "integer", "exclusiveMinimum": low}, st.integers(-9, 9)),
    st.builds(
        lambda low: {"type": "number", "exclusiveMinimum": low, "exclusiveMaximum": low + 0.5}, st.integers(-9, 9)
    ),
    st.builds(
        lambda step, low: {"type": "integer", "multipleOf": step, "minimum": low},
        st.integers(1, 7),
        st.integers(-20, 20),
    ),
)
leaves = st.one_of(
    strings,
    numbers,
    st.sampled_from(
        [{"type": "boolean"}, {"type": "null"}, {"type": ["null", "integer"]}, {}, {"const": [1, {"a": None}]}]
    ),
    st.lists(st.one_of(texts, st.integers(), st.none()), min_size=1, max_size=3).map(lambda values: {"enum": values}),
)


def _object(properties: dict[str, Any], count: int, least: int) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": list(properties)[:count], "minProperties": least}
    return {**schema, "additionalProperties": least > len(properties) and {"type": "integer"}}


def _grow(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.one_of(
        st.builds(_object, st.dictionaries(st.sampled_from("abcdef"), inner, max_size=4), small, st.integers(0, 5)),
        st.builds(lambda items, least: {"type": "array", "items": items, "minItems": least}, inner, small),
        st.builds(
            lambda first, rest: {"type": "array", "prefixItems": first, "minItems": len(first), "items": rest},
            st.lists(inner, min_size=1, max_size=2),
            inner,
        ),
        st.builds(
            lambda kind, least: {"type": "array", "items": {"type": kind}, "minItems": least, "uniqueItems": True},
            st.sampled_from(["string", "integer"]),
            small,
        ),
        st.builds(lambda one, two: {"anyOf": [one, two]}, inner, inner),
        inner.map(lambda one: {"anyOf": [{"type": "null"}, {"allOf": [one]}]}),
        strings.map(lambda one: {"oneOf": [{"type": "null"}, one]}),
    )


schemas = st.recursive(leaves, _grow, max_leaves=8)


@settings(max_examples=150, deadline=None)
@given(
    schema=schemas,
    said=st.sampled_from(["", "Tide at `Ayr` for 3 days?", 'Set "x1y" to 12.5, or 7, in Paris Nord', "foo"]),
)
def test_a_value_satisfies_its_schema(schema: dict[str, Any], said: str) -> None:
    value = value_for(schema, said)
    jsonschema.validate(value, schema, cls=jsonschema.Draft202012Validator)
    assert json.loads(json.dumps(value)) == value


@settings(max_examples=50, deadline=None)
@given(inner=st.dictionaries(st.sampled_from("abcdef"), schemas, max_size=4), count=small)
def test_arguments_are_an_object_that_satisfies_the_schema(inner: dict[str, Any], count: int) -> None:
    schema = {"type": "object", "properties": inner, "required": list(inner)[:count], "additionalProperties": False}
    jsonschema.validate(arguments_for(schema, "Use `one` and `two`."), schema)


def test_references_lead_to_definitions_even_in_circles() -> None:
    schema = {
        "type": "object",
        "properties": {"node": {"$ref": "#/$defs/node"}},
        "required": ["node"],
        "$defs": {
            "node": {
                "type": "object",
                "properties": {"n": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}},
                "required": ["n"],
            }
        },
    }
    assert arguments_for(schema, "") == {"node": {"n": 1}}
    assert isinstance(arguments_for({"$ref": "#"}, ""), dict)


STRING = {"type": "string"}


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("Weather in `Oslo` please", {"q": "Oslo"}),
        ('Weather in "Bad Ems"', {"q": "Bad Ems"}),
        ("How much is 3 * (4 + 5)?", {"q": "3 * (4 + 5)"}),
        ("add (-1.5+2)*-(3 ^ 2), please", {"q": "(-1.5+2)*-(3 ^ 2)"}),
        ("what is the tide at Port Ellen today", {"q": "Port Ellen"}),
        ("tell me something", {"q": "tell me something"}),
    ],
)
def test_a_string_is_taken_from_the_users_words(said: str, expected: dict[str, str]) -> None:
    assert arguments_for({"type": "object", "properties": {"q": STRING}, "required": ["q"]}, said) == expected


def test_of_quotes_within_quotes_the_innermost_is_the_value() -> None:
    assert words.quoted("\"Run `cat a.txt` and say what 'b c' is\"") == ["cat a.txt", "b c"]


def test_quoted_values_are_given_out_in_order_and_once() -> None:
    schema = {"type": "object", "properties": {"old": STRING, "new": STRING}, "required": ["old", "new"]}
    assert arguments_for(schema, "Replace `a.py` by `b.py`") == {"old": "a.py", "new": "b.py"}


def test_a_quoted_value_fills_an_optional_string_that_nothing_required_takes() -> None:
    schema = {"type": "object", "properties": {"days": {"type": "integer"}, "port": STRING}, "required": ["days"]}
    assert arguments_for(schema, "Tide at `Ayr` for 3 days") == {"days": 3, "port": "Ayr"}


def test_a_choice_that_was_said_is_taken() -> None:
    schema = {"type": "object", "properties": {"unit": {"enum": ["celsius", "fahrenheit"]}}, "required": ["unit"]}
    assert arguments_for(schema, "in Fahrenheit please") == {"unit": "fahrenheit"}


@pytest.mark.parametrize("pattern", ["(?=a)b", "\\1", "(", "[", "a{2", "*", "[^\\x00-\\uffff]", "a)", "(?P<n>a)"])
def test_patterns_beyond_us_are_no_error(pattern: str) -> None:
    text = matching(pattern)
    assert text is None or re.search(pattern, text)


@settings(max_examples=80, deadline=None)
@given(st.from_regex(r"\A(\^?([a-c]|\[[a-c^]{1,3}\]|\(a\|b\)|\\d|\.)([*+?]|\{[1-3]\})?){1,5}\$?\Z"))
def test_a_made_text_matches_its_pattern(pattern: str) -> None:
    text = matching(pattern)
    assert text is None or re.search(pattern, text)


def test_identifiers_and_plurals_meet_in_one_stem() -> None:
    assert list(words.stems("getTideTable for the ports")) == ["tide", "table", "port"]


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=True), st.text(max_size=4)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=6,
)
KEYWORDS = (
    "type properties required items prefixItems minItems maxItems uniqueItems minLength maxLength pattern format enum const anyOf "
    "oneOf allOf $ref minimum maximum exclusiveMinimum exclusiveMaximum multipleOf minProperties additionalProperties default"
)
nonsense = st.recursive(
    st.one_of(
        json_values, st.sampled_from(["string", "array", "object", "integer", "number", "#", "#/allOf/0", 10**12, -1])
    ),
    lambda inner: st.dictionaries(
        st.sampled_from(KEYWORDS.split()), st.one_of(inner, st.lists(inner, max_size=3)), max_size=5
    ),
    max_leaves=12,
)


@settings(max_examples=120, deadline=2000)
@given(schema=st.dictionaries(st.sampled_from(KEYWORDS.split()), nonsense, max_size=6))
def test_a_schema_that_is_nonsense_still_gives_a_value(schema: dict[str, Any]) -> None:
    json.dumps(value_for(schema, "Tide at `Ayr` for 3 days, 1 - 2"))
    assert isinstance(arguments_for(schema, ""), dict)


@pytest.mark.parametrize(
    "schema",
    [
        {"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}] * 8}}, "$ref": "#/$defs/a"},
        {"type": "object", "properties": {"a": {"$ref": "#"}, "b": {"$ref": "#"}}, "required": ["a", "b"]},
        {"type": "array", "minItems": 10**12},
        {"type": "string", "minLength": 10**12},
        {"type": "string", "pattern": "^(a+)+$"},
        {"type": "array", "items": {"const": 1e308}, "minItems": 9, "uniqueItems": True},
    ],
)
def test_a_schema_without_end_comes_to_an_end(schema: dict[str, Any]) -> None:
    assert len(json.dumps(value_for(schema, "`" + "a" * 40 + "!`"))) < 200_000


@pytest.mark.timeout(5)
def test_long_texts_are_read_in_one_go() -> None:
    for text in ("1" + "-" * 50_000, "1 + " * 20_000, "(" * 50_000, "`" * 50_000, "A " * 30_000):
        for read in (words.sums, words.quoted, words.names, words.numbers):
            assert len(read(text)) <= len(text)
