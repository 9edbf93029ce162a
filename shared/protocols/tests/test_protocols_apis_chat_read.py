import json
from typing import Any

import msgspec
import pytest
from catenary_protocols.apis.chat import CHAT
from catenary_protocols.conversation import (
    AssistantMessage,
    CallPart,
    Hints,
    ImagePart,
    ReasoningPart,
    SystemMessage,
    TextPart,
    ToolChoice,
    ToolMessage,
    UserMessage,
)
from catenary_protocols.errors import RequestError, kind_of
from hypothesis import given
from hypothesis import strategies as st

USER = {"role": "user", "content": "Tide at Ayr?"}
TOOL = {"type": "function", "function": {"name": "tide", "parameters": {"type": "object", "properties": {}}}}


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [USER], **fields}).encode()


def with_schema(schema: Any) -> bytes:
    return body(tools=[{"type": "function", "function": {"name": "f", "parameters": schema}}])


REFUSED = [
    (b"", "invalid_json", ""),
    (b'{"model": "m", "messages": [', "invalid_json", ""),
    (b'{"model": "m", "messages": [{"role": "user", "content": "\xff"}]}', "invalid_json", ""),
    (b'{"temperature": NaN}', "invalid_json", ""),
    (b"[" * 200_000, "invalid_value", ""),
    (b'{"model":"m","messages":[{"role":"user","content":"x"}],"zz":' + b'{"a":' * 100_000, "invalid_json", ""),
    (b"[]", "invalid_value", ""),
    (b'{"messages": [{"role": "user", "content": "x"}]}', "missing_field", "model"),
    (body(model=""), "invalid_value", "model"),
    (body(model=None), "invalid_value", "model"),
    (body(messages=[]), "invalid_value", "messages"),
    (body(messages="hi"), "invalid_value", "messages"),
    (body(messages=[{"content": "x"}]), "missing_field", "messages[0].role"),
    (body(messages=[{"role": "robot", "content": "x"}]), "invalid_value", "messages[0].role"),
    (body(messages=[USER, {"role": "user"}]), "missing_field", "messages[1].content"),
    (body(messages=[{"role": "user", "content": [{"type": "smell"}]}]), "invalid_value", "messages[0].content[0].type"),
    (body(messages=[{"role": "user", "content": 5}]), "invalid_value", "messages[0].content"),
    (body(max_tokens=0), "invalid_value", "max_tokens"),
    (body(max_tokens=-1), "invalid_value", "max_tokens"),
    (body(max_tokens=1.5), "invalid_value", "max_tokens"),
    (body(max_completion_tokens=0), "invalid_value", "max_completion_tokens"),
    (body(max_tokens=10**30), "invalid_value", "max_tokens"),
    (body(max_tokens=4, min_tokens=5), "invalid_value", "min_tokens"),
    (body(temperature=-0.1), "invalid_value", "temperature"),
    (body(temperature=2.1), "invalid_value", "temperature"),
    (body(temperature="hot"), "invalid_value", "temperature"),
    (body()[:-1] + b', "temperature": 1e999}', "invalid_value", "temperature"),
    (body(top_p=0), "invalid_value", "top_p"),
    (body(seed=2**64), "invalid_value", "seed"),
    (body(presence_penalty=3), "invalid_value", "presence_penalty"),
    (body(stop=""), "invalid_value", "stop"),
    (body(stop=["a", 1]), "invalid_value", "stop[1]"),
    (body(logit_bias={"-1": 1}), "invalid_value", "logit_bias"),
    (body(logit_bias={"99999999999999999999": 1}), "invalid_value", "logit_bias"),
    (body(logit_bias={"1": 101}), "invalid_value", "logit_bias[...]"),
    (body(n=0), "invalid_value", "n"),
    (body(n=17), "invalid_value", "n"),
    (body(top_logprobs=2), "invalid_value", "top_logprobs"),
    (body(continue_final_message=True), "unsupported", "continue_final_message"),
    (body(add_generation_prompt=False), "unsupported", "add_generation_prompt"),
    (body(messages=[{"role": "assistant", "content": "a", "prefix": True}]), "unsupported", "messages[0].prefix"),
    (body(logprobs=True, top_logprobs=21), "invalid_value", "top_logprobs"),
    (body(functions=[{"name": "f"}], tools=[{"function": {"name": "g"}}]), "invalid_value", "functions"),
    (body(functions=[{"name": "f"}], function_call={"name": "g"}), "invalid_value", "tool_choice.function.name"),
    (body(response_format={"type": "json_schema"}), "missing_field", "response_format.json_schema.schema"),
    (
        body(response_format={"type": "json_schema", "json_schema": {"schema": [1]}}),
        "invalid_value",
        "response_format.json_schema.schema",
    ),
    (body(messages=[USER, {"role": "tool", "content": "2.1 m"}]), "missing_field", "messages[1].tool_call_id"),
    (
        body(messages=[USER, {"role": "tool", "tool_call_id": "c1", "content": "2.1 m"}]),
        "invalid_value",
        "messages[1].tool_call_id",
    ),
    (body(tools={}), "invalid_value", "tools"),
    (body(tools=[{"type": "function"}]), "missing_field", "tools[0].function"),
    (body(tools=[{"type": "function", "function": {"name": ""}}]), "invalid_value", "tools[0].function.name"),
    (body(tools=[TOOL, TOOL]), "invalid_value", "tools[1].function.name"),
    (with_schema([]), "invalid_value", "tools[0].function.parameters"),
    (with_schema({"type": "string"}), "invalid_value", "tools[0].function.parameters.type"),
    (with_schema({"properties": {"a": 1}}), "invalid_value", "tools[0].function.parameters.properties[...]"),
    (with_schema({"required": "a"}), "invalid_value", "tools[0].function.parameters.required"),
    (body(tool_choice="maybe"), "invalid_value", "tool_choice"),
    (body(tool_choice="required"), "invalid_value", "tool_choice"),
    (
        body(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "nope"}}),
        "invalid_value",
        "tool_choice.function.name",
    ),
    (body(nvext={"run_tools": ["nope"]}), "invalid_value", "nvext.run_tools[0]"),
    (body(nvext={"agent_hints": {"latency_sensitivity": 2}}), "invalid_value", "nvext.agent_hints.latency_sensitivity"),
    (body(stream_options={"include_usage": 1}), "invalid_value", "stream_options.include_usage"),
    (body(modalities=["text", "audio"]), "unsupported", "modalities[1]"),
    (body(audio={"voice": "alloy", "format": "wav"}), "unsupported", "audio"),
    (body(stop_token_ids=[3, -1]), "invalid_value", "stop_token_ids[1]"),
]


