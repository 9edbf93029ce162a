"""A custom tool's text as its arguments are made: however they are cut and spelled, the same text, and at once."""

import json
from itertools import pairwise

import pytest
from catenary_protocols.apis.responses.freeform import Freeform
from hypothesis import given
from hypothesis import strategies as st

TEXTS = st.text(st.characters(codec="utf-8") | st.sampled_from('"\\\n/🌊{}'))


def given_out(arguments: str, cuts: list[int]) -> list[str]:
    freeform = Freeform()
    edges = [0, *sorted(cut % (len(arguments) + 1) for cut in cuts), len(arguments)]
    pieces = [freeform.feed(arguments[start:end]) for start, end in pairwise(edges)]
    pieces.append(freeform.close())
    assert "".join(pieces) == freeform.text
    return pieces


@given(
    TEXTS,
    st.booleans(),
    st.sampled_from(["{}", " {}", '{{"input":{}}}', '{{ "input" : {} }}']),
    st.lists(st.integers(0, 999)),
)
def test_the_pieces_join_to_the_text(text: str, escaped: bool, form: str, cuts: list[int]) -> None:
    arguments = json.dumps({"input": text}, ensure_ascii=escaped)
    if "input" in form:
        arguments = form.format(json.dumps(text, ensure_ascii=escaped))
    assert "".join(given_out(arguments, cuts)) == text


@given(TEXTS, st.lists(st.integers(0, 999)))
def test_arguments_that_are_something_else_stand_for_themselves(text: str, cuts: list[int]) -> None:
    arguments = json.dumps({"other": text, "n": [1]})
    assert "".join(given_out(arguments, cuts)) == arguments


def test_text_is_given_out_as_it_comes() -> None:
    freeform = Freeform()
    assert [
        freeform.feed(one) for one in ('{"in', 'put": "*** B', "egin\\", "n\\u00e", "9 \\ud83d", '\\ude00."', "}")
    ] == [
        "",
        "*** B",
        "egin",
        "\n",
        "é ",
        "😀.",
        "",
    ]
    assert freeform.close() == ""


@pytest.mark.parametrize("arguments", ['{"input":"a\\ud83d b"}', '{"input":"a\\ude00 b"}'])
def test_half_a_character_is_no_reason_to_lose_the_rest(arguments: str) -> None:
    assert "".join(given_out(arguments, [14])) == "a\ufffd b"


def test_another_string_before_the_text_makes_it_wait() -> None:
    assert given_out('{"why": "x", "input": "y"}', [5, 20]) == ["", "", "", "y"]
