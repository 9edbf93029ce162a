"""Tokens to turn events on the embedded model: cutting never matters, stop strings, one call, usage."""

import itertools
import json
from typing import Any

import msgspec
import pytest
from catenary_protocols.bus.messages import ModelCard, TurnRequest
from catenary_protocols.conversation import Conversation, Sampling, TextPart, Tool, ToolChoice, UserMessage
from catenary_protocols.errors import RequestError
from catenary_protocols.ids import TurnKey
from catenary_protocols.turn_events import ArgumentsDelta, CallBegun, CallComplete, ReasoningDelta, TextDelta, TurnEvent
from catenary_tokenizer_service.core.calls import policy_for, unmet
from catenary_tokenizer_service.core.generated import TOKEN_BYTES
from catenary_tokenizer_service.core.guide import guide_of
from catenary_tokenizer_service.egress.stream import AnswerStream
from catenary_tokenizer_service.ingress.prompts import check_context, prepare, thinking_of
from catenary_tokenizer_service.models import ServedModel, open_model
from catenary_tokenizers import embedded_path
from hypothesis import given
from hypothesis import strategies as st

TOOL = Tool(name="get_weather", schema='{"type":"object","properties":{"city":{"type":"string"}}}')
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bergen"}}\n</tool_call>'
ANSWER = f"<think>\nI look — it’s easy 🙂.\n</think>\n\nLet me see.\n{CALL}\nIt rains in Bergen, as ever. STOP here."
_models: list[ServedModel] = []


def model() -> ServedModel:
    if not _models:
        card = ModelCard(model="m", card="c", context=4096, block_size=16, artifacts={}, parser="hermes")
        _models.append(open_model(card, embedded_path()))
    return _models[0]


def stream(**options: object) -> AnswerStream:
    return AnswerStream(model(), "t" * 26, policy_for(["get_weather"], ["*"], "auto"), tools=[TOOL], **options)  # type: ignore[arg-type]


def ids_of(text: str) -> bytes:
    return model().tokenizer.encode(text, special=True)


def merged(events: list[TurnEvent]) -> list[tuple[str, object]]:
    """Events with neighbouring deltas joined, so that only meaning is left."""
    out: list[tuple[str, object]] = []
    for event in events:
        match event:
            case TextDelta() | ReasoningDelta():
                name, text = type(event).__name__, event.text
                if out and out[-1][0] == name:
                    text = str(out.pop()[1]) + text
                out.append((name, text))
            case ArgumentsDelta():
                continue
            case _:
                out.append((type(event).__name__, event))
    return out


def request(conversation: Conversation, *, max_tokens: int | None = None, **more: Any) -> TurnRequest:
    return TurnRequest(
        turn=TurnKey(turn_id="t" * 26),
        frontend="f",
        frontend_incarnation=1,
        model="m",
        session="s",
        conversation=conversation,
        sampling=Sampling(max_tokens=max_tokens),
        arrived_at=0.0,
        **more,
    )


def asking(*texts: str, **more: Any) -> Conversation:
    return Conversation(messages=tuple(UserMessage(parts=(TextPart(text=text),)) for text in texts), **more)


def run(ids: bytes, cuts: list[int], **options: object) -> tuple[list[tuple[str, object]], AnswerStream]:
    one = stream(**options)
    events: list[TurnEvent] = []
    points = sorted({0, len(ids), *(cut * TOKEN_BYTES for cut in cuts if cut * TOKEN_BYTES < len(ids))})
    for begin, end in itertools.pairwise(points):
        events += one.push(ids[begin:end])
    events += one.close("stop")
    return merged(events), one


@given(
    cuts=st.lists(st.integers(0, 80), max_size=12),
    stop=st.sampled_from([(), ("STOP",), ("ever", "rains in"), ("zzz",)]),
)
def test_cutting_the_tokens_anywhere_never_changes_the_result(cuts: list[int], stop: tuple[str, ...]) -> None:
    ids = ids_of(ANSWER)
    assert run(ids, cuts, stop=stop)[0] == run(ids, [], stop=stop)[0]


@pytest.mark.parametrize("step", [2, 8])
def test_eight_tokens_a_step_say_what_one_a_step_says(step: int) -> None:
    """As engines give them that guess ahead."""
    ids = ids_of(ANSWER)
    tokens = len(ids) // TOKEN_BYTES
    assert run(ids, list(range(step, tokens, step)))[0] == run(ids, list(range(1, tokens)))[0]


