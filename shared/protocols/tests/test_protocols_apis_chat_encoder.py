import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from catenary_protocols.apis.api import Encoder
from catenary_protocols.apis.chat import CHAT
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
    Queued,
    ReasoningDelta,
    Started,
    TextDelta,
    ToolResulted,
    TurnEvent,
    Usage,
)
from hypothesis import given
from hypothesis import strategies as st
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk

USAGE = Usage(prompt_tokens=20, completion_tokens=9, cached_tokens=16, reasoning_tokens=2)
TURN: tuple[TurnEvent, ...] = (
    Accepted(prompt_tokens=20),
    Queued(position=2),
    Started(cached_tokens=16, worker="w1"),
    ReasoningDelta(text="Let me "),
    ReasoningDelta(text="look."),
    TextDelta(text="Looking\n"),
    CallBegun(index=0, id="call_1", name="tide"),
    ArgumentsDelta(index=0, text='{"port": '),
    ArgumentsDelta(index=0, text='"Ayr"}'),
    CallComplete(index=0, id="call_1", name="tide", arguments='{"port": "Ayr"}', key="t-0-0", run_by="mesh"),
    TextDelta(text='one "moment" 🌊'),
    ToolResulted(key="t-0-0", name="tide", output="2.1 m"),
    CallBegun(index=1, id="call_2", name="bare"),
    CallComplete(index=1, id="call_2", name="bare", arguments="{}", key="t-0-1", run_by="client"),
    Finished(reason="tool_calls", usage=USAGE),
)


def encoder(**fields: Any) -> Encoder:
    request = {"model": "a/b", "messages": [{"role": "user", "content": "?"}], "stream": True, **fields}
    return CHAT.encoder(CHAT.read(json.dumps(request).encode()), "0" * 26, 1700000000)


def events_of(data: bytes) -> list[tuple[str, Any]]:
    found = []
    for block in data.decode().split("\n\n")[:-1]:
        fields = dict(line.split(": ", 1) for line in block.split("\n"))
        text = fields["data"]
        found.append((fields.get("event", ""), text if text == "[DONE]" else json.loads(text)))
    return found


def deltas(data: bytes) -> list[Any]:
    return [chunk["choices"][0]["delta"] for name, chunk in events_of(data) if not name and chunk != "[DONE]"]


def assembled(data: bytes) -> dict[str, Any]:
    state: ChatCompletionStreamState[None] = ChatCompletionStreamState()
    for name, chunk in events_of(data):
        if not name and chunk != "[DONE]":
            state.handle_chunk(ChatCompletionChunk.model_validate(chunk))
    return plain(state.get_final_completion().model_dump(exclude_none=True))


def plain(completion: dict[str, Any]) -> dict[str, Any]:
    """What both forms must agree on: the accumulator leaves stream indexes and empty texts in its result."""
    for choice in completion["choices"]:
        message = choice["message"]
        if not message.get("content"):
            message.pop("content", None)
        for call in message.get("tool_calls", ()):
            call.pop("index", None)
            call["function"].pop("parsed_arguments", None)
    return completion


def test_the_transcript_of_a_turn() -> None:
    stream = encoder().feed(TURN)
    chunks = events_of(stream)
    assert stream.startswith(
        b'data: {"object":"chat.completion.chunk","id":"chatcmpl-00000000000000000000000000","created":1700000000,'
        b'"model":"a/b","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
    )
    assert deltas(stream) == [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "Let me "},
        {"reasoning_content": "look."},
        {"content": "Looking\n"},
        {
            "tool_calls": [
                {"index": 0, "id": "call_1", "type": "function", "function": {"name": "tide", "arguments": ""}}
            ]
        },
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"port": '}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '"Ayr"}'}}]},
        {"content": 'one "moment" 🌊'},
        {
            "tool_calls": [
                {"index": 1, "id": "call_2", "type": "function", "function": {"name": "bare", "arguments": ""}}
            ]
        },
        {"tool_calls": [{"index": 1, "function": {"arguments": "{}"}}]},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for _, chunk in chunks[:-1]] == [None] * 10 + ["tool_calls"]
    assert all("usage" not in chunk for _, chunk in chunks[:-1])
    assert chunks[-1] == ("", "[DONE]")


