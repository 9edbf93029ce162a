import json
from contextlib import suppress
from typing import Any

import pytest
from catenary_protocols.apis.responses import ResponsesDraft, continued, page_of, responses_api, with_ids
from catenary_protocols.conversation import (
    AssistantMessage,
    CallPart,
    ImagePart,
    ReasoningPart,
    SystemMessage,
    TextPart,
    ToolChoice,
    ToolMessage,
    UserMessage,
)
from catenary_protocols.errors import RequestError
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

TIDE: dict[str, Any] = {"type": "function", "name": "tide", "parameters": {"type": "object"}}
PATCH: dict[str, Any] = {"type": "custom", "name": "apply_patch", "description": "patch files"}


class Shifted:
    """Seals by a mark."""

    def seal(self, text: str) -> str:
        return f"sealed:{text}"

    def open(self, token: str) -> str | None:
        return token.removeprefix("sealed:") if token.startswith("sealed:") else None


API = responses_api(Shifted())


def draft_of(**body: Any) -> ResponsesDraft:
    return API.read(json.dumps({"model": "m", "input": "hi", **body}).encode())


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "input_text", "text": text}]}


def test_a_text_is_a_message_of_the_user() -> None:
    assert draft_of().conversation.messages == (UserMessage(parts=(TextPart(text="hi"),)),)


def test_instructions_and_the_developers_first_messages_are_one_system_message() -> None:
    draft = draft_of(
        instructions="Be brief.",
        input=[{"role": "developer", "content": "Speak Scots."}, user("hi"), {"role": "developer", "content": "Late."}],
    )
    head, _, late = draft.conversation.messages
    assert head == SystemMessage(parts=(TextPart(text="Be brief."), TextPart(text="Speak Scots.")))
    assert late == SystemMessage(parts=(TextPart(text="Late."),))


def test_what_the_model_did_in_one_go_is_one_message_in_order() -> None:
    items = [
        user("Tide?"),
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "x"}],
            "encrypted_content": "sealed:hm",
        },
        {"type": "function_call", "call_id": "c1", "name": "tide", "arguments": '{"port": "Ayr"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "2.1 m"},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "so"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "2.1."}]},
    ]
    _, first, result, second = draft_of(input=items, tools=[TIDE]).conversation.messages
    assert first == AssistantMessage(
        parts=(ReasoningPart(text="hm"), CallPart(id="c1", name="tide", arguments='{"port": "Ayr"}'))
    )
    assert result == ToolMessage(call_id="c1", parts=(TextPart(text="2.1 m"),), name="tide")
    assert second == AssistantMessage(parts=(ReasoningPart(text="so"), TextPart(text="2.1.")))


def test_a_thought_sealed_elsewhere_is_read_from_what_is_in_the_clear() -> None:
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "clear"}], "encrypted_content": "gAAA"}
    assert draft_of(input=[user("a"), thought]).conversation.messages[-1] == AssistantMessage(
        parts=(ReasoningPart(text="clear"),)
    )


def test_a_thought_sent_back_as_text_is_a_thought() -> None:
    said = {"role": "assistant", "content": "<think>\nhm\n</think>"}
    assert draft_of(input=[user("a"), said]).conversation.messages[-1] == AssistantMessage(
        parts=(ReasoningPart(text="hm"),)
    )


