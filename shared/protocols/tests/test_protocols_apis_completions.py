import json
from typing import Any

import pytest
from catenary_protocols.apis.completions import COMPLETIONS
from catenary_protocols.apis.completions.read import unpacked
from catenary_protocols.errors import ErrorInfo, RequestError
from catenary_protocols.turn_events import Accepted, Failed, Finished, TextDelta, Usage

USAGE = Usage(prompt_tokens=4, completion_tokens=2)


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "prompt": "Once", **fields}).encode()


def test_a_prompt_is_taken_as_it_stands() -> None:
    draft = COMPLETIONS.read(body(temperature=0.5, stop="\\n", n=2))
    assert draft.conversation.text == "Once"
    assert (draft.sampling.max_tokens, draft.sampling.stop, draft.choices) == (16, ("\\n",), 2)


@pytest.mark.parametrize("prompt", [[5, 6], [[5, 6]]])
def test_a_prompt_may_be_tokens(prompt: list[Any]) -> None:
    assert unpacked(COMPLETIONS.read(body(prompt=prompt)).conversation.ids) == [5, 6]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [1, "b"]}, "prompt"),
        ({"prompt": [-1]}, "prompt[0]"),
        ({"echo": True}, "echo"),
        ({"logprobs": 21}, "logprobs"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
def test_what_cannot_be_served_names_its_field(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestError) as caught:
        COMPLETIONS.read(body(**fields))
    assert caught.value.field == field


def test_the_stream_says_what_the_body_says() -> None:
    draft = COMPLETIONS.read(body(n=2, stream=True, stream_options={"include_usage": True}))
    encoder = COMPLETIONS.encoder(draft, "t" * 26, 7)
    data = encoder.feed(
        (
            Accepted(prompt_tokens=4),
            TextDelta(text="a", choice=1),
            TextDelta(text="b"),
            Finished(reason="length", usage=USAGE),
            TextDelta(text="c", choice=1),
            Finished(reason="stop", usage=USAGE, choice=1),
        )
    )
    *chunks, done = [line.removeprefix("data: ") for line in data.decode().split("\n") if line]
    assert done == "[DONE]"
    told = [choice for chunk in chunks for choice in json.loads(chunk)["choices"]]
    whole = json.loads(encoder.body())
    for choice in whole["choices"]:
        own = [one for one in told if one["index"] == choice["index"]]
        assert "".join(one["text"] for one in own) == choice["text"]
        assert [one["finish_reason"] for one in own if one["finish_reason"]] == [choice["finish_reason"]]
    assert json.loads(chunks[-1])["usage"] == whole["usage"]
    assert (whole["object"], whole["id"], whole["created"]) == ("text_completion", "cmpl-" + "t" * 26, 7)


def test_a_failure_ends_the_stream() -> None:
    encoder = COMPLETIONS.encoder(COMPLETIONS.read(body(stream=True)), "t" * 26, 7)
    data = encoder.feed((Failed(error=ErrorInfo(code="engine_failed", message="boom")),))
    assert b"boom" in data
    assert data.endswith(b"data: [DONE]\n\n")
