"""Answers in which thoughts and calls alternate, as templates of each kind take them."""

from typing import Any

import pytest
from catenary_tokenizers.errors import PromptError
from catenary_tokenizers.probe import open_template
from catenary_tokenizers.safety import Shield
from catenary_tokenizers.shape import shape_messages
from catenary_tokenizers.traits import Traits

PLAIN = Shield([])
OTHERS = "{% if m.role in ['user', 'tool', 'system'] %}[{{ m.role }} {{ m.content }}]{% else %}"
CALL = "({{ call.function.name }} {{ call.function.arguments | tojson }})"
SPLIT = (
    "{% for m in messages %}" + OTHERS + "<{{ m.reasoning_content }}>{{ m.content }}"
    "{% for call in m.tool_calls or [] %}" + CALL + "{% endfor %}{% endif %}{% endfor %}"
)
ALTERNATING = "{% for m in messages %}{% if loop.index0 and m.role == 'assistant' == messages[loop.index0 - 1].role %}"
ALTERNATING += "{{ raise_exception('one answer at a time') }}{% endif %}{% endfor %}"
LISTED = (
    ALTERNATING + "{% for m in messages %}" + OTHERS + "{% set r = m.reasoning_content or [] %}"
    "{% set r = [r] if r is string else r %}{% for call in m.tool_calls or [] %}<{{ r[loop.index0] }}>"
    + CALL
    + "{% endfor %}"
    "{% for thought in r[(m.tool_calls or []) | length:] %}<{{ thought }}>{% endfor %}{{ m.content }}{% endif %}{% endfor %}"
)
JOINED = ALTERNATING + SPLIT
LATER = """{# reads <think></think> in texts #}{% set seen = namespace(calls=false) %}{% for m in messages %}{% if m.role == 'assistant' %}
{%- if not m.tool_calls or not seen.calls %}{{ m.content }}{% endif %}
{%- for call in m.tool_calls or [] %}{% set seen.calls = true %}(CALL){% endfor %}
{%- else %}[{{ m.content }}]{% endif %}{% endfor %}""".replace("(CALL)", CALL)


def answer(thought: str, call: str = "", text: str = "") -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if thought:
        message["reasoning_content"] = thought
    if call:
        message["tool_calls"] = [{"id": call, "function": {"name": call, "arguments": {}}}]
    return message


def result(call: str) -> dict[str, Any]:
    return {"role": "tool", "content": call.upper(), "tool_call_id": call}


def rendered(source: str, *messages: dict[str, Any]) -> str:
    return open_template(source, {}).render([{"role": "user", "content": "?"}, *messages], [], PLAIN, None, {})


ALTERNATE = (answer("one", "f"), answer("two", "g"), answer("three", text="so"), result("f"), result("g"))


@pytest.mark.parametrize(
    ("source", "way", "expected"),
    [
        (SPLIT, "split", "[user ?]<one>(f {})<two>(g {})<three>so[tool F][tool G]"),
        (LISTED, "list", "[user ?]<one>(f {})<two>(g {})<three>so[tool F][tool G]"),
        (JOINED, "join", "[user ?]<one\ntwo\nthree>so(f {})(g {})[tool F][tool G]"),
    ],
)
def test_thoughts_stand_as_near_to_their_calls_as_the_template_lets_them(source: str, way: str, expected: str) -> None:
    assert open_template(source, {}).traits.interleaved == way
    assert rendered(source, *ALTERNATE) == expected


def test_each_turn_of_a_loop_keeps_its_own_thought() -> None:
    turns = (answer("one", "f"), result("f"), answer("two", "g"), result("g"), answer("three", text="so"))
    for source in (SPLIT, LISTED, JOINED):
        assert rendered(source, *turns) == "[user ?]<one>(f {})[tool F]<two>(g {})[tool G]<three>so"


def test_calls_without_a_thought_take_none_of_anothers() -> None:
    two = {**answer("one"), "tool_calls": [answer("", name)["tool_calls"][0] for name in "fg"]}
    (listed,) = shape_messages([two, answer("three", "h")], Traits(interleaved="list"), PLAIN)
    assert listed["reasoning_content"] == ["one", "", "three"]


def test_calls_set_apart_keep_their_thoughts_and_get_their_results() -> None:
    traits = Traits(single_calls=True, ends_early=False)
    shaped = shape_messages(ALTERNATE, traits, PLAIN)
    assert [(m["role"], m.get("reasoning_content"), m["content"]) for m in shaped] == [
        ("assistant", "one", ""),
        ("tool", None, "F"),
        ("assistant", "two\nthree", "so"),
        ("tool", None, "G"),
    ]


def test_text_that_a_template_prints_beside_the_first_calls_alone_stands_apart_later() -> None:
    assert not open_template(LATER, {}).traits.later_text
    turns = (answer("", "f", "First."), result("f"), answer("", "g", "Then."), result("g"))
    assert rendered(LATER, *turns) == "[?]First.(f {})[F]Then.(g {})[G]"


def test_thoughts_given_as_a_list_are_one_text_where_the_template_reads_texts() -> None:
    thought = {**answer("", "f"), "reasoning_content": ["one", "", "two"]}
    assert [m["reasoning_content"] for m in shape_messages([thought], Traits(), PLAIN)] == ["one\ntwo"]
    (listed,) = shape_messages([thought], Traits(interleaved="list"), PLAIN)
    assert listed["reasoning_content"] == ["one", "", "two"]


@pytest.mark.parametrize("broken", [{"content": 5}, {"content": [5]}, {"tool_calls": [5]}])
def test_what_is_broken_in_an_answer_that_goes_on_is_named(broken: dict[str, Any]) -> None:
    with pytest.raises(PromptError, match=r"messages\[0\]|content"):
        shape_messages([answer("one", "f"), {**answer("two", "g"), **broken}], Traits(interleaved="join"), PLAIN)


def test_parts_of_joined_answers_stay_parts() -> None:
    pictured = {**answer("", "f"), "content": [{"type": "text", "text": "a"}]}
    (joined,) = shape_messages([pictured, answer("", "g", "b")], Traits(interleaved="join", parts="list"), PLAIN)
    assert [part["text"] for part in joined["content"]] == ["a", "b"]
    assert [call["function"]["name"] for call in joined["tool_calls"]] == ["f", "g"]