def test_usage_comes_last_when_asked_for() -> None:
    chunks = events_of(encoder(stream_options={"include_usage": True}).feed(TURN))
    assert chunks[-2][1]["choices"] == []
    assert chunks[-2][1]["usage"] == {
        "prompt_tokens": 20,
        "completion_tokens": 9,
        "total_tokens": 29,
        "prompt_tokens_details": {"cached_tokens": 16},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }


@given(st.sets(st.integers(min_value=1, max_value=len(TURN) - 1)), st.booleans())
def test_the_official_accumulator_gets_the_same_as_the_body_however_the_events_are_batched(
    cuts: set[int], dispatch: bool
) -> None:
    one = encoder(stream_options={"include_usage": True}, nvext={"tool_dispatch": dispatch})
    bounds = [0, *sorted(cuts), len(TURN)]
    stream = b"".join(
        one.feed(TURN[begin:end]) + (one.heartbeat() if end < len(TURN) else b"") for begin, end in pairwise(bounds)
    )
    whole = ChatCompletion.model_validate_json(one.body())
    assert assembled(stream) == plain(whole.model_dump(exclude_none=True))


def test_a_dispatch_event_is_complete_and_comes_before_the_delta_that_completes_the_call() -> None:
    one = encoder(nvext={"tool_dispatch": True})
    found: list[tuple[str, Any]] = []
    for event in TURN:
        found += events_of(one.feed([event]))
    found_together = events_of(encoder(nvext={"tool_dispatch": True}).feed(TURN))
    assert [entry for entry in found if entry[0]] == [entry for entry in found_together if entry[0]]
    names = [name for name, _ in found]
    assert names.count("tool_call_dispatch") == 2
    assert names.count("tool_result") == 1
    first = found_together.index(next(entry for entry in found_together if entry[0] == "tool_call_dispatch"))
    assert found_together[first][1] == {
        "choice_index": 0,
        "tool_call": {
            "type": "function",
            "id": "call_1",
            "function": {"name": "tide", "arguments": '{"port": "Ayr"}'},
            "index": 0,
        },
    }
    later = [chunk for name, chunk in found_together[first:] if not name and chunk != "[DONE]"]
    assert '"Ayr"}' in json.dumps(later).replace("\\", "")
    assert next(chunk for name, chunk in found if name == "tool_result") == {
        "choice_index": 0,
        "index": 0,
        "tool_call_id": "call_1",
        "name": "tide",
        "content": "2.1 m",
        "is_error": False,
    }


def test_heartbeats_open_the_answer_once_and_change_nothing() -> None:
    one = encoder()
    first, second = deltas(one.heartbeat()), deltas(one.heartbeat())
    assert (first, second) == ([{"role": "assistant", "content": ""}], [{}])
    assert deltas(one.feed([TextDelta(text="a")])) == [{"content": "a"}]


def test_a_turn_that_says_nothing_still_has_an_answer() -> None:
    one = encoder()
    assert deltas(one.feed([Finished(reason="stop", usage=USAGE)])) == [{"role": "assistant", "content": ""}, {}]
    assert json.loads(one.body())["choices"] == [
        {"index": 0, "message": {"content": "", "role": "assistant"}, "finish_reason": "stop", "logprobs": None}
    ]


def test_a_cut_call_keeps_what_there_was_and_malformed_markup_is_text() -> None:
    one = encoder()
    one.feed(
        [
            Malformed(raw="<tool_call>{", reason="no JSON"),
            CallBegun(index=0, id="c", name="f"),
            ArgumentsDelta(index=0, text='{"a'),
            CallCut(index=0, arguments='{"a": "b'),
            Finished(reason="length", usage=USAGE),
        ]
    )
    (choice,) = json.loads(one.body())["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"] == "<tool_call>{"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"a": "b'


