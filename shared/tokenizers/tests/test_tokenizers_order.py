"""Messages in an order a template takes: whatever it wants, nothing is lost and what it refuses is not there."""

from itertools import pairwise
from typing import Any

from catenary_tokenizers.order import order_messages
from catenary_tokenizers.safety import Shield
from catenary_tokenizers.shape import shape_messages, shape_tools
from catenary_tokenizers.traits import Traits
from hypothesis import given
from hypothesis import strategies as st

PLAIN = Shield([])
TRAITS = st.builds(
    Traits,
    parts=st.sampled_from(["text", "list", "either"]),
    system=st.sampled_from(["anywhere", "first", "never"]),
    systems_merge=st.booleans(),
    alternates=st.booleans(),
    opens_with_user=st.booleans(),
    tool_results=st.booleans(),
    lone_results=st.booleans(),
    single_calls=st.booleans(),
    answers_results=st.booleans(),
    needs_user=st.booleans(),
    one_text=st.booleans(),
    interleaved=st.sampled_from(["split", "list", "join"]),
    ends_early=st.booleans(),
    later_text=st.booleans(),
)
ROLES = st.lists(st.sampled_from(["system", "user", "assistant", "calls", "tool"]), min_size=1, max_size=12)


def conversation(roles: list[str]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for number, role in enumerate(roles):
        message: dict[str, Any] = {"role": "assistant" if role == "calls" else role, "content": f"<{number}>"}
        if role == "calls":
            names = (f"{number}a", f"{number}b")
            message["tool_calls"] = [{"id": name, "function": {"name": name, "arguments": {}}} for name in names]
        if role == "tool":
            message["tool_call_id"] = f"{number - 1}a"
        messages.append(message)
    return messages


def called(messages: list[dict[str, Any]]) -> list[str]:
    return [call["function"]["name"] for message in messages for call in message.get("tool_calls", ())]


@given(TRAITS, ROLES)
def test_nothing_is_lost_and_nothing_refused_is_left(traits: Traits, roles: list[str]) -> None:
    messages = conversation(roles)
    shaped = shape_messages(messages, traits, PLAIN)
    said = "".join(str(message["content"]) + str(message.get("reasoning_content", "")) for message in shaped)
    assert all(said.count(f"<{number}>") == 1 for number in range(len(roles)))
    assert called(shaped) == called(messages)
    kinds = [message["role"] for message in shaped]
    if traits.system == "never":
        assert "system" not in kinds
    if traits.system == "first":
        assert "system" not in kinds[1:]
    if traits.needs_user:
        assert "user" in kinds
    if traits.single_calls:
        assert all(len(message.get("tool_calls", ())) < 2 for message in shaped)
    for before, after in pairwise(kinds):
        assert not (traits.alternates and before == after == "user")
        assert not (traits.answers_results and (before, after) == ("tool", "user"))


@given(ROLES)
def test_a_template_that_takes_everything_gets_everything_unchanged(roles: list[str]) -> None:
    shaped = shape_messages(conversation(roles), Traits(), PLAIN)
    assert order_messages(shaped, Traits()) == shaped


def test_several_calls_are_set_apart_with_their_results() -> None:
    calls: list[dict[str, Any]] = [{"id": name, "function": {"name": name, "arguments": {}}} for name in "fg"]
    results = [{"role": "tool", "content": name, "tool_call_id": name} for name in ("g", "f")]
    shaped = shape_messages(
        [{"role": "assistant", "content": "", "tool_calls": calls}, *results], Traits(single_calls=True), PLAIN
    )
    assert [message["content"] or called([message])[0] for message in shaped] == ["f", "f", "g", "g"]


def test_merged_messages_keep_text_reasoning_and_calls() -> None:
    def answer(text: str) -> dict[str, Any]:
        call = {"id": text, "function": {"name": text, "arguments": {}}}
        return {"role": "assistant", "content": text, "reasoning_content": text, "tool_calls": [call]}

    (merged,) = shape_messages([answer("a"), answer("b")], Traits(alternates=True), PLAIN)
    assert (merged["content"], merged["reasoning_content"], called([merged])) == ("a\n\nb", "a\n\nb", ["a", "b"])
    parts = Traits(alternates=True, parts="list")
    (listed,) = shape_messages([{"role": "user", "content": text} for text in ("a", "b")], parts, PLAIN)
    assert [part["text"] for part in listed["content"]] == ["a", "b"]


def test_tools_get_what_a_template_cannot_do_without() -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    assert shape_tools([tool], Traits()) == [tool]
    (whole,) = shape_tools([tool], Traits(whole_tools=True))
    assert whole["function"] == {
        "name": "f",
        "description": "",
        "parameters": {"type": "object", "properties": {}},
    }
