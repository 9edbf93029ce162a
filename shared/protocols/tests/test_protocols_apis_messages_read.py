import json
from contextlib import suppress
from typing import Any

import pytest
from catenary_protocols.apis.messages import MessagesDraft, messages_api, read_count
from catenary_protocols.apis.session import session_of
from catenary_protocols.conversation import (
    AssistantMessage,
    CallPart,
    ImagePart,
    Message,
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


class Reversed:
    """`Sealed` that can be read: a token is the text backwards, marked."""

    def seal(self, text: str) -> str:
        return "sealed:" + text[::-1]

    def open(self, token: str) -> str | None:
        return token.removeprefix("sealed:")[::-1] if token.startswith("sealed:") else None


SEALED = Reversed()
API = messages_api(SEALED)
TIDE = {"name": "tide", "description": "tide table", "input_schema": {"type": "object", "properties": {}}}
ASK = {"role": "user", "content": "Tide at Ayr?"}
CALL = {"type": "tool_use", "id": "c1", "name": "tide", "input": {"port": "Ayr"}}


def read(**fields: Any) -> MessagesDraft:
    return API.read(json.dumps({"model": "m", "max_tokens": 9, "messages": [ASK], **fields}).encode())


def messages(*given: Any, **fields: Any) -> tuple[Message, ...]:
    asked_again = [ASK] if given[-1]["role"] == "assistant" else []
    return read(messages=[*given, *asked_again], **fields).conversation.messages


def refused(**fields: Any) -> tuple[str, str]:
    with pytest.raises(RequestError) as caught:
        read(**fields)
    assert f"`{caught.value.field}`" in caught.value.message
    return caught.value.code, caught.value.field


def user(*texts: str) -> UserMessage:
    return UserMessage(parts=tuple(TextPart(text=text) for text in texts))


def test_the_form_of_content_makes_no_difference() -> None:
    blocks = [{"type": "text", "text": "Tide at Ayr?", "cache_control": {"type": "ephemeral"}}]
    assert messages(ASK) == messages({"role": "user", "content": blocks}) == (user("Tide at Ayr?"),)


def test_system_texts_stand_where_they_were_said() -> None:
    head = [{"type": "text", "text": "alpha", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "beta"}]
    later = {"role": "system", "content": "The date is ..."}
    assert messages(ASK, later, system=head) == (
        SystemMessage(parts=(TextPart(text="alpha"), TextPart(text="beta"))),
        user("Tide at Ayr?"),
        SystemMessage(parts=(TextPart(text="The date is ..."),)),
    )
    assert messages(ASK, system="alpha")[0] == SystemMessage(parts=(TextPart(text="alpha"),))
    assert messages(ASK, system="") == messages(ASK, system=[]) == (user("Tide at Ayr?"),)


def test_an_assistants_blocks_stay_in_their_order() -> None:
    said = [
        {"type": "thinking", "thinking": "one", "signature": SEALED.seal("one")},
        CALL,
        {"type": "text", "text": "then"},
        {"type": "thinking", "thinking": "two", "signature": ""},
        {"type": "text", "text": ""},
        {**CALL, "id": "c2"},
    ]
    assert messages(ASK, {"role": "assistant", "content": said})[1] == AssistantMessage(
        parts=(
            ReasoningPart(text="one"),
            CallPart(id="c1", name="tide", arguments='{"port": "Ayr"}'),
            TextPart(text="then"),
            ReasoningPart(text="two"),
            CallPart(id="c2", name="tide", arguments='{"port": "Ayr"}'),
        )
    )


@pytest.mark.parametrize(
    ("block", "thought"),
    [
        ({"type": "thinking", "thinking": "", "signature": SEALED.seal("whole")}, "whole"),
        ({"type": "thinking", "thinking": "changed", "signature": SEALED.seal("whole")}, "whole"),
        ({"type": "thinking", "thinking": "plain", "signature": "of another server"}, "plain"),
        ({"type": "thinking", "thinking": "plain"}, "plain"),
        ({"type": "redacted_thinking", "data": SEALED.seal("whole")}, "whole"),
    ],
)
def test_thinking_comes_back_as_it_was_sealed(block: Any, thought: str) -> None:
    assert messages(ASK, {"role": "assistant", "content": [block]})[1] == AssistantMessage(
        parts=(ReasoningPart(text=thought),)
    )


def test_redacted_thinking_of_others_is_passed_over() -> None:
    block = {"type": "redacted_thinking", "data": "of another server"}
    assert messages(ASK, {"role": "assistant", "content": [block]})[1] == AssistantMessage(parts=())


def test_results_are_messages_of_their_own_named_after_their_calls() -> None:
    results = [
        {"type": "tool_result", "tool_use_id": "c1", "content": "2.1 m", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "between"},
        {
            "type": "tool_result",
            "tool_use_id": "c9",
            "is_error": True,
            "content": [{"type": "text", "text": "no port"}],
        },
        {"type": "tool_result", "tool_use_id": "c1"},
        {"type": "text", "text": "after"},
    ]
    calls = [CALL, {**CALL, "id": "c-9"}]
    assert messages(ASK, {"role": "assistant", "content": calls}, {"role": "user", "content": results})[2:] == (
        ToolMessage(call_id="c1", parts=(TextPart(text="2.1 m"),), name="tide"),
        user("between"),
        ToolMessage(call_id="c9", parts=(TextPart(text="no port"),), name="tide", is_error=True),
        ToolMessage(call_id="c1", parts=(TextPart(text=""),), name="tide"),
        user("after"),
    )


def test_images_of_users_and_of_tools() -> None:
    inline = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    linked = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "chart:"}, inline]}
    called = {"role": "assistant", "content": [CALL]}
    assert messages(called, {"role": "user", "content": [result, linked]})[1:] == (
        ToolMessage(
            call_id="c1",
            parts=(
                TextPart(text="chart:"),
                ImagePart(url="data:image/png;base64,AAAA", field="messages[1].content[0].content[1]"),
            ),
            name="tide",
        ),
        UserMessage(parts=(ImagePart(url="https://example.org/a.png", field="messages[1].content[1]"),)),
    )
    upload = {"type": "image", "source": {"type": "file", "file_id": "f"}}
    assert refused(messages=[{"role": "user", "content": [upload]}]) == ("unsupported", "messages[0].content[0].source")


