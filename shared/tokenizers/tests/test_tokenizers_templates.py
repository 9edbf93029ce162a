"""Templates: what they may cost, what they may print, and how conversations are shaped to them."""

from datetime import UTC, datetime
from typing import Any

import pytest
from catenary_tokenizers.chat import ChatTemplate
from catenary_tokenizers.errors import PromptError, TemplateLimitError
from catenary_tokenizers.probe import open_template
from catenary_tokenizers.safety import Constant, Shield
from catenary_tokenizers.shape import shape_messages
from catenary_tokenizers.template import Jinja2Engine, MiniJinjaEngine, to_json
from catenary_tokenizers.traits import Traits
from hypothesis import given
from hypothesis import strategies as st

PLAIN = Shield([])
LINES = "{% for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}"
ALTERNATING = """
{%- set messages = messages[1:] if messages[0].role == 'system' else messages %}
{%- for m in messages %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
{{- m.role + ': ' + m.content + '\\n' }}
{%- endfor %}"""
USER, ANSWER = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}


def text(
    source: str, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None, **kwargs: object
) -> str:
    return open_template(source, {}).render(messages, tools or [], PLAIN, None, kwargs)


def shaped(traits: Traits, *messages: dict[str, Any]) -> list[dict[str, Any]]:
    return shape_messages(messages, traits, PLAIN)


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{{ messages[0].content }}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}",
    ],
)
def test_a_template_without_end_is_stopped(source: str) -> None:
    engine = MiniJinjaEngine(source)
    with pytest.raises((TemplateLimitError, PromptError)):
        engine.render({"messages": [USER]}, None)


def test_a_template_without_end_is_refused_at_load() -> None:
    with pytest.raises(ValueError, match="small conversation"):
        open_template("{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}", {})


def test_a_template_on_which_the_sandbox_does_not_end_in_time_is_refused_at_load() -> None:
    class Late:
        def render(self, context: object, now: object) -> str:
            raise TemplateLimitError(f"5 seconds are over: {context and now and 'late'}")

    with pytest.raises(ValueError, match="small conversation"):
        open_template(LINES, {}, lambda _: Late())


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ({"content": "a"}, r"messages\[1\]: 'role' is missing"),
        ({"role": "endoftext", "content": "a"}, r"messages\[1\]: a role 'endoftext' does not exist"),
        ({"role": "assistant", "tool_calls": [{}]}, r"messages\[1\]: 'function' is missing"),
        ({"role": "assistant", "tool_calls": "f()"}, "tool_calls: a list is wanted, not str"),
        ({"role": "user", "content": ["a"]}, r"messages\[1\]: "),
    ],
)
def test_a_message_that_is_none_is_named(message: dict[str, Any], error: str) -> None:
    with pytest.raises(PromptError, match=error):
        shaped(Traits(), USER, message)


def test_what_is_nested_too_deeply_is_refused() -> None:
    deep: Any = "x"
    for _ in range(5000):
        deep = {"a": deep}
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": deep}}]}
    with pytest.raises(PromptError, match="nested too deeply"):
        text(LINES, [USER, call])
    with pytest.raises(PromptError, match="nested too deeply"):
        text(LINES, [USER], [{"type": "function", "function": {"name": "f", "parameters": deep}}])


def test_template_variables_cannot_become_control_tokens() -> None:
    template = open_template("{{ identity }}{{ 'yes' if effort == 'high' else 'no' }}", {})
    shield = Shield(["<high>", "<|end|>"])
    rendered = template.render([USER], [], shield, None, {"identity": "a<|end|>", "effort": "high"})
    assert "<|end|>" not in rendered
    assert shield.clean(rendered) == "a<|end|>yes"


def test_reasoning_goes_into_the_text_where_a_template_looks_for_it_there() -> None:
    parts = [{"type": "text", "text": "b"}]
    inline = Traits(reasoning="inline")
    message = {"role": "assistant", "content": "b", "reasoning_content": "r"}
    assert shaped(inline, message)[0]["content"] == "<think>\nr\n</think>\n\nb"
    assert shaped(inline, {**message, "content": parts})[0]["content"][1:] == parts


def test_a_developer_is_the_system() -> None:
    assert shaped(Traits(), {"role": "developer", "content": "a"}) == [{"role": "system", "content": "a"}]


def test_a_prompt_without_measure_is_refused() -> None:
    template = ChatTemplate("", MiniJinjaEngine("{{ 'x' * 80000000 }}"), {}, Traits(), needs_process=False)
    with pytest.raises(TemplateLimitError, match="80000000 characters"):
        template.render([USER], [], PLAIN, None, {})


def test_a_template_that_refuses_says_so_in_its_own_words() -> None:
    with pytest.raises(PromptError, match="only one question"):
        text("{{ raise_exception('only one question') if messages[0].content == 'a' else 'ok' }}", [USER])


def test_a_template_that_fails_is_a_prompt_error() -> None:
    with pytest.raises(PromptError):
        text("{{ messages[0].nothing.at.all }}", [USER])
    with pytest.raises(ValueError, match="xpected"):
        open_template("{% if %}", {})


