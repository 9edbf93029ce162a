import json
from itertools import pairwise
from typing import Any, cast

import pytest
from anthropic.lib.streaming._beta_messages import accumulate_event as accumulate_beta
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message
from anthropic.types.beta import BetaMessage
from catenary_protocols.apis.api import Encoder
from catenary_protocols.apis.messages import messages_api
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

TOO_MUCH = "input length and `max_tokens` exceed context limit:"
USAGE = Usage(prompt_tokens=20, completion_tokens=9, cached_tokens=16, reasoning_tokens=2)
OPENING: tuple[TurnEvent, ...] = (Accepted(prompt_tokens=20), Queued(position=2), Started(cached_tokens=16, worker="w"))
TURN: tuple[TurnEvent, ...] = (
    *OPENING,
    ReasoningDelta(text="Let me "),
    ReasoningDelta(text="look."),
    TextDelta(text="Looking\n"),
    CallBegun(index=0, id="call_1", name="tide"),
    ArgumentsDelta(index=0, text='{"port": '),
    ArgumentsDelta(index=0, text='"Ayr"}'),
    CallComplete(index=0, id="call_1", name="tide", arguments='{"port": "Ayr"}', key="t-0-0", run_by="mesh"),
    ReasoningDelta(text="And now?"),
    CallBegun(index=1, id="call_2", name="bare"),
    CallComplete(index=1, id="call_2", name="bare", arguments="{}", key="t-0-1", run_by="client"),
    TextDelta(text='one "moment" 🌊'),
    ToolResulted(key="t-0-0", name="tide", output="2.1 m"),
    Finished(reason="tool_calls", usage=USAGE),
)


class Marked:
    """`Sealed` that can be read."""

    def seal(self, text: str) -> str:
        return f"sealed:{text}"

    def open(self, token: str) -> str | None:
        return token.removeprefix("sealed:") if token.startswith("sealed:") else None


API = messages_api(Marked())


def encoder(**fields: Any) -> Encoder:
    request = {
        "model": "a/b",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "?"}],
        "stream": True,
        **fields,
    }
    return API.encoder(API.read(json.dumps(request).encode()), "0" * 26, 1700000000)


def events_of(data: bytes) -> list[dict[str, Any]]:
    found = []
    for block in data.decode().split("\n\n")[:-1]:
        name, text = block.split("\n")
        value = json.loads(text.removeprefix("data: "))
        assert name == f"event: {value['type']}"
        found.append(value)
    return found


def told(data: bytes) -> list[Any]:
    """What stands in blocks, in the order in which it was told."""
    return [
        event.get("content_block") or event.get("delta") or event["type"]
        for event in events_of(data)
        if event["type"].startswith("content_block")
    ]


def assembled(data: bytes) -> dict[str, Any]:
    """The message that the official client puts together."""
    message: Any = None
    buffers: dict[int, bytes] = {}
    for event in events_of(data):
        if event["type"] != "ping":
            message = accumulate_event(event=cast("Any", event), current_snapshot=message, json_bufs=buffers)
    return Message.model_validate(message.model_dump()).model_dump(exclude_none=True)


def assembled_beta(data: bytes) -> dict[str, Any]:
    """The same, by its beta half."""
    message: Any = None
    buffers: dict[int, bytes] = {}
    for event in events_of(data):
        if event["type"] != "ping":
            message = accumulate_beta(
                event=cast("Any", event), current_snapshot=message, json_bufs=buffers, request_headers=cast("Any", {})
            )
    return BetaMessage.model_validate(message.model_dump()).model_dump(exclude_none=True)


def check_blocks(data: bytes) -> None:
    """The protocol: a start, blocks 0, 1, 2, … each stopped before the next begins, an end and nothing after it."""
    events = events_of(data)
    kinds = [event["type"] for event in events]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    assert kinds.count("message_start") == kinds.count("message_delta") == kinds.count("message_stop") == 1
    open_block, begun = None, 0
    for event in events:
        match event["type"]:
            case "content_block_start":
                assert (open_block, event["index"]) == (None, begun)
                open_block, begun = begun, begun + 1
            case "content_block_delta":
                assert event["index"] == open_block
            case "content_block_stop":
                assert event["index"] == open_block
                open_block = None
    assert open_block is None


