"""A call's id tells how much was thought before it, so that Chat's one text of reasoning finds its places again."""

import json
from typing import Any

import pytest
from catenary_protocols.apis.chat import CHAT
from catenary_protocols.call_ids import call_id, thought_before
from catenary_protocols.conversation import AssistantMessage, CallPart, ReasoningPart, TextPart
from catenary_protocols.turn_events import CallBegun, CallComplete, Finished, ReasoningDelta, TextDelta, Usage
from hypothesis import given
from hypothesis import strategies as st

TURN = "01jd0000000000000000000000"
TURN_EVENTS = st.lists(st.tuples(st.text(min_size=1, max_size=9), st.booleans()), min_size=1, max_size=4)


@given(st.integers(0, 15), st.integers(0, 4095), st.integers(1, 10**6))
def test_an_id_says_it_with_and_without_its_underscore(choice: int, index: int, thought: int) -> None:
    id_ = call_id(TURN, choice, index, thought)
    assert thought_before(id_) == thought_before(id_.replace("_", "")) == thought
    assert thought_before(call_id(TURN, choice, index)) is None
    assert thought_before("functions.tide:0") is None


def echoed(message: dict[str, Any]) -> AssistantMessage:
    """What the mesh makes of a message that a client sends back."""
    user = {"role": "user", "content": "?"}
    results = [{"role": "tool", "tool_call_id": c["id"], "content": "ok"} for c in message.get("tool_calls") or ()]
    body = {"model": "m", "messages": [user, {"role": "assistant", **message}, *results]}
    said = CHAT.read(json.dumps(body).encode()).conversation.messages[1]
    assert isinstance(said, AssistantMessage)
    return said


@given(TURN_EVENTS, st.text(max_size=5))
def test_thoughts_come_back_before_their_own_calls(steps: list[tuple[str, bool]], text: str) -> None:
    encoder = CHAT.encoder(CHAT.read(b'{"model":"m","messages":[{"role":"user","content":"?"}]}'), TURN, 7)
    parts: list[ReasoningPart | TextPart | CallPart] = []
    thought = calls = 0
    for reasoning, called in steps:
        encoder.feed((ReasoningDelta(text=reasoning),))
        thought += len(reasoning)
        if parts and isinstance(parts[-1], ReasoningPart):
            parts[-1] = ReasoningPart(text=parts[-1].text + reasoning)
        else:
            parts.append(ReasoningPart(text=reasoning))
        if called:
            id_ = call_id(TURN, 0, calls, thought)
            encoder.feed((CallBegun(index=calls, id=id_, name="tide"),))
            encoder.feed((CallComplete(index=calls, id=id_, name="tide", arguments="{}"),))
            parts.append(CallPart(id=id_, name="tide", arguments="{}"))
            calls += 1
    encoder.feed((TextDelta(text=text), Finished(reason="stop", usage=Usage())))
    message = json.loads(encoder.body())["choices"][0]["message"]
    said = [part for part in echoed(message).parts if not isinstance(part, TextPart)]
    assert said == parts


def calls(*thought: int) -> list[dict[str, Any]]:
    function = {"name": "tide", "arguments": "{}"}
    return [{"id": call_id(TURN, 0, index, count), "function": function} for index, count in enumerate(thought)]


@pytest.mark.parametrize(
    ("said", "left_out"),
    [
        ({}, True),
        ({"content": "Let me see.", "reasoning_content": None, "reasoning": None}, True),
        ({"reasoning_content": ""}, False),
        ({"reasoning": ""}, False),
        ({"reasoning_content": "so"}, False),
        ({"reasoning_content": []}, False),
        ({"reasoning": ["so"]}, False),
        ({"content": "\n<think>\nso\n</think>\n\nLet me see."}, False),
    ],
)
def test_a_client_without_a_word_on_what_its_calls_ids_tell_of_has_left_it_out(
    said: dict[str, Any], left_out: bool
) -> None:
    assert echoed({**said, "tool_calls": calls(3, 5)}).left_out == left_out
    assert echoed({**said, "tool_calls": calls(0, 2)}).left_out == left_out
    assert not echoed({"content": "", **said, "tool_calls": calls(0, 0)}).left_out
    assert not echoed({"content": "x", **said}).left_out


def test_a_request_may_want_left_out_thoughts_to_stay_out() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "?"}]}
    asked: list[tuple[Any, bool]] = [(None, True), ({}, True), ({"restore_reasoning": True}, True)]
    for nvext, restore in [*asked, ({"restore_reasoning": False}, False)]:
        assert CHAT.read(json.dumps({**body, "nvext": nvext}).encode()).conversation.restore is restore


def test_a_text_that_is_shorter_than_the_ids_say_stays_whole() -> None:
    function = {"name": "tide", "arguments": "{}"}
    message = {"reasoning_content": "so", "tool_calls": [{"id": call_id(TURN, 0, 0, 99), "function": function}]}
    assert echoed(message).parts[0] == ReasoningPart(text="so")
