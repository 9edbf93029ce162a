"""Schemas that must hold are looked at on every engine: what no draft takes is refused, and what one takes is taken."""

import json
import re
import warnings
from typing import Any

import pytest
from catenary_protocols.apis.chat import CHAT
from catenary_protocols.apis.json_schema import Schema, check_schema
from catenary_protocols.errors import RequestError
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

PATTERNS = st.sampled_from(["", "^[a-z]+$", r"\(", r"[(\]]", "(?:a|b)*", r"(?<year>\d{4})", r"\p{L}", "[^]", "a{2,}"])
COUNTS = st.integers(0, 9)
KINDS = st.sampled_from(["array", "boolean", "integer", "null", "number", "object", "string"])
NAMES = st.sampled_from(["a", "$ref", "type", "("])
NUMBERS = st.integers(-9, 9) | st.floats(-9, 9)
LEAF: st.SearchStrategy[Any] = st.booleans() | st.just({})


def keywords(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Schemas of the draft 2020-12 around these."""
    named, several = st.dictionaries(NAMES, inner, max_size=2), st.lists(inner, min_size=1, max_size=2)
    words = {
        **dict.fromkeys(("minProperties", "maxItems", "minLength", "minContains"), COUNTS),
        **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), NUMBERS),
        **dict.fromkeys(("properties", "$defs", "definitions", "dependentSchemas"), named),
        **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), several),
        **dict.fromkeys(("items", "not", "if", "then", "else", "contains", "additionalProperties"), inner),
        "type": KINDS | st.lists(KINDS, min_size=1, max_size=2, unique=True),
        "enum": st.lists(st.none() | st.text() | COUNTS, max_size=2),
        "required": st.lists(NAMES, unique=True),
        "dependentRequired": st.dictionaries(NAMES, st.lists(NAMES, unique=True), max_size=1),
        "patternProperties": st.dictionaries(PATTERNS, inner, max_size=1),
        "pattern": PATTERNS,
        "multipleOf": st.floats(0.5, 3),
        "uniqueItems": st.booleans(),
        "$ref": st.just("#/$defs/a"),
        "title": st.text(max_size=3),
        "x-own": st.none(),
    }
    return st.lists(st.sampled_from(sorted(words)), max_size=4, unique=True).flatmap(
        lambda chosen: st.fixed_dictionaries({word: words[word] for word in chosen})
    )


def refusal(schema: Any) -> str:
    """The field that is named, "" for none."""
    try:
        check_schema(json.dumps(schema).encode(), "f")
    except RequestError as error:
        return error.field
    return ""


@given(st.recursive(LEAF, keywords, max_leaves=6).filter(lambda one: isinstance(one, dict)))
def test_what_the_latest_draft_takes_is_taken(schema: Any) -> None:
    Draft202012Validator(Draft202012Validator.META_SCHEMA).validate(schema)
    assert refusal(schema) == ""


@given(st.sampled_from(sorted(Schema.__annotations__)), st.sampled_from([None, 1.5, "1", {"a": 1}, [[1]], -1]))
def test_a_word_with_a_value_that_the_latest_draft_does_not_take_is_refused(word: str, value: Any) -> None:
    wrong = any(
        error.path and error.path[0] == word
        for error in Draft202012Validator(Draft202012Validator.META_SCHEMA).iter_errors({word: value})
    )
    if word != "additionalItems":  # a draft before had it
        assert (refusal({word: value}) != "") is wrong


@pytest.mark.parametrize(
    "schema",
    [
        {"items": [{"type": "string"}, True], "additionalItems": False},
        {"minimum": 1, "exclusiveMinimum": True},
        {"type": "string", "nullable": True, "example": 3, "format": "date"},
        {"dependencies": {"a": ["b"], "c": {"type": "object"}}},
        {"description": None, "default": None, "minLength": 2.0},
        {"$ref": "#/$defs/nowhere"},
    ],
    ids=str,
)
def test_what_other_drafts_and_dialects_take_is_taken(schema: Any) -> None:
    assert refusal(schema) == ""


@pytest.mark.parametrize(
    ("schema", "field"),
    [
        ({"type": "nosuch"}, "f.type"),
        ({"type": ["string", "nosuch"]}, "f.type[1]"),
        ({"properties": {"a": {"pattern": "("}}}, "f.properties[...].pattern"),
        ({"patternProperties": {"[a": True}}, "f.patternProperties"),
        ({"anyOf": [True, {"type": 3}]}, "f.anyOf[1].type"),
        ({"properties": {"a": "string"}}, "f.properties[...]"),
        ({"required": True}, "f.required"),
        ({"multipleOf": 0}, "f.multipleOf"),
        ({"enum": "a"}, "f.enum"),
    ],
    ids=str,
)
def test_what_no_draft_takes_is_named(schema: Any, field: str) -> None:
    assert refusal(schema) == field


@pytest.mark.parametrize("pattern", ["(", "a)", "(a))(", "[a", r"[a\]", "a\\", "*.py", "+", r"\\(", "[](a"])
def test_what_is_no_regular_expression_of_any_kind_is_refused(pattern: str) -> None:
    assert refusal({"pattern": pattern}) == "f.pattern"


@given(st.text(r"()[]\a^|*", max_size=12))
def test_what_python_takes_for_a_regular_expression_is_taken(pattern: str) -> None:
    with warnings.catch_warnings(action="ignore"):
        try:
            re.compile(pattern)
        except re.error:
            return
    if "[]" in pattern or "[^]" in pattern:  # a class that ends there, for those whom JSON Schema follows
        return
    assert refusal({"pattern": pattern}) == ""


def asking(**more: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": "Tide?"}], **more}).encode()


def test_only_what_must_hold_is_looked_at() -> None:
    odd = {"type": "object", "properties": {"a": {"type": "nosuch", "pattern": "("}}}
    for strict in (None, False):
        CHAT.read(asking(tools=[{"type": "function", "function": {"name": "f", "parameters": odd, "strict": strict}}]))
    with pytest.raises(RequestError, match="nosuch") as refused:
        CHAT.read(asking(tools=[{"type": "function", "function": {"name": "f", "parameters": odd, "strict": True}}]))
    assert refused.value.field == "tools[0].function.parameters.properties[...].type"
    with pytest.raises(RequestError) as refused:
        CHAT.read(asking(response_format={"type": "json_schema", "json_schema": {"schema": odd}}))
    assert refused.value.field == "response_format.json_schema.schema.properties[...].type"
