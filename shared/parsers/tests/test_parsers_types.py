from __future__ import annotations

import ast
import json
from typing import Any

import pytest
from catenary_parsers.coerce import convert, nested, number
from catenary_parsers.schema import ANY, LITERAL, TEXT, Kind, Types
from catenary_parsers.values import JSON, MAX_DEPTH, PYTHON, json_of
from hypothesis import given
from hypothesis import strategies as st

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10)


def kind(*types: str) -> Kind:
    return Kind(frozenset(types))


@given(VALUES)
def test_json_is_read_as_what_it_is(value: Any) -> None:
    assert json.loads(json_of(json.dumps(value), JSON)) == value
    assert json.loads(json_of(json.dumps(value, ensure_ascii=False, indent=2), JSON)) == value


@given(VALUES)
def test_python_literals_are_read_as_python_reads_them(value: Any) -> None:
    assert json.loads(json_of(repr(value), PYTHON)) == ast.literal_eval(repr(value))


@given(st.text())
def test_a_text_that_is_no_json_is_refused(text: str) -> None:
    """Whatever is taken for JSON, the standard library reads too; trailing commas and raw characters aside."""
    found = json_of(text, JSON)
    if found:
        json.loads(found)


@pytest.mark.parametrize(
    "text", ["", "{", "[1", '{"a" 1}', "{a: 1}", "[1 2]", "01", "+1", "1.", "NaN", "tru", '"a', "{]", "1 2", "'a'"]
)
def test_what_is_no_json_is_refused(text: str) -> None:
    assert json_of(text, JSON) == ""