def test_wishes_that_are_not_fulfilled_are_named() -> None:
    wishes = {"verbosity": "low", "prediction": {"type": "content", "content": "a"}, "web_search_options": {}}
    assert CHAT.read(body(**wishes, nvext={"x": 1})).passed_over == (*wishes, "nvext.x")
    assert CHAT.read(body(**dict.fromkeys(wishes), modalities=["text"], audio=None)).passed_over == ()


@pytest.mark.parametrize(
    ("nvext", "unknown"),
    [
        (None, ()),
        ({"agent_hints": None, "run_tools": []}, ()),
        ({"agent_hints": {"priorty": 3, "osl": 9}, "rooting": {}}, ("nvext.agent_hints.priorty", "nvext.rooting")),
        ({"routing": {"tag": ["a"]}}, ("nvext.routing.tag",)),
    ],
)
def test_keys_of_the_extension_that_nobody_knows_are_named(nvext: Any, unknown: tuple[str, ...]) -> None:
    assert CHAT.read(body(nvext=nvext)).passed_over == unknown


@pytest.mark.parametrize(("raw", "code", "field"), REFUSED, ids=range(len(REFUSED)))
def test_bad_input_is_refused_and_names_the_field(raw: bytes, code: str, field: str) -> None:
    with pytest.raises(RequestError) as caught:
        CHAT.read(raw)
    assert (caught.value.code, caught.value.field) == (code, field)
    assert kind_of(code).status == 400
    assert field in caught.value.message
    shown = json.loads(CHAT.error(caught.value.info, ""))
    assert shown == {
        "error": {
            "message": caught.value.message,
            "type": "invalid_request_error",
            "param": field or None,
            "code": code,
        }
    }