def test_documents_that_are_text_are_read_and_others_refused() -> None:
    text = {"type": "document", "title": "Log", "source": {"type": "text", "media_type": "text/plain", "data": "day 1"}}
    made = {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "day 2"}]}}
    found = {"type": "search_result", "source": "a.txt", "title": "A", "content": [{"type": "text", "text": "day 3"}]}
    assert messages({"role": "user", "content": [text, made, found]}) == (
        user("Log", "day 1", "day 2", "A\na.txt\nday 3"),
    )
    pdf = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": ""}}
    assert refused(messages=[{"role": "user", "content": [pdf]}]) == ("unsupported", "messages[0].content[0].source")


def test_deferred_tools_are_told_where_a_result_refers_to_them() -> None:
    deferred = {**TIDE, "name": "moon", "defer_loading": True}
    found = {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "tool_reference", "tool_name": "moon"}]}
    asked = [ASK, {"role": "assistant", "content": [CALL]}, {"role": "user", "content": [found]}]
    conversation = read(messages=asked, tools=[deferred, TIDE]).conversation
    assert [(tool.name, tool.deferred) for tool in conversation.tools] == [("moon", True), ("tide", False)]
    result = conversation.messages[2]
    assert isinstance(result, ToolMessage)
    (definition,) = result.parts
    assert isinstance(definition, TextPart)
    assert json.loads(definition.text) == {
        "type": "function",
        "function": {"name": "moon", "description": "tide table", "parameters": TIDE["input_schema"]},
    }