def test_a_custom_tool_is_shown_as_a_function_with_one_string() -> None:
    grammar = {**PATCH, "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/s"}}
    items = [
        user("Write"),
        {"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": 'a "b"'},
        {"type": "custom_tool_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "Done"}]},
    ]
    draft = draft_of(tools=[grammar], input=items)
    (tool,) = draft.conversation.tools
    assert json.loads(tool.schema)["required"] == ["input"]
    assert "lark" in tool.description
    assert "start: /.+/s" in tool.description
    _, call, result = draft.conversation.messages
    assert isinstance(call, AssistantMessage)
    assert isinstance(call.parts[0], CallPart)
    assert json.loads(call.parts[0].arguments) == {"input": 'a "b"'}
    assert isinstance(result, ToolMessage)
    assert result.name == "apply_patch"


def test_tools_of_namespaces_are_flat_and_kept_apart() -> None:
    one = {"type": "namespace", "name": "one", "tools": [TIDE]}
    two = {"type": "namespace", "name": "two", "tools": [TIDE, {"type": "function", "name": "bare"}]}
    draft = draft_of(tools=[one, two])
    assert [tool.name for tool in draft.conversation.tools] == ["tide", "two__tide", "bare"]
    assert draft.toolbox.declared("two__tide").namespace == "two"
    assert draft.toolbox.shown("tide", "two", custom=False) == "two__tide"
    assert draft.toolbox.shown("gone", None, custom=False) == "gone"


def test_tools_and_items_of_other_kinds_are_kept_from_the_model_alone() -> None:
    tools = [TIDE, {"type": "web_search", "filters": {}}, {"type": "tool_search", "execution": "client"}]
    draft = draft_of(tools=tools, input=[user("a"), {"type": "web_search_call", "id": "ws", "action": {"query": 1}}])
    assert [tool.name for tool in draft.conversation.tools] == ["tide"]
    assert json.loads(bytes(draft.echo.tools)) == tools
    assert len(draft.conversation.messages) == 1
    assert len(draft.items) == 2


@pytest.mark.parametrize(
    ("choice", "expected", "tools"),
    [
        (None, ToolChoice(), ["tide", "apply_patch"]),
        ("none", ToolChoice(mode="none"), ["tide", "apply_patch"]),
        ("required", ToolChoice(mode="required"), ["tide", "apply_patch"]),
        ({"type": "function", "name": "tide"}, ToolChoice(mode="named", name="tide"), ["tide", "apply_patch"]),
        (
            {"type": "custom", "name": "apply_patch"},
            ToolChoice(mode="named", name="apply_patch"),
            ["tide", "apply_patch"],
        ),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "tide"}]},
            ToolChoice(mode="required"),
            ["tide"],
        ),
    ],
)
def test_tool_choice(choice: Any, expected: ToolChoice, tools: list[str]) -> None:
    conversation = draft_of(tools=[TIDE, PATCH], tool_choice=choice).conversation
    assert conversation.tool_choice == expected
    assert [tool.name for tool in conversation.tools] == tools


def test_options_reach_the_turn() -> None:
    draft = draft_of(
        max_output_tokens=9,
        temperature=0.5,
        reasoning={"effort": "low", "summary": "auto"},
        text={"format": {"type": "json_schema", "name": "out", "schema": {"type": "object"}}},
        truncation="auto",
        parallel_tool_calls=False,
        prompt_cache_key="s1",
        nvext={"agent_hints": {"priority": 3}},
    )
    assert (draft.sampling.max_tokens, draft.sampling.temperature) == (9, 0.5)
    assert json.loads(draft.conversation.template) == {"reasoning_effort": "low"}
    assert json.loads(draft.answer_schema) == {"type": "object"}
    assert (draft.truncate, draft.conversation.parallel_calls) == (True, False)
    assert (draft.session, draft.hints.priority, draft.store) == ("s1", 3, True)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"model": ""}, "model"),
        ({"input": []}, "input"),
        ({"input": 3}, "input"),
        ({"input": [{"role": "wizard", "content": "x"}]}, "input[0].role"),
        ({"input": [{"type": "function_call", "call_id": "c", "arguments": "{}"}]}, "input[0].name"),
        ({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]}, "input[0].content[0]"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0]"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": ""}]}, "input[0].call_id"),
        ({"input": [{"type": "custom_tool_call_output", "call_id": "c", "output": ""}]}, "input[0].call_id"),
        ({"tools": [TIDE, TIDE]}, "tools[1].name"),
        ({"tools": [{"type": "function", "name": "a", "parameters": {"type": "string"}}]}, "tools[0].parameters.type"),
        ({"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "function"}]}]}, "tools[0].tools[0].name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "nope"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.name"),
        ({"input": [{"type": "news"}]}, "input"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"top_logprobs": 21}, "top_logprobs"),
    ],
)
def test_bad_input_names_its_field(body: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestError) as caught:
        draft_of(**body)
    assert caught.value.field == field