def test_reasoning_call_and_text_come_in_order() -> None:
    events, one = run(ids_of(ANSWER), list(range(100)))
    assert [name for name, _ in events] == ["ReasoningDelta", "TextDelta", "CallBegun", "CallComplete", "TextDelta"]
    call = events[3][1]
    assert isinstance(call, CallComplete)
    assert (call.name, call.arguments, call.run_by) == ("get_weather", '{"city": "Bergen"}', "mesh")
    assert call.key == "t" * 26 + "-0-0"
    begun = events[2][1]
    assert isinstance(begun, CallBegun)
    assert begun.id == call.id
    assert one.reason("stop") == "tool_calls"
    assert one.reasoning_tokens > 4


def test_a_stop_string_ends_the_answer_before_it_and_counts_to_it() -> None:
    ids = ids_of(ANSWER)
    events, one = run(ids, [], stop=("STOP",))
    assert str(events[-1][1]).endswith("as ever. ")
    assert one.stop == "STOP"
    assert one.reason("cancelled") == "stop"
    assert one.counted(10_000) < len(ids) // TOKEN_BYTES


def test_a_stop_string_in_reasoning_or_arguments_is_no_stop() -> None:
    _, one = run(ids_of(ANSWER), [], stop=("easy", '"city"'))
    assert one.stop == ""


def test_one_call_only_ends_at_the_first_call() -> None:
    events, one = run(ids_of(f"{CALL}\n{CALL}\nmore"), [], one_call=True)
    assert [name for name, _ in events] == ["CallBegun", "CallComplete"]
    assert one.reason("cancelled") == "tool_calls"


async def test_prompt_is_hashed_and_bounded_by_the_context() -> None:
    conversation = Conversation(messages=(UserMessage(parts=(TextPart(text="word " * 200),)),), tools=(TOOL,))
    prompt = await prepare(model(), request(conversation))
    assert len(prompt.hashes) // 8 == prompt.tokens // 16
    assert prompt.max_tokens == 4096 - prompt.tokens
    with pytest.raises(RequestError) as caught:
        await prepare(model(), request(conversation, max_tokens=4096))
    assert (caught.value.code, caught.value.field) == ("context_length_exceeded", "max_tokens")
    assert caught.value.numbers == {"prompt": prompt.tokens, "completion": 4096, "context": 4096}


async def test_an_engine_that_tells_no_likelihoods_is_not_asked_for_them() -> None:
    asked = msgspec.structs.replace(request(asking("Hi")), sampling=Sampling(logprobs=0))
    with pytest.raises(RequestError) as caught:
        await prepare(model(), asked)
    assert (caught.value.code, caught.value.field) == ("unsupported", "logprobs")


async def test_salt_changes_every_hash() -> None:
    conversation = Conversation(messages=(UserMessage(parts=(TextPart(text="word " * 50),)),))
    plain = await prepare(model(), request(conversation))
    salted = await prepare(model(), request(conversation, salt="tenant"))
    assert plain.ids == salted.ids
    assert plain.hashes[:8] != salted.hashes[:8]


async def test_a_sessions_next_prompt_has_the_hashes_it_would_have_alone() -> None:
    def of(*texts: str) -> Conversation:
        return Conversation(messages=tuple(UserMessage(parts=(TextPart(text=text * 50),)) for text in texts))

    for salt in ("", "tenant"):
        last = (await prepare(model(), request(of("word "), salt="tenant"))).seen
        for following in (of("word ", "more "), of("other ", "more ")):
            alone = await prepare(model(), request(following, salt=salt))
            after = await prepare(model(), request(following, salt=salt), last)
            assert after.hashes == alone.hashes
            assert after.seen == alone.seen


def test_a_prompt_that_fills_the_context_names_the_messages() -> None:
    with pytest.raises(RequestError) as caught:
        check_context(4096, None, 4096)
    assert caught.value.field == "messages"


@pytest.mark.parametrize(
    ("tail", "left"),
    [
        ("<|im_start|>assistant\n", "none"),
        ("<|im_start|>assistant\n<think>\n", "open"),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", "closed"),
        ("<think>\nhm\n</think>\n\n", "none"),
    ],
)
def test_what_the_template_left_behind_is_seen(tail: str, left: str) -> None:
    assert thinking_of("words " + tail, ("<think>", "</think>")) == left


