"""A Chat client that leaves out what was thought before its calls gets the prompt of one that sends it back."""

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import Any

import pytest
from catenary_protocols.apis.chat import CHAT
from catenary_protocols.bus.messages import ModelCard
from catenary_protocols.call_ids import bare, call_id
from catenary_protocols.conversation import AssistantMessage, Conversation, ReasoningPart
from catenary_protocols.turn_events import (
    CallBegun,
    CallComplete,
    Finished,
    ReasoningDelta,
    TextDelta,
    TurnEvent,
    Usage,
)
from catenary_tokenizer_service.core.thoughts import Thoughts
from catenary_tokenizer_service.ingress.prompts import encode
from catenary_tokenizer_service.models import ServedModel, open_model
from catenary_tokenizers import embedded_path
from hypothesis import given
from hypothesis import strategies as st

Json = dict[str, Any]

MB = 1 << 20
BOUND = 2400
"""Bytes: room for two of the longest thoughts in these tests."""
OWNER = ("tenant", "session")
CARD = ModelCard(model="m", card="c", context=4096, block_size=16, artifacts={}, parser="hermes")
DRAFT = CHAT.read(b'{"model":"m","messages":[{"role":"user","content":"?"}]}')
STEPS = st.lists(st.tuples(st.text("ab \n日<", min_size=1, max_size=9), st.booleans()), max_size=4)
"""Pieces of a thought, and whether a call comes behind each."""
TURNS = st.lists(st.tuples(STEPS, st.text("xy\n", max_size=5)), min_size=1, max_size=3)
REWRITES: list[Callable[[str], str]] = [str, bare]
"""What clients make of ids."""


@pytest.fixture(scope="module")
def model() -> ServedModel:
    return open_model(CARD, embedded_path())


def turn_id(number: int) -> str:
    return f"01jd{number:022d}"


def events_of(number: int, steps: Iterable[tuple[str, bool]], text: str = "") -> list[TurnEvent]:
    events: list[TurnEvent] = [TextDelta(text=text)] if text else []
    thought = 0
    calls = count()
    for piece, called in steps:
        thought += len(piece)
        events.append(ReasoningDelta(text=piece))
        if called:
            index = next(calls)
            id_ = call_id(turn_id(number), 0, index, thought)
            events.append(CallBegun(index=index, id=id_, name="run"))
            events.append(CallComplete(index=index, id=id_, name="run", arguments='{"a": 1}'))
    return [*events, Finished(reason="stop", usage=Usage())]


def answer(events: list[TurnEvent], number: int, rewrite: Callable[[str], str] = str) -> Json:
    """The message that a client of Chat has of these events."""
    encoder = CHAT.encoder(DRAFT, turn_id(number), 7)
    encoder.feed(events)
    message: Json = json.loads(encoder.body())["choices"][0]["message"]
    for call in message.get("tool_calls", ()):
        call["id"] = rewrite(call["id"])
    return message


def without_thoughts(message: Json) -> Json:
    return {name: value for name, value in message.items() if name != "reasoning_content"}


def conversation(answers: Iterable[Json], **nvext: Any) -> Conversation:
    def said() -> Iterator[Json]:
        for message in answers:
            yield {"role": "user", "content": "Go on."}
            yield message
            for call in message.get("tool_calls", ()):
                yield {"role": "tool", "tool_call_id": call["id"], "content": "done"}

    return CHAT.read(json.dumps({"model": "m", "messages": list(said()), "nvext": nvext}).encode()).conversation


def ids_of(model: ServedModel, one: Conversation) -> bytes:
    return asyncio.run(encode(model, one)).ids


def kept(*turns: list[TurnEvent]) -> Thoughts:
    thoughts = Thoughts(MB)
    for events in turns:
        thoughts.remember(*OWNER, events)
    return thoughts


ONE = events_of(1, [("Let me see", True), (" and again", True)], "Aha.")
LEFT_OUT = conversation([without_thoughts(answer(ONE, 1))])


# --- the laws ---------------------------------------------------------------------------------------------------------


@given(TURNS, st.sampled_from(REWRITES))
def test_the_prompt_is_that_of_a_client_that_sent_its_thoughts_back(
    model: ServedModel, turns: list[tuple[list[tuple[str, bool]], str]], rewrite: Callable[[str], str]
) -> None:
    told = [events_of(number, *turn) for number, turn in enumerate(turns)]
    sent = [answer(events, number, rewrite) for number, events in enumerate(told)]
    with_calls = [message if message.get("tool_calls") else without_thoughts(message) for message in sent]
    restored = kept(*told).restored(conversation(map(without_thoughts, sent)), *OWNER)
    assert restored == conversation(with_calls)
    assert ids_of(model, restored) == ids_of(model, conversation(with_calls))