def test_a_session_stays_the_same_while_tools_are_found() -> None:
    deferred = {**TIDE, "name": "moon", "defer_loading": True}
    first, second = read(tools=[TIDE]), read(tools=[deferred, TIDE])
    assert session_of(first, "t", {}) == session_of(second, "t", {})
    assert session_of(first, "t", {}) != session_of(read(), "t", {})


def test_a_reference_to_a_tool_that_nobody_declared_is_its_name() -> None:
    found = {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "tool_reference", "tool_name": "moon"}]}
    assert messages({"role": "assistant", "content": [CALL]}, {"role": "user", "content": [found]})[1:] == (
        ToolMessage(call_id="c1", parts=(TextPart(text="moon"),), name="tide"),
    )


def test_what_nobody_here_knows_is_passed_over_and_said_to_be() -> None:
    news = {"type": "hologram", "rays": [1]}
    draft = read(
        messages=[{"role": "user", "content": [news, {"type": "text", "text": "Hi"}]}],
        nvext={"agent_hint": {}},
        context_management={"edits": []},
        safeguards=[{"type": "x"}],
        service_tier="auto",
    )
    assert draft.conversation.messages == (user("Hi"),)
    assert draft.passed_over == ("messages[0].content[0]", "nvext.agent_hint")


@pytest.mark.parametrize(
    ("thinking", "wanted", "display"),
    [
        (None, None, "shown"),
        ({"type": "enabled", "budget_tokens": 1024}, True, "shown"),
        ({"type": "enabled", "budget_tokens": 31999, "display": "omitted"}, True, "sealed"),
        ({"type": "adaptive", "display": "omitted"}, True, "sealed"),
        ({"type": "adaptive", "display": "updates"}, True, "shown"),
        ({"type": "disabled"}, False, "hidden"),
    ],
)
def test_every_form_of_thinking(thinking: Any, wanted: bool | None, display: str) -> None:
    draft = read(**({"thinking": thinking} if thinking else {}))
    assert (draft.conversation.thinking, draft.thinking) == (wanted, display)


@pytest.mark.parametrize(
    ("choice", "wanted", "parallel"),
    [
        (None, ToolChoice(), True),
        ({"type": "auto", "disable_parallel_tool_use": True}, ToolChoice(), False),
        ({"type": "any"}, ToolChoice(mode="required"), True),
        ({"type": "tool", "name": "tide"}, ToolChoice(mode="named", name="tide"), True),
        ({"type": "none"}, ToolChoice(mode="none"), True),
    ],
)
def test_every_form_of_tool_choice(choice: Any, wanted: ToolChoice, parallel: bool) -> None:
    conversation = read(tools=[TIDE], **({"tool_choice": choice} if choice else {})).conversation
    assert (conversation.tool_choice, conversation.parallel_calls) == (wanted, parallel)


def test_limits_stops_and_effort() -> None:
    draft = read(
        max_tokens=128000,
        stop_sequences=["END"],
        temperature=0.5,
        top_k=0,
        stream=True,
        output_config={"effort": "max"},
    )
    assert (draft.sampling.max_tokens, draft.clamp, draft.sampling.stop) == (128000, True, ("END",))
    assert (draft.sampling.temperature, draft.sampling.top_k, draft.stream) == (0.5, None, True)
    assert draft.conversation.template == '{"reasoning_effort":"high"}'


def form(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "schema": schema}