def status_of(raw: bytes) -> int:
    """The status a body would get; what is accepted must be fit to travel on the bus."""
    try:
        draft = CHAT.read(raw)
        msgspec.msgpack.encode((draft.conversation, draft.sampling, draft.hints, draft.session, draft.user))
    except RequestError as error:
        return kind_of(error.code).status
    return 200


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_no_bytes_raise_anything_but_a_request_error(raw: bytes) -> None:
    for candidate in (raw, body()[:-1] + b',"stop":' + raw + b"}"):
        assert status_of(candidate) in {200, 400}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
FIELDS = ("messages", "tools", "tool_choice", "stop", "seed", "nvext", "logit_bias", "chat_template_kwargs", "metadata")


@given(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=3))
def test_no_json_in_any_field_raises_anything_but_a_request_error(fields: dict[str, Any]) -> None:
    assert status_of(body(**fields)) in {200, 400}


def test_messages_in_every_shape_become_one_conversation() -> None:
    draft = CHAT.read(
        body(
            messages=[
                {"role": "system", "content": "be brief"},
                {"role": "developer", "content": [{"type": "text", "text": "and kind"}]},
                {
                    "role": "user",
                    "name": "ann",
                    "content": [
                        {"type": "text", "text": "one"},
                        {"type": "image_url", "image_url": {"url": "http://x/y.png", "detail": "low"}},
                    ],
                },
                {
                    "role": "assistant",
                    "content": None,
                    "reasoning_content": "hm",
                    "tool_calls": [
                        {"id": "c1", "type": "function", "function": {"name": "tide", "arguments": '{"p": 1}'}}
                    ],
                },
                {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "2.1 m"}]},
                {"role": "tool", "tool_call_id": "c1", "content": None},
                {"role": "assistant", "content": [{"type": "text", "text": "ok"}], "reasoning": "so", "zz": 1},
                {"role": "assistant", "content": "", "function_call": {"name": "old", "arguments": ""}},
                {"role": "function", "name": "old", "content": "done"},
            ]
        )
    )
    assert draft.conversation.messages == (
        SystemMessage(parts=(TextPart(text="be brief"),)),
        SystemMessage(parts=(TextPart(text="and kind"),)),
        UserMessage(
            parts=(
                TextPart(text="one"),
                ImagePart(url="http://x/y.png", detail="low", field="messages[2].content[1]"),
            ),
            name="ann",
        ),
        AssistantMessage(parts=(ReasoningPart(text="hm"), CallPart(id="c1", name="tide", arguments='{"p": 1}'))),
        ToolMessage(call_id="c1", parts=(TextPart(text="2.1 m"),), name="tide"),
        ToolMessage(call_id="c1", parts=(TextPart(text=""),), name="tide"),
        AssistantMessage(parts=(ReasoningPart(text="so"), TextPart(text="ok"))),
        AssistantMessage(parts=(CallPart(id="", name="old", arguments="{}"),)),
        ToolMessage(call_id="", parts=(TextPart(text="done"),), name="old"),
    )


def test_thoughts_in_a_list_stand_before_their_calls_and_the_text_after_the_last() -> None:
    calls = [{"id": id_, "type": "function", "function": {"name": "tide", "arguments": "{}"}} for id_ in "abc"]
    first, second, third = (CallPart(id=id_, name="tide", arguments="{}") for id_ in "abc")
    one, two, four, so = (*(ReasoningPart(text=text) for text in ("one", "two", "four")), TextPart(text="so"))

    def parts(*thoughts: str) -> tuple[object, ...]:
        said = {"role": "assistant", "content": "so", "reasoning_content": thoughts, "tool_calls": calls}
        (message,) = CHAT.read(body(messages=[said])).conversation.messages
        assert isinstance(message, AssistantMessage)
        return message.parts

    assert parts() == (so, first, second, third)
    assert parts("one", "two") == (one, first, two, so, second, third)
    assert parts("one", "", "two", "four") == (one, first, second, two, third, four, so)