async def test_a_prompt_of_ones_own_is_not_rendered_and_its_answer_not_parsed() -> None:
    prompt = await prepare(model(), request(Conversation(messages=(), text="<|im_start|>user\nhi")))
    assert model().tokenizer.decode(prompt.ids) == "<|im_start|>user\nhi"
    given = await prepare(model(), request(Conversation(messages=(), ids=prompt.ids)))
    assert given.ids == prompt.ids
    events, one = run(ids_of(ANSWER), [3, 9], plain=True)
    assert events == [("TextDelta", ANSWER)]
    assert not one.called


def test_a_choice_says_which_it_is() -> None:
    one = stream(choice=2)
    events = [*one.push(ids_of(ANSWER)), *one.close("stop")]
    assert {event.choice for event in events if hasattr(event, "choice")} == {2}


async def test_a_conversation_that_may_be_shortened_loses_its_oldest_questions() -> None:
    texts = [f"question {number} " + "word " * 400 for number in range(20)]
    long = asking(*texts)
    with pytest.raises(RequestError):
        await prepare(model(), request(long, max_tokens=100))
    prompt = await prepare(model(), request(long, max_tokens=100, truncate=True))
    text = model().tokenizer.decode(prompt.ids)
    assert prompt.tokens + 100 <= 4096
    assert "question 19 " in text
    assert "question 0 " not in text
    one_more = asking(*texts[-text.count("question") - 1 :])
    with pytest.raises(RequestError):
        await prepare(model(), request(one_more, max_tokens=100))


async def test_what_must_be_called_guides_the_engine() -> None:
    free = asking("?", tools=(TOOL,))
    required = asking("?", tools=(TOOL,), tool_choice=ToolChoice(mode="required"))
    named = asking("?", tools=(TOOL, Tool(name="b")), tool_choice=ToolChoice(mode="named", name="b"))
    assert (await prepare(model(), request(free))).guide == ""
    assert "get_weather" in (await prepare(model(), request(required))).guide
    guide = (await prepare(model(), request(named))).guide
    assert '"b' in guide.replace("\\", "")
    assert "get_weather" not in guide


async def test_a_strict_tools_schema_binds_the_calls_that_may_come_and_only_those() -> None:
    strict = Tool(name="b", schema='{"type":"object","required":["port"]}', strict=True)
    prompt = await prepare(model(), request(asking("?", tools=(TOOL, strict))))
    tag = str(json.loads(prompt.guide))
    assert "'at_least_one': False" in tag
    assert "{'type': 'object', 'required': ['port']}" in tag
    assert "city" not in tag
    none = asking("?", tools=(strict,), tool_choice=ToolChoice(mode="none"))
    assert (await prepare(model(), request(none))).guide == ""


def test_an_engine_that_cannot_be_held_to_anything_gets_no_guide() -> None:
    card = msgspec.structs.replace(model().card, guides=False)
    required = asking("?", tools=(TOOL,), tool_choice=ToolChoice(mode="required"))
    assert guide_of(card, required, "", "none") == ""
    assert guide_of(card, asking("?"), "{}", "none") == ""


async def test_a_schema_of_the_answer_guides_the_engine_where_no_call_may_come_first() -> None:
    schema = '{"type":"object","properties":{"h":{"type":"number"}}}'
    tag = json.loads((await prepare(model(), request(asking("?"), answer_schema=schema))).guide)
    assert tag["format"]["json_schema"] == json.loads(schema)
    assert (await prepare(model(), request(asking("?", tools=(TOOL,)), answer_schema=schema))).guide == ""


def test_a_call_that_had_to_come_and_did_not_is_told() -> None:
    required, named = ToolChoice(mode="required"), ToolChoice(mode="named", name="a")
    assert unmet(required, {"a"}, "tool_calls") is None
    assert unmet(named, {"a"}, "tool_calls") is None
    assert unmet(required, set(), "length") is None
    assert unmet(ToolChoice(), set(), "stop") is None
    for choice, called in ((required, set[str]()), (named, {"b"})):
        error = unmet(choice, called, "stop")
        assert error is not None
        assert (error.code, error.field) == ("tool_choice_unmet", "tool_choice")