def test_the_transcript_of_a_turn() -> None:
    stream = encoder().feed(TURN)
    assert events_of(stream)[:2] == [
        {
            "type": "message_start",
            "message": {
                "type": "message",
                "id": "msg_" + "0" * 26,
                "role": "assistant",
                "model": "a/b",
                "content": [],
                "stop_reason": None,
                "stop_sequence": None,
                "usage": {
                    "input_tokens": 4,
                    "cache_creation_input_tokens": 0,
                    "cache_read_input_tokens": 16,
                    "output_tokens": 0,
                },
            },
        },
        {"type": "ping"},
    ]
    assert told(stream) == [
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "thinking_delta", "thinking": "Let me "},
        {"type": "thinking_delta", "thinking": "look."},
        {"type": "signature_delta", "signature": "sealed:Let me look."},
        "content_block_stop",
        {"type": "text", "text": ""},
        {"type": "text_delta", "text": "Looking\n"},
        "content_block_stop",
        {"type": "tool_use", "id": "call_1", "name": "tide", "input": {}},
        {"type": "input_json_delta", "partial_json": '{"port": '},
        {"type": "input_json_delta", "partial_json": '"Ayr"}'},
        "content_block_stop",
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "thinking_delta", "thinking": "And now?"},
        {"type": "signature_delta", "signature": "sealed:And now?"},
        "content_block_stop",
        {"type": "tool_use", "id": "call_2", "name": "bare", "input": {}},
        {"type": "input_json_delta", "partial_json": "{}"},
        "content_block_stop",
        {"type": "text", "text": ""},
        {"type": "text_delta", "text": 'one "moment" 🌊'},
        "content_block_stop",
    ]
    assert events_of(stream)[-2:] == [
        {
            "type": "message_delta",
            "delta": {"stop_reason": "tool_use", "stop_sequence": None},
            "usage": {
                "input_tokens": 4,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 16,
                "output_tokens": 9,
                "output_tokens_details": {"thinking_tokens": 2},
            },
        },
        {"type": "message_stop"},
    ]


@pytest.mark.parametrize(
    "fields", [{}, {"thinking": {"type": "adaptive", "display": "omitted"}}, {"nvext": {"tool_dispatch": True}}]
)
def test_official_clients_assemble_the_body(fields: dict[str, Any]) -> None:
    one = encoder(**fields)
    stream = one.feed(TURN)
    check_blocks(stream)
    body = Message.model_validate(json.loads(one.body())).model_dump(exclude_none=True)
    assert assembled(stream) == body
    assert assembled_beta(stream) == body


def test_the_start_waits_for_what_the_engine_had_cached() -> None:
    one = encoder()
    assert one.feed(OPENING[:2]) == b""
    assert events_of(one.heartbeat()) == [{"type": "ping"}]
    assert events_of(one.feed(OPENING[2:]))[0]["message"]["usage"]["cache_read_input_tokens"] == 16


def test_a_call_stops_with_its_last_token_and_text_goes_on_at_once() -> None:
    one = encoder()
    one.feed(TURN[:9])
    assert [event["type"] for event in events_of(one.feed(TURN[9:10]))] == ["content_block_stop"]
    assert told(one.feed((TextDelta(text="Then"),))) == [
        {"type": "text", "text": ""},
        {"type": "text_delta", "text": "Then"},
    ]


def test_thinking_that_is_omitted_leaves_its_signature() -> None:
    one = encoder(thinking={"type": "adaptive", "display": "omitted"})
    assert told(one.feed(TURN))[:3] == [
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "signature_delta", "signature": "sealed:Let me look."},
        "content_block_stop",
    ]
    assert json.loads(one.body())["content"][0] == {
        "type": "thinking",
        "thinking": "",
        "signature": "sealed:Let me look.",
    }


