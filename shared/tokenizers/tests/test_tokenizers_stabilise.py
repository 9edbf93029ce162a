"""Stable prompts: volatile text is taken out, tools are canonical, and a prompt that leaves its session's last says why."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest
from catenary_tokenizers import ModelTokenizer, embedded_path, load
from catenary_tokenizers.divergence import PromptWatch, SeenPrompt, diverged, seen_prompt
from catenary_tokenizers.ids import common_tokens, pack
from catenary_tokenizers.probe import open_template
from catenary_tokenizers.safety import Shield
from catenary_tokenizers.stabilise import Stabiliser, canonical_tool
from hypothesis import given
from hypothesis import strategies as st

HEADER = "x-anthropic-billing-header: cc_version=2.1.332.{}; cc_entrypoint=cli;"
BLOCK = 4


@pytest.fixture(scope="module")
def model() -> ModelTokenizer:
    return load(embedded_path())


def system(content: object) -> dict[str, object]:
    return {"role": "system", "content": content}


def text(content: str) -> dict[str, object]:
    return {"type": "text", "text": content}


@pytest.mark.parametrize("number", ["31a", "b02"])
def test_a_billing_header_is_removed_from_strings_and_blocks(number: str) -> None:
    header = HEADER.format(number)
    stable = Stabiliser().messages
    assert stable([system(f"{header}\n\nYou are a helper.")]) == [system("You are a helper.")]
    assert stable([system(header), system("Help.")]) == [system("Help.")]
    assert stable([system([text(header), text("Help.")])]) == [system([text("Help.")])]
    assert stable([system(f"Help.\n{header}\nMore.")]) == [system("Help.\nMore.")]


def test_what_users_say_is_not_touched() -> None:
    said = [{"role": "user", "content": HEADER.format("1")}, {"role": "tool", "content": HEADER.format("2")}]
    assert Stabiliser().messages(said) == said


def test_patterns_are_configurable() -> None:
    stabiliser = Stabiliser([r"<total_tokens>\d+ tokens left</total_tokens>"])
    assert stabiliser.text("a <total_tokens>15 tokens left</total_tokens>b") == "a b"
    assert stabiliser.text(HEADER) == HEADER


CONTEXT = "<<<RUN CONTEXT>>>"
"""How a message begins that a client moves along."""


def in_a_loop(calls: int, *, head: int, context: object = f"{CONTEXT}\nNothing new.") -> list[Mapping[str, object]]:
    """A conversation after so many calls of its last question, as its client sends it: the context is always last."""
    before = [{"role": role, "content": "So."} for _ in range(head) for role in ("user", "assistant")]
    steps = [{"role": role, "content": f"{role} {number}"} for number in range(calls) for role in ("assistant", "tool")]
    return [system("Help."), *before, {"role": "user", "content": "Go."}, *steps, {"role": "user", "content": context}]


@given(st.integers(0, 3), st.integers(0, 5), st.sampled_from([CONTEXT, [text(f"{CONTEXT} now"), {"type": "image"}]]))
def test_in_a_loop_of_calls_each_prompt_is_the_last_one_and_more(head: int, calls: int, context: object) -> None:
    stable = Stabiliser(moved_along=(CONTEXT,)).messages
    first, sent = in_a_loop(0, head=head, context=context), in_a_loop(calls, head=head, context=context)
    assert stable(first) == first
    assert stable(sent)[: len(first)] == first
    assert stable(sent)[len(first) :] == sent[len(first) - 1 : -1]
    assert Stabiliser().messages(sent) == sent


@pytest.mark.parametrize(
    "messages",
    [
        [system("Help."), {"role": "user", "content": CONTEXT}],
        [*in_a_loop(1, head=0), {"role": "tool", "content": "behind it"}],
        in_a_loop(1, head=0, context=f"What is {CONTEXT}?"),
        in_a_loop(1, head=0, context=[]),
        [*in_a_loop(0, head=1), {"role": "tool", "content": "x"}, {"role": "user", "content": f"{CONTEXT} again"}],
        [],
    ],
    ids=["alone", "not last", "not at its beginning", "empty", "the one before stays", "no messages"],
)
def test_what_is_not_moved_along_stays_where_it_is(messages: list[Mapping[str, object]]) -> None:
    assert Stabiliser(moved_along=(CONTEXT,)).messages(messages) == messages


def test_a_template_that_wants_one_user_message_at_a_time_gets_both_as_one() -> None:
    source = (
        "{% for m in messages %}{% if loop.index0 and m.role == 'user' == messages[loop.index0 - 1].role %}"
        "{{ raise_exception('one at a time') }}{% endif %}[{{ m.role }} {{ m.content }}]{% endfor %}"
    )
    stable = Stabiliser(moved_along=(CONTEXT,)).messages
    prompts = [
        open_template(source, {}).render(stable(in_a_loop(calls, head=0)), [], Shield([]), None, {})
        for calls in range(4)
    ]
    assert "[user Go.\n\n<<<RUN CONTEXT>>>\nNothing new.]" in prompts[0]
    assert [later.startswith(earlier) for earlier, later in pairwise(prompts)] == [True] * 3


def test_one_tool_written_two_ways_is_one_tool() -> None:
    left = {
        "type": "function",
        "cache_control": {"type": "ephemeral"},
        "function": {
            "parameters": {
                "$schema": "x",
                "required": ["b"],
                "properties": {"b": {"description": "d", "type": "integer", "minimum": 1.0}, "a": {"type": "string"}},
                "type": "object",
            },
            "name": "f",
            "description": "does",
        },
    }
    right = {
        "type": "function",
        "function": {
            "name": "f",
            "description": "does",
            "parameters": {
                "type": "object",
                "properties": {"b": {"type": "integer", "description": "d", "minimum": 1}, "a": {"type": "string"}},
                "required": ["b"],
            },
        },
    }
    assert str(canonical_tool(left)) == str(canonical_tool(right)) == str(right)


def test_property_names_that_are_keywords_are_names() -> None:
    schema = {"type": "object", "properties": {"type": {"type": "string"}, "description": {"type": "string"}, "a": {}}}
    tool = canonical_tool({"type": "function", "function": {"name": "f", "parameters": schema}})
    assert tool == {"type": "function", "function": {"name": "f", "parameters": schema}}
    assert list(schema["properties"]) == ["type", "description", "a"]


def prompt(model: ModelTokenizer, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> SeenPrompt:
    return seen_prompt(model.encode_prompt(model.render(messages, tools)), messages, tools)


TOOL = {"type": "function", "function": {"name": "f"}}
TURN: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "Bye"},
]


def test_a_longer_prompt_goes_on_from_the_last(model: ModelTokenizer) -> None:
    watch = PromptWatch(1 << 20)
    assert watch.observe("s", prompt(model, TURN[:2], [TOOL]), BLOCK) is None
    assert watch.observe("s", prompt(model, TURN, [TOOL]), BLOCK) is None


@pytest.mark.parametrize(
    ("messages", "tools", "cause", "place"),
    [
        ([system("Be long."), *TURN[1:]], [TOOL], "system", 0),
        ([*TURN[:1], {"role": "user", "content": "Ho"}, *TURN[2:]], [TOOL], "message", 1),
        ([TURN[0], TURN[3]], [TOOL], "removed", 1),
        (TURN, [TOOL, TOOL], "tools", None),
    ],
)
def test_a_prompt_that_leaves_the_last_says_where_and_why(
    model: ModelTokenizer, messages: list[dict[str, Any]], tools: list[dict[str, Any]], cause: str, place: int | None
) -> None:
    last, now = prompt(model, TURN, [TOOL]), prompt(model, messages, tools)
    found = diverged(last, now, BLOCK)
    assert found is not None
    assert (found.cause, found.message) == (cause, place)
    assert now.ids[: found.token * 4] == last.ids[: found.token * 4]
    assert now.ids[found.token * 4 :][:4] != last.ids[found.token * 4 :][:4]
    assert found.blocks_lost == len(last.ids) // 4 // BLOCK - found.token // BLOCK


def test_a_template_that_drops_old_reasoning_is_told_apart(model: ModelTokenizer) -> None:
    last = prompt(model, TURN, [TOOL])
    now = SeenPrompt(last.ids[:-8] + pack([1, 2, 3]), last.tools, last.messages)
    found = diverged(last, now, BLOCK)
    assert found is not None
    assert found.cause == "rendering"


@given(st.lists(st.integers(0, 3), max_size=20), st.lists(st.integers(0, 3), max_size=20))
def test_common_tokens_are_the_longest_common_beginning(left: list[int], right: list[int]) -> None:
    count = common_tokens(pack(left), pack(right))
    assert left[:count] == right[:count]
    assert count == min(len(left), len(right)) or left[count] != right[count]


def test_the_watch_is_bounded(model: ModelTokenizer) -> None:
    watch = PromptWatch(10_000)
    for number in range(100):
        watch.observe(str(number), prompt(model, TURN, [TOOL]), BLOCK)
    assert watch.observe("0", prompt(model, TURN[:1], [TOOL]), BLOCK) is None
    assert watch.observe("99", prompt(model, TURN[:1], [TOOL]), BLOCK) is not None