def test_depth_is_limited_so_that_no_reader_overflows() -> None:
    assert json_of("[" * MAX_DEPTH + "]" * MAX_DEPTH, JSON)
    assert not json_of("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), JSON)


@pytest.mark.parametrize(
    ("text", "types", "written"),
    [
        ("12345678901234567890123", ("integer",), "12345678901234567890123"),
        ("-0", ("number",), "-0"),
        ("1e3", ("integer",), "1e3"),
        ("007", ("integer",), "7"),
        ("+5", ("integer",), "5"),
        (".5", ("number",), "0.5"),
        ("5.0", ("integer",), "5.0"),
        ("TRUE", ("boolean",), "true"),
        ("None", ("null", "integer"), "null"),
        ("None", ("null", "string"), '"None"'),
        (" 4\n", ("integer",), "4"),
        ("[1, 'a']", ("array",), '[1, "a"]'),
        ('{"a": 1,}', ("object",), '{"a": 1}'),
        ("5", ("integer", "string"), "5"),
        ("five", ("integer", "string"), '"five"'),
        ("007", ("string",), '"007"'),
        ("null", ("string",), '"null"'),
    ],
)
def test_text_of_a_type_is_written_as_that_type(text: str, types: tuple[str, ...], written: str) -> None:
    assert convert(text, kind(*types)) == (written, True)


@pytest.mark.parametrize(
    ("text", "types"),
    [("5.5", ("integer",)), ("yes", ("boolean",)), ("[1", ("array",)), ("1_000", ("number",)), ("nan", ("number",))],
)
def test_what_does_not_convert_is_a_string_and_said_to_be(text: str, types: tuple[str, ...]) -> None:
    assert convert(text, kind(*types)) == (json.dumps(text), False)


@given(st.text())
def test_a_string_is_never_converted(text: str) -> None:
    written, fits = convert(text, TEXT)
    assert json.loads(written) == text
    assert fits


def test_a_literal_string_has_quotes() -> None:
    assert convert('"a b"', LITERAL) == ('"a b"', True)
    assert convert("a b", LITERAL) == ('"a b"', False)
    assert convert('"5"', kind("integer")) == ('"5"', False)


@given(st.text(), st.sets(st.sampled_from(sorted(ANY.types))))
def test_whatever_the_kind_the_result_is_json(text: str, types: set[str]) -> None:
    json.loads(convert(text, Kind(frozenset(types)))[0])


@given(st.integers() | st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_lose_nothing(value: float) -> None:
    assert json.loads(number(repr(value))) == value


SCHEMA = {
    "$defs": {"level": {"type": "integer"}, "loop": {"$ref": "#/$defs/loop"}, "a/b": {"type": "boolean"}},
    "properties": {
        "plain": {"type": "string"},
        "listed": {"type": ["integer", "null"]},
        "any_of": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "one_of": {"oneOf": [{"type": "boolean"}, {"type": "array"}]},
        "all_of": {"allOf": [{"type": "number"}]},
        "ref": {"$ref": "#/$defs/level"},
        "escaped_ref": {"$ref": "#/$defs/a~1b"},
        "loop": {"$ref": "#/$defs/loop"},
        "lost": {"$ref": "#/$defs/nothing"},
        "nullable": {"type": "integer", "nullable": True},
        "enum": {"enum": [1, "one"]},
        "const": {"const": True},
        "shape": {"properties": {}},
        "rows": {"items": {}},
        "empty": {},
        "broken": 7,
    },
    "patternProperties": {"^x_": {"type": "integer"}, "(": {"type": "integer"}},
    "required": ["plain"],
}


@pytest.mark.parametrize(
    ("key", "types"),
    [
        ("plain", {"string"}),
        ("listed", {"integer", "null"}),
        ("any_of", {"integer", "null"}),
        ("one_of", {"boolean", "array"}),
        ("all_of", {"number"}),
        ("ref", {"integer"}),
        ("escaped_ref", {"boolean"}),
        ("loop", set(ANY.types)),
        ("lost", set(ANY.types)),
        ("nullable", {"integer", "null"}),
        ("enum", {"integer", "string"}),
        ("const", {"boolean"}),
        ("shape", {"object"}),
        ("rows", {"array"}),
        ("empty", set(ANY.types)),
        ("broken", set(ANY.types)),
        ("x_1", set(ANY.types)),
        ("undeclared", set(ANY.types)),
    ],
)
def test_a_schema_says_what_a_value_may_be(key: str, types: set[str]) -> None:
    assert _kind(SCHEMA, key).types == types


def test_additional_properties_have_their_schema() -> None:
    assert _kind({"additionalProperties": {"type": "integer"}}, "x").types == {"integer"}
    assert _kind({"additionalProperties": True}, "x") == TEXT
    assert _kind(None, "x") == _kind({"properties": {}}, "x") == TEXT


def test_an_enum_decides_by_its_members() -> None:
    choice = _kind({"properties": {"x": {"enum": [1, "1.5", None]}}}, "x")
    assert convert("1", choice) == ("1", True)
    assert convert("1.5", choice) == ('"1.5"', True)
    assert convert("null", choice) == ("null", True)


def test_required_parameters_are_those_the_schema_lists() -> None:
    assert Types(SCHEMA).required == {"plain"}
    assert Types(None).required == Types({"required": "plain"}).required == frozenset()


def test_a_schema_that_doubles_at_each_level_is_read_in_no_time() -> None:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(60):
        schema = {"anyOf": [schema, schema]}
    assert _kind({"properties": {"x": schema}}, "x").types == {"integer"}


def test_values_made_of_tags_are_objects_and_lists() -> None:
    types = Types(
        {
            "properties": {
                "o": {"properties": {"n": {"type": "integer"}, "l": {"type": "array", "items": {"type": "integer"}}}},
                "x": {},
            }
        }
    )
    text = "<n>1</n>\n<l><a>2</a><b>3</b></l><s>4</s>"
    assert nested(text, "<", types.parameter("o"), types) == '{"n": 1, "l": [2, 3], "s": "4"}'
    assert nested("<item>a</item><item>b</item>", "<", types.parameter("x"), types) == '["a", "b"]'
    assert nested("<a>1</a> and text", "<", types.parameter("o"), types) == ""
    assert nested("text", "<", None, types) == ""


def _kind(schema: Any, key: str) -> Kind:
    types = Types(schema)
    return types.kind(types.parameter(key))