def test_a_schema_for_the_answer() -> None:
    schema = {"type": "object", "properties": {"title": {"type": "string"}}}
    for said in ({"output_config": {"format": form(schema)}}, {"output_format": form(schema)}):
        assert json.loads(read(**said).answer_schema) == schema
    assert read(output_format=None, output_config={"format": None}).answer_schema == ""


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({"output_format": form({"type": "nosuch"})}, "output_format.schema.type"),
        ({"output_config": {"format": form({"pattern": "("})}}, "output_config.format.schema.pattern"),
        ({"output_format": form({}), "output_config": {"format": form({})}}, "output_format"),
        ({"tools": [{**TIDE, "strict": True, "input_schema": {"enum": 1}}]}, "tools[0].input_schema.enum"),
    ],
)
def test_a_schema_that_is_none_is_named(said: Any, field: str) -> None:
    with pytest.raises(RequestError) as caught:
        read(**said)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("said", "session", "person"),
    [
        ('{"device_id":"d1","account_uuid":"","session_id":"s1"}', "s1", "d1"),
        ("user_1_account__session_s1", "s1", "user_1_account_"),
        ("u1", "", "u1"),
        ('{"not JSON', "", '{"not JSON'),
        ("{" * 20_000, "", "{" * 20_000),
    ],
)
def test_who_calls(said: str, session: str, person: str) -> None:
    draft = read(metadata={"user_id": said})
    assert (draft.session, draft.user) == (session, person)


def test_what_a_harness_tells_the_mesh() -> None:
    nvext = {"agent_hints": {"priority": 3}, "run_tools": ["tide"], "tool_dispatch": True}
    draft = read(tools=[TIDE], nvext=nvext)
    assert (draft.hints.priority, draft.run_tools, draft.tool_dispatch) == (3, ("tide",), True)


def test_counting_reads_the_same_conversation() -> None:
    body = {"model": "m", "messages": [ASK], "system": "alpha", "tools": [TIDE], "thinking": {"type": "adaptive"}}
    counted = read_count(SEALED, json.dumps(body).encode())
    asked = API.read(json.dumps({**body, "max_tokens": 1}).encode())
    assert (counted.model, counted.conversation) == (asked.model, asked.conversation)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": None}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"model": ""}, "model"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "user", "content": []}, {"role": "tool", "content": ""}]}, "messages[1].role"),
    ({"messages": [{"role": "system", "content": "alone"}]}, "messages"),
    ({"messages": [{"role": "user", "content": [{"text": "no type"}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    ({"messages": [{"role": "user", "content": [CALL]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "assistant", "content": [{**CALL, "input": "{}"}]}]}, "messages[0].content[0].input"),
    ({"messages": [{"role": "user", "content": [{"type": "server_tool_use"}]}]}, "messages[0].content[0].type"),
    (
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": [CALL]}]}]},
        "messages[0].content[0].content[0].type",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c"}]}]},
        "messages[0].content[0].tool_use_id",
    ),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
    ({"tools": [TIDE, TIDE]}, "tools[1].name"),
    ({"tools": [{**TIDE, "input_schema": {"type": "array"}}]}, "tools[0].input_schema.type"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"tool_choice": {"type": "tool", "name": "moon"}, "tools": [TIDE]}, "tool_choice.name"),
    ({"thinking": {"type": "often"}}, "thinking.type"),
    ({"stop_sequences": [""]}, "stop_sequences[0]"),
    ({"mcp_servers": [{"name": "x", "url": "https://example.org"}]}, "mcp_servers"),
    ({"nvext": {"run_tools": ["moon"]}}, "nvext.run_tools[0]"),
]


@pytest.mark.parametrize(("fields", "field"), BAD, ids=[field for _, field in BAD])
def test_bad_input_names_the_field(fields: dict[str, Any], field: str) -> None:
    assert refused(**fields)[1] == field


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["type", "text", "content", "source"]), inner),
    max_leaves=8,
)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(("system", "tools", "thinking", "metadata"), JSON)), JSON)
def test_no_json_makes_anything_but_a_draft_or_a_refusal(fields: dict[str, Any], content: Any) -> None:
    with suppress(RequestError):
        read(**fields, messages=[{"role": "user", "content": content}])


def test_an_answer_that_was_begun_is_not_gone_on_with() -> None:
    begun = {"role": "assistant", "content": "It is"}
    with pytest.raises(RequestError) as caught:
        read(messages=[ASK, begun])
    assert (caught.value.code, caught.value.field) == ("unsupported", "messages[1]")
