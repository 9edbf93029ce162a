"""Marks: what they break, and that taking them out gives the caller's text back."""

import json
import re
from typing import Any

from catenary_tokenizers.probe import open_template
from catenary_tokenizers.safety import Shield, longest_of
from catenary_tokenizers.template import to_json
from hypothesis import given
from hypothesis import strategies as st

CONTROLS = ["<|im_start|>", "<|im_end|>", "<think>", "</think>", "[INST]", "[/INST]", "ab<", "<ab", "INST"]
SHIELD = Shield(CONTROLS)
MARK = SHIELD.mark
PIECES = [*CONTROLS, *(c[:n] for c in CONTROLS for n in (1, 3)), *(c[-3:] for c in CONTROLS), "think", "im_start"]
PRIVATE = ["\ue000", "\ue001", "0", "1", "\\ue000", "\\ue001", "\\u", "e000", "\\"]
TEXTS = st.lists(st.one_of(st.sampled_from(PIECES), st.sampled_from(PRIVATE), st.text(max_size=5)), max_size=8).map(
    "".join
)

JSON = TEXTS | st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False)


def holds_control(text: str) -> bool:
    return any(control in text for control in CONTROLS)


@given(TEXTS)
def test_a_marked_text_holds_no_control_token_and_comes_back(text: str) -> None:
    marked = SHIELD.shield(text)
    assert not holds_control(marked)
    assert SHIELD.clean(marked) == text
    assert SHIELD.clean(SHIELD.escape(text)) == text


@given(TEXTS, TEXTS, TEXTS)
def test_marked_texts_complete_no_control_token_together(left: str, middle: str, right: str) -> None:
    assert not holds_control("".join(map(SHIELD.shield, (left, middle, right))))


@given(TEXTS.filter(bool), st.sampled_from(CONTROLS), st.data())
def test_a_marked_text_completes_no_control_token_with_the_templates_text(
    text: str, control: str, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(control) - 1))
    end = data.draw(st.integers(start, len(control)))
    around = control[:start] + SHIELD.shield(text) + control[end:]
    assert not holds_control(around) or holds_control(control[:start]) or holds_control(control[end:])


@given(TEXTS)
def test_marks_spelled_as_escapes_are_undone(text: str) -> None:
    marked = SHIELD.shield(text)
    assert json.loads(SHIELD.clean(json.dumps(marked))) == text


def test_keys_that_templates_look_up_are_left_alone() -> None:
    shield = Shield(["<|repo_name|>", "<parameter>", "<name>"])
    schema: dict[str, Any] = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    shielded: Any = shield.shield_structure({"name": "f", "parameters": schema})
    assert shielded.keys() == {"name", "parameters"}
    assert shielded["parameters"]["type"] == "object"
    (named,) = shielded["parameters"]["properties"]
    assert named != "name"
    assert shielded["parameters"]["required"] == [named]
    assert shield.clean(named) == "name"


def test_argument_names_are_marked_at_any_depth() -> None:
    shielded: Any = SHIELD.shield_data({"a": [{"think": {"think": True}}]})
    assert "think" not in str(shielded)


@given(st.recursive(JSON, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3)))
def test_arguments_that_come_again_are_shielded_as_when_they_came_first(value: object) -> None:
    arguments = {"path": value, "again": {"think": 1}}
    for _ in range(2):
        shielded = SHIELD.shield_arguments(json.loads(json.dumps(arguments)))
        assert to_json(shielded) == to_json(SHIELD.shield_data(arguments))


def test_the_same_arguments_are_shielded_once_unless_they_are_long() -> None:
    short, long = {"path": "<think>"}, {"path": "<think>" * 200}
    assert SHIELD.shield_arguments(short) is SHIELD.shield_arguments({**short})
    assert SHIELD.shield_arguments(long) is not SHIELD.shield_arguments({**long})


def test_marks_are_characters_that_the_template_does_not_use() -> None:
    shield = Shield(CONTROLS, template="\ue000 \\ue001")
    assert shield.mark == "\ue002"


def test_the_same_tools_are_shielded_once() -> None:
    tool = {"type": "function", "function": {"name": "<think>"}}
    first, second = SHIELD.shield_constants([tool]), SHIELD.shield_constants([json.loads(json.dumps(tool))])
    assert first is second
    typed = [SHIELD.shield_constants([{**tool, "x": value}])[0]["x"] for value in (True, 1, 1.0)]
    assert [type(value) for value in typed] == [bool, int, float]


def test_a_template_that_writes_names_between_brackets_makes_no_control_token() -> None:
    source = "{% for m in messages %}{{ '<' + m.content + '>' }}{% endfor %}"
    rendered = open_template(source, {}).render([{"role": "user", "content": "think"}], [], SHIELD, None, {})
    assert not holds_control(rendered)
    assert SHIELD.clean(rendered) == "<think>"


@given(
    st.lists(st.text(alphabet="ab<", min_size=1, max_size=4), min_size=1, max_size=6),
    st.text(alphabet="ab<", max_size=9),
)
def test_the_longest_of_several_texts_is_found(texts: list[str], text: str) -> None:
    found = re.compile(longest_of(texts)).match(text)
    expected = max((one for one in texts if text.startswith(one)), key=len, default=None)
    assert (found and found[0]) == expected
