"""Golden transcripts through the official clients' own accumulators: a stream's reader ends with what the body says."""

import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, cast

import pytest
from anthropic.lib.streaming._beta_messages import accumulate_event as accumulate_beta
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message
from anthropic.types.beta import BetaMessage
from catenary_protocols.apis.api import Encoder
from catenary_protocols.apis.chat import CHAT
from catenary_protocols.apis.messages import messages_api
from catenary_protocols.apis.responses import responses_api
from catenary_protocols.turn_events import (
    Accepted,
    ArgumentsDelta,
    CallBegun,
    CallComplete,
    CallCut,
    Finished,
    FinishReason,
    Malformed,
    Queued,
    ReasoningDelta,
    Started,
    TextDelta,
    TurnEvent,
    Usage,
)
from hypothesis import given
from hypothesis import strategies as st
from openai import omit
from openai._models import construct_type_unchecked
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import ResponseStreamEvent

Json = dict[str, Any]

SCHEMA = {"type": "object", "properties": {"port": {"type": "string"}}}
PATCH = '*** Begin Patch\n+"2.1 m" 🌊\n*** End Patch'


def call(index: int, name: str, arguments: str) -> tuple[TurnEvent, ...]:
    whole = CallComplete(index=index, id=f"call_{index}", name=name, arguments=arguments, key=f"t-0-{index}")
    deltas = (ArgumentsDelta(index=index, text=arguments[at : at + 4]) for at in range(0, len(arguments), 4))
    return CallBegun(index=index, id=whole.id, name=name), *deltas, whole


def cut(index: int, name: str, arguments: str) -> tuple[TurnEvent, ...]:
    begun, *deltas, _ = call(index, name, arguments)
    return begun, *deltas[:-1], CallCut(index=index, arguments=arguments)


THOUGHT = (ReasoningDelta(text="Let me "), ReasoningDelta(text="look.\n"))
TEXT = (TextDelta(text='One "moment" '), TextDelta(text="🌊\n"))
AYR, OBAN = call(0, "tide", '{"port": "Ayr"}'), call(1, "tide", '{"port": "Oban", "more": [1, 2.50]}')
WAITING = (Queued(position=2),)
PARTS: dict[str, tuple[TurnEvent, ...]] = {
    "nothing": (),
    "text": TEXT,
    "thought": THOUGHT,
    "thought, text": (*THOUGHT, *TEXT),
    "thought, call": (*THOUGHT, *AYR),
    "thought, two calls": (*THOUGHT, *AYR, *OBAN),
    "text, two calls, text": (*TEXT, *AYR, *OBAN, *TEXT),
    "thoughts and calls by turns": (*THOUGHT, *AYR, *THOUGHT, *OBAN, *THOUGHT, *TEXT),
    "calls woven into each other": (AYR[0], OBAN[0], *AYR[1:3], *OBAN[1:4], TEXT[0], *AYR[3:], *OBAN[4:], TEXT[1]),
    "custom tool": (*THOUGHT, *call(0, "apply_patch", json.dumps({"input": PATCH}))),
    "a call that was cut": (*THOUGHT, *TEXT, *cut(0, "tide", '{"port": "Ayr", "day": 12, "more": [1, "')),
    "a call of which nothing came": (
        *TEXT,
        CallBegun(index=0, id="call_0", name="tide"),
        CallCut(index=0, arguments=""),
    ),
    "a call, and one that was cut": (*AYR, *cut(1, "tide", '{"port": {"na')),
    "a call that nobody ends": (*TEXT, *AYR[:-1]),
    "a custom tool that was cut": (*THOUGHT, *cut(0, "apply_patch", json.dumps({"input": PATCH})[:-9])),
    "markup that is no call": (*TEXT, Malformed(raw="<tool_call>{", reason="no JSON")),
}
ENDS: dict[str, tuple[FinishReason, str]] = {
    "stop": ("stop", ""),
    "calls": ("tool_calls", ""),
    "limit": ("length", ""),
    "refusal": ("content_filter", ""),
    "stop sequence": ("stop", "END"),
}


def turn(parts: tuple[TurnEvent, ...], end: str) -> tuple[TurnEvent, ...]:
    reason, stop = ENDS[end]
    usage = Usage(prompt_tokens=20, completion_tokens=9, cached_tokens=16, reasoning_tokens=2)
    opening = (Accepted(prompt_tokens=20), *WAITING, Started(cached_tokens=16, worker="w1"))
    return *opening, *parts, Finished(reason=reason, usage=usage, stop=stop)


class Marked:
    """`Sealed` that can be read."""

    def seal(self, text: str) -> str:
        return f"sealed:{text}"

    def open(self, token: str) -> str | None:
        return token.removeprefix("sealed:") if token.startswith("sealed:") else None


def chat() -> Encoder:
    tool = {"type": "function", "function": {"name": "tide", "parameters": SCHEMA}}
    draft = CHAT.read(
        body(messages=[{"role": "user", "content": "?"}], tools=[tool], stream_options={"include_usage": True})
    )
    return CHAT.encoder(draft, "0" * 26, 1_700_000_000)