def test_the_rest_of_a_request_is_read() -> None:
    draft = CHAT.read(
        body(
            tools=[TOOL, {"type": "web_search"}, {"type": "function", "function": {"name": "bare"}}],
            tool_choice={"type": "function", "function": {"name": "bare"}},
            parallel_tool_calls=False,
            stream=True,
            stream_options={"include_usage": True},
            max_tokens=7,
            max_completion_tokens=9,
            temperature=0,
            top_p=0.5,
            top_k=-1,
            seed=-1,
            stop="END",
            ignore_eos=True,
            min_tokens=3,
            logit_bias={"5": -100},
            reasoning_effort="low",
            chat_template_kwargs={"enable_thinking": False},
            nvext={
                "agent_hints": {"priority": 3, "osl": 10, "unknown": 1},
                "run_tools": ["tide"],
                "tool_dispatch": True,
                "extra_fields": ["timing"],
            },
            prompt_cache_key="conv-7",
            made_up=True,
        )
    )
    tide, bare = draft.conversation.tools
    assert json.loads(tide.schema) == TOOL["function"]["parameters"]  # type: ignore[index]
    assert json.loads(bare.schema) == {"type": "object", "properties": {}}
    assert draft.conversation.tool_choice == ToolChoice(mode="named", name="bare")
    assert draft.conversation.parallel_calls is False
    assert draft.conversation.thinking is False
    assert json.loads(draft.conversation.template) == {"reasoning_effort": "low", "enable_thinking": False}
    sampling = draft.sampling
    assert (sampling.max_tokens, sampling.min_tokens, sampling.temperature, sampling.top_p) == (9, 3, 0.0, 0.5)
    assert (sampling.top_k, sampling.seed, sampling.stop, sampling.ignore_eos) == (None, -1, ("END",), True)
    assert sampling.logit_bias == {5: -100.0}
    assert draft.hints == Hints(priority=3, osl=10)
    assert (draft.run_tools, draft.tool_dispatch, draft.stream, draft.include_usage) == (("tide",), True, True, True)
    assert draft.session == "conv-7"


def test_a_lone_surrogate_becomes_a_replacement_character() -> None:
    text = r"a\ud83db \ud83d\ude00 \\ud83d \udc00"
    draft = CHAT.read(b'{"model":"m","messages":[{"role":"user","content":"%b"}]}' % text.encode())
    assert draft.conversation.messages == (UserMessage(parts=(TextPart(text="a�b 😀 \\ud83d �"),)),)


def test_functions_are_tools_in_an_older_form() -> None:
    draft = CHAT.read(body(functions=[{"name": "f"}, {"name": "g"}], function_call={"name": "g"}))
    assert [tool.name for tool in draft.conversation.tools] == ["f", "g"]
    assert draft.conversation.tool_choice == ToolChoice(mode="named", name="g")
    assert (draft.functions, draft.conversation.parallel_calls) == (True, False)


def test_the_form_of_the_answer_is_a_schema() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "out", "schema": {"type": "array"}}}
    assert json.loads(CHAT.read(body(response_format=form)).answer_schema) == {"type": "array"}
    assert json.loads(CHAT.read(body(response_format={"type": "json_object"})).answer_schema) == {"type": "object"}
    assert CHAT.read(body(response_format={"type": "text"})).answer_schema == ""


def test_the_clients_own_stop_tokens_reach_the_turn() -> None:
    assert CHAT.read(body(stop_token_ids=[7, 3])).sampling.stop_token_ids == (7, 3)
    assert CHAT.read(body(stop_token_ids=None)).sampling.stop_token_ids == ()