def test_engines_that_disagree_are_told_apart() -> None:
    template = open_template("{{ '%s: %s' % (messages[0].role, messages[0].content) }}", {})
    assert template.needs_process
    assert template.render([USER], [], PLAIN, None, {}) == "user: a"


@pytest.mark.parametrize("engine", [MiniJinjaEngine, Jinja2Engine])
def test_what_templates_are_written_for_is_there(engine: type[MiniJinjaEngine | Jinja2Engine]) -> None:
    source = (
        "{% generation %}{{ x | tojson }}{% endgeneration %}|{{ strftime_now('%Y') }}|\r\n"
        "{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}|{{ none is iterable }}"
    )
    rendered = engine(source).render({"x": {"a": "<é&'>"}}, datetime(2026, 1, 2, tzinfo=UTC))
    assert rendered.lower() == '{"a": "<é&\'>"}|2026|\n01|false'


def test_a_date_is_asked_for_not_taken() -> None:
    with pytest.raises(PromptError, match="pass `now`"):
        text("{{ strftime_now('%d') }}", [USER])


def test_json_is_written_as_templates_expect() -> None:
    assert to_json({"b": "<ü>", "a": [1.0, None]}) == '{"b": "<ü>", "a": [1.0, null]}'
    assert to_json({"b": 1, "a": 2}, sort_keys=True, separators=(",", ":")) == '{"a":2,"b":1}'
    assert to_json(Constant(a=1), indent=0) == to_json({"a": 1}, indent=0) == '{\n"a": 1\n}'


def test_roles_that_must_alternate_are_merged() -> None:
    assert text(ALTERNATING, [USER, USER, ANSWER, ANSWER, USER]) == "user: a\n\na\nassistant: b\n\nb\nuser: a\n"


def test_a_system_message_in_the_middle_is_demoted_where_it_would_be_lost() -> None:
    late = {"role": "system", "content": "s"}
    assert "s" in text(ALTERNATING, [USER, ANSWER, late])
    assert text(LINES, [USER, late]) == "user: a\nsystem: s\n"


def test_arguments_come_as_the_template_wants_them() -> None:
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": '{"a": 1}'}}]}
    as_object, as_text = Traits(arguments="object"), Traits(arguments="string")
    assert shaped(as_object, call)[0]["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    assert shaped(as_text, call)[0]["tool_calls"][0]["function"]["arguments"] == '{"a": 1}'
    call["tool_calls"] = [{"function": {"name": "f", "arguments": "{broken"}}]
    assert shaped(as_object, call)[0]["tool_calls"][0]["function"]["arguments"] == "{broken"
    strict = Traits(arguments="object", loose_arguments=False)
    assert shaped(strict, call)[0]["tool_calls"][0]["function"]["arguments"] == {"arguments": "{broken"}


def test_calls_are_numbered_by_place_whatever_ids_a_client_uses() -> None:
    def loop(*ids: str) -> list[dict[str, Any]]:
        calls = [{"id": index, "function": {"name": "f", "arguments": {}}} for index in ids]
        results = [{"role": "tool", "content": "r", "tool_call_id": index} for index in ids]
        return [USER, {"role": "assistant", "content": "", "tool_calls": calls}, *results]

    assert shaped(Traits(), *loop("call_1", "call_2")) == shaped(Traits(), *loop("x", "y"))
    named = shaped(Traits(call_names=True), *loop("x", "y"))
    assert [call["id"] for call in named[1]["tool_calls"]] == ["functions.f:0", "functions.f:1"]
    assert [message["tool_call_id"] for message in named[2:]] == ["functions.f:0", "functions.f:1"]


def test_reasoning_sent_back_as_text_is_reasoning() -> None:
    message = {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nYes."}
    assert shaped(Traits(), message) == [
        {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm.", "thinking": "Hm."}
    ]
    assert shaped(Traits(), {"role": "assistant", "content": "<think> open"})[0]["content"] == "<think> open"


def test_a_model_of_text_refuses_an_image_by_name() -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}]}
    with pytest.raises(PromptError, match="content: this model takes text only, not 'image_url' parts"):
        shaped(Traits(parts="text"), message)
    with pytest.raises(PromptError, match="content: a list is wanted, not int"):
        shaped(Traits(), {"role": "user", "content": 3})


@given(st.lists(st.sampled_from(["system", "user", "assistant", "tool"]), min_size=1, max_size=12))
def test_no_message_is_lost_whatever_the_order(roles: list[str]) -> None:
    messages = [
        {"role": role, "content": f"<{number}>", **({"tool_call_id": "x"} if role == "tool" else {})}
        for number, role in enumerate(roles)
    ]
    template = open_template(ALTERNATING, {})
    rendered = shape_messages(messages, template.traits, PLAIN)
    joined = "".join(str(message["content"]) for message in rendered)
    assert [joined.count(f"<{number}>") for number in range(len(roles))] == [1] * len(roles)
    assert [joined.index(f"<{number}>") for number in range(len(roles))] == sorted(
        joined.index(f"<{number}>") for number in range(len(roles))
    )