def test_a_result_may_answer_a_call_of_a_kind_that_is_not_known_here() -> None:
    call = {"type": "local_shell_call", "call_id": "c-1", "action": {"type": "exec", "command": ["ls"]}}
    result = {"type": "function_call_output", "call_id": "c1", "output": "a.txt"}
    (message,) = draft_of(input=[call, result]).conversation.messages
    assert message == ToolMessage(call_id="c1", parts=(TextPart(text="a.txt"),))


def test_images_are_passed_on() -> None:
    content = [{"type": "input_image", "image_url": "data:image/png;base64,xx", "detail": "low"}]
    (message,) = draft_of(input=[{"role": "user", "content": content}]).conversation.messages
    assert isinstance(message, UserMessage)
    assert message.parts == (ImagePart(url="data:image/png;base64,xx", detail="low", field="input[0].content[0]"),)


def test_a_response_goes_on_from_another() -> None:
    first = draft_of(input="Tide?", instructions="Old.")
    call = Raw(b'{"type":"function_call","id":"fc_1","call_id":"c1","name":"tide","arguments":"{}"}')
    second = draft_of(
        previous_response_id="resp_x",
        instructions="New.",
        tools=[TIDE],
        input=[{"type": "function_call_output", "call_id": "c1", "output": "2.1 m"}],
    )
    draft = continued(second, (*first.items, call))
    system, question, answer, result = draft.conversation.messages
    assert system == SystemMessage(parts=(TextPart(text="New."),))
    assert question == UserMessage(parts=(TextPart(text="Tide?"),))
    assert answer == AssistantMessage(parts=(CallPart(id="c1", name="tide", arguments="{}"),))
    assert isinstance(result, ToolMessage)
    assert len(draft.items) == 3


def test_items_get_ids_once_and_are_told_in_pages() -> None:
    items = with_ids(draft_of(input=[{"id": "mine", **user("a")}, user("b"), user("c")]).items, "t")
    assert [json.loads(bytes(raw))["id"] for raw in items] == ["mine", "item_t_1", "item_t_2"]
    page = page_of(items, "mine", 1)
    assert (page.first_id, page.last_id, page.has_more) == ("item_t_1", "item_t_1", True)
    with pytest.raises(RequestError):
        page_of(items, "nobody", 1)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "role", "content", "text", "name", "tools", "id"]), inner, max_size=4
        )
    ),
    max_leaves=8,
)


@given(items=st.lists(JSON, max_size=3), tools=st.lists(JSON, max_size=2), choice=JSON)
def test_any_json_is_read_or_refused(items: Any, tools: Any, choice: Any) -> None:
    with suppress(RequestError):
        draft_of(input=items, tools=tools, tool_choice=choice)


def test_wishes_that_are_not_fulfilled_are_named() -> None:
    assert draft_of(max_tool_calls=3, text={"verbosity": "low"}).passed_over == ("max_tool_calls", "text.verbosity")
    assert draft_of(max_tool_calls=None, text={"verbosity": None}).passed_over == ()


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({"text": {"format": {"type": "json_schema", "schema": {"type": "nosuch"}}}}, "text.format.schema.type"),
        ({"tools": [{**TIDE, "strict": True, "parameters": {"required": 1}}]}, "tools[0].parameters.required"),
    ],
)
def test_a_schema_that_is_none_is_named(said: Any, field: str) -> None:
    with pytest.raises(RequestError) as caught:
        draft_of(**said)
    assert caught.value.field == field
