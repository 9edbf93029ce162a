import json
from typing import Any

import pytest
from catenary_protocols.apis.responses import responses_api
from catenary_protocols.errors import ErrorInfo
from catenary_protocols.turn_events import (
    Accepted,
    ArgumentsDelta,
    CallBegun,
    CallComplete,
    CallCut,
    Failed,
    Finished,
    Malformed,
    ReasoningDelta,
    TextDelta,
    ToolResulted,
    TurnEvent,
    Usage,
)
from hypothesis import given
from hypothesis import strategies as st
from openai import omit
from openai._models import construct_type_unchecked
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import ResponseStreamEvent

TOOLS: list[dict[str, Any]] = [
    {"type": "function", "name": "tide", "parameters": {"type": "object", "properties": {}}},
    {
        "type": "custom",
        "name": "apply_patch",
        "format": {"type": "grammar", "syntax": "lark", "definition": "start: /./"},
    },
    {"type": "namespace", "name": "agents", "tools": [{"type": "function", "name": "close_agent"}]},
    {"type": "web_search"},
]
USAGE = Usage(prompt_tokens=7, completion_tokens=3, cached_tokens=4, reasoning_tokens=1)
END = Finished(reason="stop", usage=USAGE)
TURN = "01jd0000000000000000000000"


class Reversed:
    """Seals by reversing."""

    def seal(self, text: str) -> str:
        return text[::-1] + "!"

    def open(self, token: str) -> str | None:
        return token[:-1][::-1] if token.endswith("!") else None


API = responses_api(Reversed())


def encoder_of(**more: Any) -> Any:
    body = {"model": "m", "input": "hi", "tools": TOOLS, "stream": True, **more}
    return API.encoder(API.read(json.dumps(body).encode()), TURN, 1_700_000_000)