def test_thinking_that_is_not_wanted_is_not_told() -> None:
    one = encoder(thinking={"type": "disabled"})
    one.feed((*OPENING, ReasoningDelta(text="hm"), TextDelta(text="Noon."), Finished(reason="stop", usage=USAGE)))
    assert json.loads(one.body())["content"] == [{"type": "text", "text": "Noon."}]


@pytest.mark.parametrize(
    ("end", "wanted"),
    [
        (Finished(reason="stop", usage=USAGE), ("end_turn", None)),
        (Finished(reason="stop", usage=USAGE, stop="END"), ("stop_sequence", "END")),
        (Finished(reason="length", usage=USAGE), ("max_tokens", None)),
        (Finished(reason="tool_calls", usage=USAGE), ("tool_use", None)),
        (Finished(reason="content_filter", usage=USAGE), ("refusal", None)),
    ],
)
def test_why_it_stopped(end: Finished, wanted: tuple[str, str | None]) -> None:
    one = encoder()
    delta = events_of(one.feed((*OPENING, end)))[-2]["delta"]
    body = json.loads(one.body())
    assert (delta["stop_reason"], delta["stop_sequence"]) == (body["stop_reason"], body["stop_sequence"]) == wanted


def test_a_call_that_was_cut_is_told_as_far_as_it_came() -> None:
    one = encoder()
    begun = (CallBegun(index=0, id="c", name="tide"), ArgumentsDelta(index=0, text='{"day": 3, "po'))
    end = (CallCut(index=0, arguments='{"day": 3, "port'), Finished(reason="length", usage=USAGE))
    stream = one.feed((*OPENING, TextDelta(text="Look"), *begun, *end))
    check_blocks(stream)
    assert [delta["partial_json"] for delta in told(stream) if "partial_json" in delta] == ['{"day": 3, "po', "rt"]
    body = json.loads(one.body())
    assert body["content"][1:] == [{"type": "tool_use", "id": "c", "name": "tide", "input": {"day": 3}}]
    assert body["stop_reason"] == "max_tokens"


def test_markup_that_is_no_call_is_text() -> None:
    one = encoder()
    one.feed((*OPENING, Malformed(raw="<tool_call>{", reason="cut"), Finished(reason="stop", usage=USAGE)))
    assert json.loads(one.body())["content"] == [{"type": "text", "text": "<tool_call>{"}]


@pytest.mark.parametrize(
    ("end", "kind"),
    [
        (Failed(error=ErrorInfo(code="worker_lost", message="boom")), "api_error"),
        (Failed(error=ErrorInfo(code="draining", message="boom")), "overloaded_error"),
        (Finished(reason="cancelled", usage=USAGE), "invalid_request_error"),
    ],
)
def test_a_failure_is_the_last_event(end: TurnEvent, kind: str) -> None:
    last = events_of(encoder().feed((*OPENING, TextDelta(text="No"), end)))[-1]
    assert (last["type"], last["error"]["type"]) == ("error", kind)


def test_side_events_tell_of_calls_and_results_when_asked_for() -> None:
    assert not any(event["type"] in {"tool_call_dispatch", "tool_result"} for event in events_of(encoder().feed(TURN)))
    events = events_of(encoder(nvext={"tool_dispatch": True}).feed(TURN))
    sides = [event for event in events if event["type"] in {"tool_call_dispatch", "tool_result"}]
    assert sides == [
        {
            "type": "tool_call_dispatch",
            "tool_use": {"type": "tool_use", "id": "call_1", "name": "tide", "input": {"port": "Ayr"}},
        },
        {"type": "tool_call_dispatch", "tool_use": {"type": "tool_use", "id": "call_2", "name": "bare", "input": {}}},
        {"type": "tool_result", "tool_use_id": "call_1", "name": "tide", "content": "2.1 m", "is_error": False},
    ]


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"prompt": 208310, "completion": 0, "context": 200000}, "prompt is too long: 208310 tokens > 200000 maximum"),
        ({"prompt": 4096, "completion": 5, "context": 4096}, "prompt is too long: 4096 tokens > 4095 maximum"),
        (
            {"prompt": 188240, "completion": 21333, "context": 200000},
            f"{TOO_MUCH} 188240 + 21333 > 200000, decrease input length or `max_tokens` and try again",
        ),
    ],
)
def test_what_is_too_long_is_told_in_the_words_that_clients_act_on(numbers: dict[str, int], message: str) -> None:
    error = ErrorInfo(code="context_length_exceeded", message="long", numbers=numbers)
    assert json.loads(API.error(error, "req_1")) == {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": message},
        "request_id": "req_1",
    }