def messages() -> Encoder:
    api = messages_api(Marked())
    tool = {"name": "tide", "input_schema": SCHEMA}
    draft = api.read(body(max_tokens=99, messages=[{"role": "user", "content": "?"}], tools=[tool]))
    return api.encoder(draft, "0" * 26, 1_700_000_000)


def responses() -> Encoder:
    api = responses_api(Marked())
    patch = {"type": "custom", "name": "apply_patch", "format": {"type": "text"}}
    draft = api.read(body(input="?", tools=[{"type": "function", "name": "tide", "parameters": SCHEMA}, patch]))
    return api.encoder(draft, "0" * 26, 1_700_000_000)


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "stream": True, **fields}).encode()


def data_of(stream: bytes) -> Iterator[Json]:
    for event in stream.decode().split("\n\n")[:-1]:
        text = event.rpartition("data: ")[2]
        if text != "[DONE]":
            yield json.loads(text)


def by_openai_chat(stream: bytes, whole: bytes) -> tuple[Json, Json]:
    state: ChatCompletionStreamState[None] = ChatCompletionStreamState()
    for chunk in data_of(stream):
        state.handle_chunk(ChatCompletionChunk.model_validate(chunk))
    # `get_final_completion` raises where a limit or a filter ended the answer.
    told, said = state.current_completion_snapshot, ChatCompletion.model_validate_json(whole)
    return without_its_own(told.model_dump(exclude_none=True)), without_its_own(said.model_dump(exclude_none=True))


def without_its_own(completion: Json) -> Json:
    """The accumulator leaves a call's place in the stream and what it parsed; an empty text it has from the first delta."""
    for choice in completion["choices"]:
        message = choice["message"]
        if not message.get("content"):
            message.pop("content", None)
        for one in message.get("tool_calls", ()):
            one.pop("index", None)
            one["function"].pop("parsed_arguments", None)
    return completion


def by_openai_responses(stream: bytes, whole: bytes) -> tuple[Json, Json]:
    """The client has each item from its own `done` event too; a call that was cut, from the end of the response alone."""
    state: Any = ResponseStreamState(input_tools=[], text_format=omit)
    union: Any = ResponseStreamEvent
    last: Any = None
    for event in data_of(stream):
        last = state.handle_event(construct_type_unchecked(type_=union, value=event))[-1]
    told, said = last.response.to_dict(mode="json"), json.loads(whole)
    done = [item.to_dict(mode="json") for item in state._completed_output.values()]
    whole_items = [item for item in said["output"] if "call_id" not in item or item["status"] == "completed"]
    assert done == whole_items
    for item in told["output"]:
        item.pop("parsed_arguments", None)
        for part in item.get("content", ()):
            part.pop("parsed", None)
    return told, said


def by_anthropic(stream: bytes, whole: bytes) -> tuple[Json, Json]:
    message: Any = None
    buffers: dict[int, bytes] = {}
    for event in data_of(stream):
        if event["type"] != "ping":
            message = accumulate_event(event=cast("Any", event), current_snapshot=message, json_bufs=buffers)
    said = Message.model_validate_json(whole)
    return Message.model_validate(message.model_dump()).model_dump(), said.model_dump()


def by_anthropic_beta(stream: bytes, whole: bytes) -> tuple[Json, Json]:
    message: Any = None
    buffers: dict[int, bytes] = {}
    headers: Any = {}
    for event in data_of(stream):
        if event["type"] != "ping":
            message = accumulate_beta(
                event=cast("Any", event), current_snapshot=message, json_bufs=buffers, request_headers=headers
            )
    said = BetaMessage.model_validate_json(whole)
    return BetaMessage.model_validate(message.model_dump()).model_dump(), said.model_dump()


Reader = Callable[[bytes, bytes], tuple[Json, Json]]
READERS: dict[str, tuple[Callable[[], Encoder], Reader]] = {
    "openai chat": (chat, by_openai_chat),
    "openai responses": (responses, by_openai_responses),
    "anthropic": (messages, by_anthropic),
    "anthropic beta": (messages, by_anthropic_beta),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("client", READERS)
def test_a_stream_is_put_together_to_the_body(client: str, parts: str, end: str) -> None:
    encoder, read = READERS[client][0](), READERS[client][1]
    told, said = read(encoder.feed(turn(PARTS[parts], end)), encoder.body())
    assert told == said


@given(st.sampled_from(sorted(READERS)), st.sampled_from(sorted(PARTS)), st.sampled_from(sorted(ENDS)), st.data())
def test_however_events_are_batched_and_waited_for(client: str, parts: str, end: str, data: st.DataObject) -> None:
    encoder, read = READERS[client][0](), READERS[client][1]
    events = turn(PARTS[parts], end)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(events) - 1))))
    pieces = [events[begin:stop] for begin, stop in pairwise((0, *cuts, len(events)))]
    stream = b"".join(encoder.heartbeat() + encoder.feed(piece) for piece in pieces)
    told, said = read(stream, encoder.body())
    assert told == said