def test_a_call_may_come_whole() -> None:
    one = encoder()
    whole = CallComplete(index=0, id="c", name="f", arguments='{"a":1}')
    assert deltas(one.feed([whole]))[1:] == [
        {"tool_calls": [{"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a":1}'}}]},
    ]


SMALL = st.integers(min_value=0, max_value=2)
SOME_EVENT: st.SearchStrategy[TurnEvent] = st.one_of(
    st.builds(TextDelta, text=st.text(), choice=SMALL),
    st.builds(ReasoningDelta, text=st.text(), choice=SMALL),
    st.builds(CallBegun, index=SMALL, id=st.text(), name=st.text(), choice=SMALL),
    st.builds(ArgumentsDelta, index=SMALL, text=st.text(), choice=SMALL),
    st.builds(CallComplete, index=SMALL, id=st.text(), name=st.text(), arguments=st.text(), choice=SMALL),
    st.builds(CallCut, index=SMALL, arguments=st.text(), choice=SMALL),
    st.builds(Malformed, raw=st.text(), reason=st.just("")),
    st.builds(ToolResulted, key=st.just("t-0-0"), name=st.text(), output=st.text()),
)


@given(st.lists(SOME_EVENT), st.booleans())
def test_whatever_a_turn_tells_its_stream_is_well_formed_and_ends(events: list[TurnEvent], dispatch: bool) -> None:
    one = encoder(nvext={"tool_dispatch": dispatch})
    stream = one.feed([*events, Finished(reason="stop", usage=USAGE)])
    assert events_of(stream)[-1] == ("", "[DONE]")
    for name, chunk in events_of(stream)[:-1]:
        if not name:
            ChatCompletionChunk.model_validate(chunk)
    ChatCompletion.model_validate_json(one.body())


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (Failed(error=ErrorInfo(code="worker_lost", message="it is gone")), "worker_lost"),
        (Finished(reason="cancelled", usage=USAGE), "cancelled"),
    ],
)
def test_a_failure_ends_the_stream_with_an_error(end: TurnEvent, code: str) -> None:
    events: Sequence[tuple[str, Any]] = events_of(encoder().feed([TextDelta(text="a"), end]))
    assert events[-2][1]["error"]["code"] == code
    assert events[-1] == ("", "[DONE]")
    assert all(chunk["choices"][0]["finish_reason"] is None for _, chunk in events[:-2])


def test_a_call_of_a_function_is_told_in_the_older_form() -> None:
    one = encoder(functions=[{"name": "tide"}])
    events = (
        CallBegun(index=0, id="call_1", name="tide"),
        ArgumentsDelta(index=0, text="{}"),
        CallComplete(index=0, id="call_1", name="tide", arguments="{}"),
        Finished(reason="tool_calls", usage=USAGE),
    )
    stream = one.feed(events)
    assert deltas(stream)[1:3] == [
        {"function_call": {"arguments": "", "name": "tide"}},
        {"function_call": {"arguments": "{}"}},
    ]
    (choice,) = json.loads(one.body())["choices"]
    assert choice["message"]["function_call"] == {"name": "tide", "arguments": "{}"}
    assert (choice["finish_reason"], "tool_calls" in choice["message"]) == ("function_call", False)


def test_each_choice_ends_for_itself_and_the_stream_with_the_last() -> None:
    one = encoder(n=2, stream_options={"include_usage": True})
    first = one.feed((TextDelta(text="a", choice=1), Finished(reason="tool_calls", usage=USAGE, choice=1)))
    assert b"[DONE]" not in first
    stream = first + one.feed((TextDelta(text="b"), Finished(reason="stop", usage=USAGE)))
    assert stream.count(b"[DONE]") == 1
    body = json.loads(one.body())
    assert [(choice["message"]["content"], choice["finish_reason"]) for choice in body["choices"]] == [
        ("b", "stop"),
        ("a", "tool_calls"),
    ]
    assert assembled(stream)["choices"][1]["finish_reason"] == "tool_calls"