# --- laws -----------------------------------------------------------------------------------------------------------

PIECES = st.text(min_size=0, max_size=4)
TEXTS = st.builds(lambda text: [TextDelta(text=text)], PIECES)
THOUGHTS = st.builds(lambda text: [ReasoningDelta(text=text)], PIECES)
JUNK = st.builds(lambda text: [Malformed(raw=text, reason="odd")], PIECES)


def call(index: int, value: str, cut: int, *, whole: bool) -> list[TurnEvent]:
    arguments = json.dumps({"a": value})
    end = CallComplete(index=index, id=f"c{index}", name="tide", arguments=arguments, key=f"k{index}")
    if whole:
        return [end]
    return [CallBegun(index=index, id=end.id, name="tide"), ArgumentsDelta(index=index, text=arguments[:cut]), end]


@st.composite
def interleavings(draw: st.DrawFn) -> list[TurnEvent]:
    """Strands of events, each in its own order, woven in any way."""
    strands: list[list[TurnEvent]] = [list(one) for one in draw(st.lists(TEXTS | THOUGHTS | JUNK, max_size=8))]
    strands += [
        call(index, draw(PIECES), draw(st.integers(0, 6)), whole=draw(st.booleans()))
        for index in range(draw(st.integers(0, 4)))
    ]
    woven: list[TurnEvent] = []
    while strands:
        strand = draw(st.sampled_from(strands))
        woven.append(strand.pop(0))
        strands = [one for one in strands if one]
    return woven


@given(interleavings(), st.booleans())
def test_any_interleaving_gives_valid_blocks_and_loses_nothing(woven: list[TurnEvent], dispatch: bool) -> None:
    one = encoder(nvext={"tool_dispatch": dispatch})
    turn = (*OPENING, *woven, Finished(reason="stop", usage=USAGE))
    stream = one.feed(turn)
    check_blocks(stream)
    body = json.loads(one.body())
    assert assembled(stream) == Message.model_validate(body).model_dump(exclude_none=True)
    blocks = body["content"]
    assert {block["id"]: block["input"] for block in blocks if block["type"] == "tool_use"} == {
        event.id: json.loads(event.arguments) for event in woven if isinstance(event, CallComplete)
    }
    for kind, key in (("text", "text"), ("thinking", "thinking")):
        wanted = [piece for event in woven if (piece := _said(event, kind))]
        assert "".join(block[key] for block in blocks if block["type"] == kind) == "".join(wanted)
    assert all(first["type"] != second["type"] or first["type"] == "tool_use" for first, second in pairwise(blocks))


def _said(event: TurnEvent, kind: str) -> str:
    match event:
        case TextDelta() if kind == "text":
            return event.text
        case Malformed() if kind == "text":
            return event.raw
        case ReasoningDelta() if kind == "thinking":
            return event.text
        case _:
            return ""


@given(interleavings(), st.data())
def test_how_events_are_batched_makes_no_difference(woven: list[TurnEvent], data: st.DataObject) -> None:
    turn = (*OPENING, *woven, Finished(reason="stop", usage=USAGE))
    cut = data.draw(st.integers(0, len(turn)))
    whole, halves = encoder(), encoder()
    assert whole.feed(turn) == halves.feed(turn[:cut]) + halves.feed(turn[cut:])
    assert whole.body() == halves.body()


@given(st.lists(st.sampled_from(TURN[3:-1]), max_size=12))
def test_no_order_of_events_breaks_the_protocol(events: list[TurnEvent]) -> None:
    check_blocks(encoder(nvext={"tool_dispatch": True}).feed((*events, Finished(reason="stop", usage=USAGE))))