def told(*events: TurnEvent, cut: int = 1, **more: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The stream's events and the body."""
    encoder = encoder_of(**more)
    data = b"".join(encoder.feed(events[at : at + cut]) for at in range(0, len(events), cut))
    return parsed(data), json.loads(encoder.body())


def parsed(data: bytes) -> list[dict[str, Any]]:
    out = []
    for block in data.decode().split("\n\n")[:-1]:
        name, _, text = block.partition("\n")
        event = json.loads(text.removeprefix("data: "))
        assert event.get("type", name.removeprefix("event: ")) == name.removeprefix("event: ")
        out.append(event)
    return out


def types(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def call(index: int, name: str, arguments: str, key: str = "") -> tuple[TurnEvent, ...]:
    return (
        CallBegun(index=index, id=f"call_{index}", name=name),
        *(ArgumentsDelta(index=index, text=piece) for piece in (arguments[:3], arguments[3:])),
        CallComplete(index=index, id=f"call_{index}", name=name, arguments=arguments, key=key, run_by="client"),
    )


def test_text_is_told_in_the_order_that_clients_know() -> None:
    events, body = told(Accepted(prompt_tokens=7), TextDelta(text="High "), TextDelta(text="water."), END)
    assert types(events) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert {event["response"]["id"] for event in events if "response" in event} == {f"resp_{TURN}"}
    assert events[-1]["response"] == body
    assert body["output"][0]["content"][0]["text"] == "High water."
    assert body["usage"] == {
        "input_tokens": 7,
        "input_tokens_details": {"cached_tokens": 4},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 1},
        "total_tokens": 10,
    }


def test_a_thought_is_told_twice_and_sealed_once_done() -> None:
    events, body = told(ReasoningDelta(text="hm"), ReasoningDelta(text="!"), TextDelta(text="Noon."), END)
    assert types(events)[2:11] == [
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_text.delta",
        "reasoning_summary_text.delta",
        "reasoning_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "reasoning_text.done",
    ]
    thought, message = body["output"]
    assert thought["encrypted_content"] == "!mh!"
    assert thought["summary"] == [{"type": "summary_text", "text": "hm!"}]
    assert thought["content"] == [{"type": "reasoning_text", "text": "hm!"}]
    assert message["type"] == "message"


def test_a_call_is_done_the_moment_it_is_complete() -> None:
    encoder = encoder_of()
    events = parsed(encoder.feed(call(0, "tide", '{"port":"Ayr"}')))
    assert types(events)[-2:] == ["function_call_arguments.done", "output_item.done"]
    done = events[-1]["item"]
    assert (done["call_id"], done["name"], done["arguments"], done["status"]) == (
        "call_0",
        "tide",
        '{"port":"Ayr"}',
        "completed",
    )
    assert "namespace" not in done
    assert "".join(event["delta"] for event in events if event["type"].endswith("arguments.delta")) == '{"port":"Ayr"}'


def test_a_call_of_a_custom_tool_has_its_text() -> None:
    patch = '*** Begin Patch\n+"2.1 m"\n*** End Patch'
    events, body = told(*call(0, "apply_patch", json.dumps({"input": patch})), END)
    (item,) = body["output"]
    assert (item["type"], item["input"], item["call_id"]) == ("custom_tool_call", patch, "call_0")
    assert [event["delta"] for event in events if event["type"].endswith("input.delta")] == [patch]
    assert [event["input"] for event in events if event["type"].endswith("input.done")] == [patch]


def test_custom_input_that_the_model_wrote_otherwise_is_told_as_it_stands() -> None:
    _, body = told(*call(0, "apply_patch", '{"patch":1}'), END)
    assert body["output"][0]["input"] == '{"patch":1}'


def test_a_call_of_a_namespace_says_so() -> None:
    _, body = told(*call(0, "close_agent", "{}"), END)
    assert body["output"][0]["namespace"] == "agents"
    assert body["tools"] == TOOLS


@pytest.mark.parametrize(
    ("name", "arguments", "field", "came"),
    [("tide", '{"po', "arguments", '{"po'), ("apply_patch", '{"input": "rm -rf ', "input", "rm -rf ")],
)
def test_a_cut_call_is_never_done(name: str, arguments: str, field: str, came: str) -> None:
    cut = (CallBegun(index=0, id="c", name=name), CallCut(index=0, arguments=arguments))
    events, body = told(*cut, Finished(reason="length", usage=USAGE))
    assert not [kind for kind in types(events) if kind.endswith(".done")]
    assert types(events)[-1] == "incomplete"
    assert body["incomplete_details"] == {"reason": "max_output_tokens"}
    assert (body["output"][0]["status"], body["output"][0][field]) == ("incomplete", came)


def test_thinking_and_calls_alternate_each_in_its_place() -> None:
    events = (ReasoningDelta(text="a"), *call(0, "tide", "{}"), ReasoningDelta(text="b"), *call(1, "tide", "{}"), END)
    _, body = told(*events)
    assert [item["type"] for item in body["output"]] == ["reasoning", "function_call", "reasoning", "function_call"]


def test_markup_that_is_no_call_is_text() -> None:
    _, body = told(Malformed(raw="<tool_call>{", reason="cut"), END)
    assert body["output"][0]["content"][0]["text"] == "<tool_call>{"


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ErrorInfo(code="engine_failed", message="boom"), "server_error", "boom"),
        (
            ErrorInfo(code="queue_full", message="full", retry_after=1.5),
            "rate_limit_exceeded",
            "full; try again in 1.5s",
        ),
        (ErrorInfo(code="context_length_exceeded", message="long"), "context_length_exceeded", "long"),
        (ErrorInfo(code="owner_lost", message="gone", retry=False), "invalid_prompt", "gone"),
    ],
)
def test_a_failure_is_told_in_words_that_clients_act_on(error: ErrorInfo, code: str, message: str) -> None:
    events, body = told(TextDelta(text="No"), Failed(error=error))
    assert types(events)[-1] == "failed"
    assert body["error"] == {"code": code, "message": message}
    assert body["output"][0]["status"] == "incomplete"


def test_a_sign_of_life_has_no_number_of_its_own() -> None:
    encoder = encoder_of()
    first = parsed(encoder.heartbeat())
    again = parsed(encoder.heartbeat())
    assert types(first) == ["created", "in_progress"]
    assert (types(again), again[0]["sequence_number"]) == (["in_progress"], 1)
    assert parsed(encoder.feed((TextDelta(text="x"),)))[0]["sequence_number"] == 2


