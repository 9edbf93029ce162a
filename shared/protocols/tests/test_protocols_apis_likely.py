"""Log probabilities in each API's own form: streamed and whole, and through the official SDK's accumulators."""

import json
import tracemalloc
from typing import Any

import pytest
from catenary_protocols.apis.chat import CHAT
from catenary_protocols.apis.completions import COMPLETIONS
from catenary_protocols.apis.responses import responses_api
from catenary_protocols.turn_events import (
    Finished,
    ReasoningDelta,
    TextDelta,
    TokenPiece,
    TurnEvent,
    Usage,
    VisibleToken,
)
from openai import omit
from openai._models import construct_type_unchecked
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types import Completion
from openai.types.chat import ChatCompletionChunk
from openai.types.responses import ResponseStreamEvent

HEART, REST = "💚".encode()[:2], "💚".encode()[2:]
EVENTS: tuple[TurnEvent, ...] = (
    ReasoningDelta(text="Hm."),
    TextDelta(
        text="It ",
        tokens=(
            VisibleToken(
                piece=b"It ",
                logprob=-0.25,
                top=(TokenPiece(piece=b"It ", logprob=-0.25), TokenPiece(piece=b"So", logprob=float("-inf"))),
            ),
        ),
    ),
    TextDelta(text="💚", tokens=(VisibleToken(piece=HEART, logprob=-1.0), VisibleToken(piece=REST, logprob=-0.5))),
    TextDelta(text="."),
    Finished(reason="stop", usage=Usage(prompt_tokens=3, completion_tokens=5)),
)
TOLD = [
    {
        "token": "It ",
        "logprob": -0.25,
        "bytes": [73, 116, 32],
        "top_logprobs": [
            {"token": "It ", "logprob": -0.25, "bytes": [73, 116, 32]},
            {"token": "So", "logprob": -9999.0, "bytes": [83, 111]},
        ],
    },
    {"token": "�", "logprob": -1.0, "bytes": list(HEART), "top_logprobs": []},
    {"token": "��", "logprob": -0.5, "bytes": list(REST), "top_logprobs": []},
]
TOKENS = 500
MESSAGES = [{"role": "user", "content": "?"}]


class Unsealed:
    """Seals nothing."""

    def seal(self, text: str) -> str:
        return text

    def open(self, token: str) -> str | None:
        return token


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "stream": True, **fields}).encode()


def data_of(stream: bytes) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in stream.decode().split("\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def test_chat_tells_of_the_tokens_of_its_text_streamed_and_whole() -> None:
    encoder = CHAT.encoder(CHAT.read(body(messages=MESSAGES, logprobs=True, top_logprobs=2)), "t" * 26, 7)
    state: ChatCompletionStreamState[None] = ChatCompletionStreamState()
    for chunk in data_of(b"".join(encoder.feed((one,)) for one in EVENTS)):
        state.handle_chunk(ChatCompletionChunk.model_validate(chunk))
    whole = json.loads(encoder.body())["choices"][0]
    assert whole["logprobs"] == {"content": TOLD, "refusal": None}
    logprobs = state.get_final_completion().choices[0].logprobs
    assert logprobs is not None
    assert logprobs.model_dump() == whole["logprobs"]


def test_completions_tells_of_them_in_lists() -> None:
    encoder = COMPLETIONS.encoder(COMPLETIONS.read(body(prompt="Once", logprobs=2)), "t" * 26, 7)
    chunks = [Completion.construct(**one) for one in data_of(b"".join(encoder.feed((one,)) for one in EVENTS))]
    whole = json.loads(encoder.body())["choices"][0]["logprobs"]
    assert whole == {
        "tokens": ["It ", "�", "��"],
        "token_logprobs": [-0.25, -1.0, -0.5],
        "top_logprobs": [{"It ": -0.25, "So": -9999.0}, {}, {}],
        "text_offset": [0, 3, 4],
    }
    told = [choice.logprobs for chunk in chunks for choice in chunk.choices if choice.logprobs]
    assert [offset for one in told for offset in one.text_offset or ()] == whole["text_offset"]


@pytest.mark.parametrize("asked", [{"include": ["message.output_text.logprobs"]}, {"top_logprobs": 2}])
def test_responses_tells_of_them_with_text_and_part(asked: dict[str, Any]) -> None:
    api = responses_api(Unsealed())
    draft = api.read(body(input="?", **asked))
    assert draft.sampling.logprobs == asked.get("top_logprobs", 0)
    encoder = api.encoder(draft, "t" * 26, 7)
    events = data_of(b"".join(encoder.feed((one,)) for one in EVENTS))
    deltas = [one for one in events if one["type"] == "response.output_text.delta"]
    (done,) = [one for one in events if one["type"] == "response.output_text.done"]
    assert [token for one in deltas for token in one["logprobs"]] == done["logprobs"] == TOLD
    state: Any = ResponseStreamState(input_tools=omit, text_format=omit)
    for one in events:
        state.handle_event(construct_type_unchecked(value=one, type_=ResponseStreamEvent))  # type: ignore[arg-type]
    final = state._completed_response  # the accumulator has no other face
    part = json.loads(encoder.body())["output"][1]["content"][0]
    assert part["logprobs"] == TOLD
    assert final.output[1].content[0].to_dict()["logprobs"] == TOLD


@pytest.mark.parametrize("api", [CHAT, responses_api(Unsealed()), COMPLETIONS])
def test_a_long_stream_with_all_alternatives_holds_less_than_a_kilobyte_for_each_token(api: Any) -> None:
    asked = {"prompt": "Once", "logprobs": 5} if api is COMPLETIONS else {"top_logprobs": 20, "messages": MESSAGES}
    encoder = api.encoder(api.read(body(input="?", **({"logprobs": True} | asked))), "t" * 26, 7)
    tracemalloc.start()
    try:
        for number in range(TOKENS):
            top = tuple(TokenPiece(piece=b"%d" % (number + other), logprob=-float(other)) for other in range(20))
            encoder.feed((TextDelta(text="It ", tokens=(VisibleToken(piece=b"It ", logprob=-0.25, top=top),)),))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held / TOKENS < 1024


@pytest.mark.parametrize(("logprob", "told"), [(float("nan"), -9999.0), (float("inf"), 0.0), (float("-inf"), -9999.0)])
def test_what_is_no_probability_is_told_as_the_nearest(logprob: float, told: float) -> None:
    encoder = CHAT.encoder(CHAT.read(body(messages=MESSAGES, logprobs=True)), "t" * 26, 7)
    (chunk,) = data_of(encoder.feed((TextDelta(text="a", tokens=(VisibleToken(piece=b"a", logprob=logprob),)),)))[1:]
    encoder.feed((EVENTS[-1],))
    whole = json.loads(encoder.body())["choices"][0]
    assert [one["logprobs"]["content"][0]["logprob"] for one in (chunk["choices"][0], whole)] == [told, told]


@pytest.mark.parametrize("api", [CHAT, responses_api(Unsealed()), COMPLETIONS])
def test_who_does_not_ask_is_told_nothing(api: Any) -> None:
    draft = api.read(body(messages=MESSAGES, input="?", **({"prompt": "Once"} if api is COMPLETIONS else {})))
    assert draft.sampling.logprobs is None
    whole = api.encoder(draft, "t" * 26, 7)
    whole.feed((TextDelta(text="Hi."), EVENTS[-1]))
    assert not any(choice["logprobs"] for choice in json.loads(whole.body()).get("choices", ()))