@given(TURNS)
def test_a_message_with_a_word_of_its_own_is_never_touched(turns: list[tuple[list[tuple[str, bool]], str]]) -> None:
    told = [events_of(number, *turn) for number, turn in enumerate(turns)]
    thoughts = kept(*told)
    for own in ("", "My own.", [], ["one", "two"]):
        said = conversation({**answer(events, number), "reasoning_content": own} for number, events in enumerate(told))
        assert thoughts.restored(said, *OWNER) is said
    assert not thoughts.counts


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 400), st.booleans()), max_size=40))
def test_memory_is_bounded_and_what_was_used_last_stays(steps: list[tuple[str, int, bool]]) -> None:
    thoughts = Thoughts(BOUND)
    for number, (session, length, used) in enumerate(steps):
        events = events_of(number, [("日" * length, True)])
        thoughts.remember("t", session, events)
        assert thoughts.size <= BOUND
        assert session in thoughts.sessions()
        if number == 0:
            first = session, conversation([without_thoughts(answer(events, 0))])
        if used:
            before = thoughts.size
            thoughts.restored(first[1], "t", first[0])
            assert thoughts.size == before
    if steps and all(used for _, _, used in steps):
        assert thoughts.counts.keys() == {"restored"}


@given(TURNS)
def test_what_was_carried_over_is_put_back_there_and_forgotten_here(
    turns: list[tuple[list[tuple[str, bool]], str]],
) -> None:
    told = [events_of(number, *turn) for number, turn in enumerate(turns)]
    left_out = conversation(without_thoughts(answer(events, number)) for number, events in enumerate(told))
    here, there = kept(*told), Thoughts(MB)
    here.remember("tenant", "another", ONE)
    whole, size = here.restored(left_out, *OWNER), here.size
    there.accept(here.take({"session"}))
    assert there.restored(left_out, *OWNER) == whole
    assert here.restored(left_out, *OWNER) == left_out
    assert here.sessions() == {"another"}
    assert here.size + there.size == size


# --- cases ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("owner", [("other", "session"), ("tenant", "other"), ("", ""), ("tenantsession", "")])
def test_nobody_elses_thoughts_are_put_back(owner: tuple[str, str]) -> None:
    thoughts = kept(ONE)
    assert thoughts.restored(LEFT_OUT, *owner) == LEFT_OUT
    assert thoughts.counts == {"unknown": 1}


@pytest.mark.parametrize("own", ["", "My own."])
def test_beside_one_that_was_left_out_the_clients_own_word_stands(own: str) -> None:
    two = events_of(2, [("And now", True)])
    said, left_out = {**answer(ONE, 1), "reasoning_content": own}, answer(two, 2)
    restored = kept(ONE, two).restored(conversation([said, without_thoughts(left_out)]), *OWNER)
    assert restored == conversation([said, left_out])


def test_an_answer_with_other_calls_than_were_made_is_not_the_one_that_is_known() -> None:
    message = without_thoughts(answer(ONE, 1))
    thoughts = kept(ONE)
    for calls in (message["tool_calls"][:1], message["tool_calls"][::-1]):
        changed = conversation([{**message, "tool_calls": calls}])
        assert thoughts.restored(changed, *OWNER) == changed
    assert thoughts.counts == {"unknown": 2}


def test_a_request_that_says_no_gets_nothing_back_and_is_counted() -> None:
    thoughts = kept(ONE)
    declined = conversation([without_thoughts(answer(ONE, 1))], restore_reasoning=False)
    assert thoughts.restored(declined, *OWNER) is declined
    assert thoughts.counts == {"declined": 1}


def test_switched_off_it_keeps_nothing_and_counts_nothing() -> None:
    thoughts = Thoughts(0)
    thoughts.remember(*OWNER, ONE)
    assert thoughts.restored(LEFT_OUT, *OWNER) is LEFT_OUT
    assert (thoughts.size, dict(thoughts.counts), thoughts.sessions()) == (0, {}, set())


def test_a_thought_that_is_larger_than_all_that_may_be_kept_is_not() -> None:
    thoughts = Thoughts(1000)
    thoughts.remember(*OWNER, events_of(1, [("short", True)]))
    thoughts.remember(*OWNER, events_of(2, [("x" * 1000, True)]))
    assert thoughts.sessions() == {"session"}
    assert 0 < thoughts.size < 1000


def test_thoughts_without_a_call_are_nobodys_to_ask_for() -> None:
    thoughts = kept(events_of(1, [("Hm.", False)], "Hello."), events_of(2, [], "Hello."))
    assert thoughts.size == 0


def test_the_template_decides_what_of_it_is_written(model: ServedModel) -> None:
    restored = kept(ONE).restored(LEFT_OUT, *OWNER)
    thinking = [part for part in restored.messages[1].parts if isinstance(part, ReasoningPart)]
    assert thinking == [ReasoningPart(text="Let me see"), ReasoningPart(text=" and again")]
    assert isinstance(restored.messages[1], AssistantMessage)
    assert not restored.messages[1].left_out
    assert "Let me see" in model.tokenizer.decode(ids_of(model, restored))
    assert "Let me see" not in model.tokenizer.decode(ids_of(model, LEFT_OUT))