def test_dispatch_comes_before_the_call_is_done_when_asked_for() -> None:
    result = ToolResulted(key="k", name="tide", output="2.1 m")
    encoder = encoder_of(nvext={"tool_dispatch": True})
    names = [
        block.partition("\n")[0].removeprefix("event: ")
        for block in encoder.feed((*call(0, "tide", "{}", key="k"), result)).decode().split("\n\n")
    ]
    assert names.index("tool_call_dispatch") < names.index("response.output_item.done") < names.index("tool_result")
    assert "tool_call_dispatch" not in str(told(*call(0, "tide", "{}", key="k"), result, END)[0])


EVENT: Any = ResponseStreamEvent
INDEX = st.integers(0, 2)
TEXT = st.text(max_size=4)
EVENTS = st.lists(
    st.one_of(
        st.builds(TextDelta, text=TEXT),
        st.builds(ReasoningDelta, text=TEXT),
        st.builds(Malformed, raw=TEXT, reason=st.just("x")),
        st.builds(
            CallBegun, index=INDEX, id=st.just("c"), name=st.sampled_from(["tide", "apply_patch", "close_agent"])
        ),
        st.builds(ArgumentsDelta, index=INDEX, text=TEXT),
        st.builds(CallComplete, index=INDEX, id=st.just("c"), name=st.just("tide"), arguments=st.just("{}")),
        st.builds(CallCut, index=INDEX, arguments=TEXT),
    ),
    max_size=12,
)


@given(events=EVENTS, cut=st.integers(1, 5), reason=st.sampled_from(["stop", "length", "tool_calls"]))
def test_any_interleaving_is_a_valid_sequence_of_items(events: list[TurnEvent], cut: int, reason: Any) -> None:
    distinct = [one if not hasattr(one, "id") else _own_id(one) for one in events]
    stream, body = told(*distinct, Finished(reason=reason, usage=USAGE), cut=cut)
    assert [event["sequence_number"] for event in stream] == list(range(len(stream)))
    cut_calls = {item["id"] for item in body["output"] if item["status"] == "incomplete" and "call_id" in item}
    open_item = ""
    items: list[str] = []
    for event in stream:
        match event["type"].removeprefix("response."):
            case "output_item.added":
                assert not open_item or open_item in cut_calls
                assert event["output_index"] == len(items)
                open_item = event["item"]["id"]
                items.append(open_item)
            case "output_item.done":
                assert event["item"]["id"] == open_item
                assert event["item"] == body["output"][event["output_index"]]
                open_item = ""
            case _:
                assert event.get("item_id", open_item) == open_item
                assert event.get("output_index", len(items) - 1) == len(items) - 1
    assert not open_item or open_item in cut_calls
    assert [item["id"] for item in body["output"]] == items
    assert len(set(items)) == len(items)
    assert stream[-1]["response"] == body


def _own_id(one: Any) -> Any:
    return type(one)(**{name: getattr(one, name) for name in one.__struct_fields__} | {"id": f"call_{one.index}"})


@given(events=EVENTS)
def test_the_official_accumulator_ends_with_the_body(events: list[TurnEvent]) -> None:
    distinct = [one if not hasattr(one, "id") else _own_id(one) for one in events if not isinstance(one, CallCut)]
    stream, body = told(*distinct, END)
    state: Any = ResponseStreamState(input_tools=[], text_format=omit)
    for event in stream:
        state.handle_event(construct_type_unchecked(type_=EVENT, value=event))
    final = state._completed_response.to_dict()
    assert final["id"] == body["id"]
    assert [item["id"] for item in final["output"]] == [item["id"] for item in body["output"]]


def test_a_custom_tools_text_streams_as_it_is_made() -> None:
    pieces = ('{"input": "*** Be', "gin\\n", 'end"}')
    events, body = told(
        CallBegun(index=0, id="c1", name="apply_patch"),
        *(ArgumentsDelta(index=0, text=piece) for piece in pieces),
        CallComplete(index=0, id="c1", name="apply_patch", arguments="".join(pieces)),
        END,
    )
    deltas = [one["delta"] for one in events if one["type"] == "response.custom_tool_call_input.delta"]
    (done,) = [one["input"] for one in events if one["type"] == "response.custom_tool_call_input.done"]
    assert deltas == ["*** Be", "gin\n", "end"]
    assert done == body["output"][0]["input"] == "".join(deltas)
