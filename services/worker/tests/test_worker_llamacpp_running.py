"""What is said to llama.cpp of a turn, and what its words about one are taken for, without llama.cpp."""

import os
from array import array
from dataclasses import replace

import pytest
from catenary_protocols.conversation import TokenLogprob
from catenary_protocols.errors import RequestError
from catenary_tokenizers import embedded_path, load, unpack
from catenary_worker.engines.base import EngineTurn, Penalties
from catenary_worker.engines.llamacpp import LlamaSettings, server
from catenary_worker.engines.llamacpp.held import HeldBack
from catenary_worker.engines.llamacpp.requests import body
from catenary_worker.engines.llamacpp.running import Running, Vocabulary
from catenary_worker.engines.llamacpp.slots import Slots
from catenary_worker.engines.llamacpp.stream import Likely, Message, Progress

TOKENIZER = load(embedded_path())
WORDS = Vocabulary(TOKENIZER.eos_ids, frozenset(TOKENIZER.control_tokens.values()), HeldBack(TOKENIZER))
SIZE, ROOM = 4, 64


def begun(
    slots: Slots, prompt: list[int], *, generated: tuple[int, ...] = (), room: int = ROOM, **more: object
) -> Running:
    turn = EngineTurn("t", array("I", prompt), generated=array("I", generated))
    one = Running(replace(turn, **more), room, "", WORDS, slots)  # type: ignore[arg-type]  # a few of its fields
    one.begin()
    return one


def left(slots: Slots, prompt: list[int]) -> None:
    """A turn has been here."""
    one = begun(slots, prompt)
    one.read(Message(prompt_progress=Progress(cache=0, processed=len(prompt))))
    one.release()


def test_where_it_cannot_go_on_from_what_it_held_the_slot_is_said_to_hold_less() -> None:
    slots = Slots(1, SIZE)
    left(slots, [300] * 40)
    slots.drain()
    one = begun(slots, [*[300] * 40, 301, 302])
    assert one.reuses
    started = one.read(Message(prompt_progress=Progress(cache=0, processed=0)))
    assert started is not None
    assert started.started is not None
    assert started.started.cached_tokens == 0
    assert slots.all[0].tokens.tolist() == []
    (removed,) = slots.drain()
    assert len(removed.hashes) == 10  # type: ignore[union-attr]  # it is a removal
    one.read(Message(prompt_progress=Progress(cache=0, processed=42)))
    assert slots.all[0].tokens.tolist() == one.ids.tolist()


def test_of_a_moved_turn_no_more_than_its_prompt_is_said_to_be_cached() -> None:
    slots = Slots(1, SIZE)
    left(slots, [*[300] * 8, 7, 8, 9])
    one = begun(slots, [300] * 8, generated=(7, 8, 9))
    started = one.read(Message(prompt_progress=Progress(cache=10, processed=10)))
    assert started is not None
    assert started.started is not None
    assert started.started.cached_tokens == 7


@pytest.mark.parametrize(("content", "hidden"), [("\ufffda", 1), ("\ufffda", 3), ("xyza", 1)])
def test_after_tokens_that_nobody_knows_the_slot_is_said_to_hold_no_more(content: str, hidden: int) -> None:
    """Three broken bytes look like the three of the character that stands for them."""
    slots = Slots(1, SIZE)
    one = begun(slots, [300] * 8)
    one.read(Message(prompt_progress=Progress(cache=0, processed=8)))
    (token,) = unpack(TOKENIZER.encode("a", special=False))
    one.read(Message(tokens=(token,), content=content, tokens_predicted=hidden + 1))
    for count in range(hidden + 2, hidden + 9):
        one.read(Message(tokens=(token,), content="a", tokens_predicted=count))
    assert slots.all[0].tokens.tolist() == [300] * 8


def test_of_tokens_that_were_not_shown_nobody_knows_how_likely_they_were() -> None:
    one = begun(Slots(1, SIZE), [300] * 8, options={"logprobs": 0})
    *hidden, last = unpack(TOKENIZER.encode("漢", special=False))
    assert hidden
    shown = Message(
        tokens=(last,),
        content="漢",
        tokens_predicted=len(hidden) + 1,
        completion_probabilities=(Likely(id=last, logprob=-0.5),),
    )
    delta = one.read(shown)
    assert delta is not None
    assert delta.tokens == (*hidden, last)
    assert delta.logprobs == (*[None] * len(hidden), TokenLogprob(logprob=-0.5))


def test_a_turn_that_wants_no_token_gets_none_of_the_one_that_it_takes_to_compute_its_prompt() -> None:
    one = begun(Slots(1, SIZE), [300] * 8, room=0)
    assert body(one)["n_predict"] == 1
    one.read(Message(prompt_progress=Progress(cache=0, processed=8)))
    last = one.read(Message(tokens=(301,), content="a", tokens_predicted=1))
    assert last is not None
    assert (last.tokens, last.finish) == ((), "length")


def test_each_turn_goes_into_the_slot_that_was_chosen() -> None:
    slots = Slots(2, SIZE)
    assert [body(begun(slots, [300] * 8))["id_slot"] for _ in slots.all] == [0, 1]


def test_every_value_that_it_would_fill_in_is_said_to_it() -> None:
    said = body(begun(Slots(1, SIZE), [300] * 8))
    assert {name: said[name] for name in ("temperature", "top_p", "top_k", "min_p")} == {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
    }
    assert (said["repeat_last_n"], said["n_predict"], said["stream"]) == (8 + ROOM, ROOM, True)
    assert (said["repeat_penalty"], said["presence_penalty"], said["frequency_penalty"]) == (1.0, 0.0, 0.0)
    other = begun(Slots(1, SIZE), [300] * 8, turn_id="u", top_k=5, penalties=Penalties(0.5, 0.25, 1.5), min_p=0.1)
    told = body(other)
    assert (told["top_k"], told["min_p"], told["presence_penalty"]) == (5, 0.1, 0.5)
    assert (told["frequency_penalty"], told["repeat_penalty"]) == (0.25, 1.5)
    assert said["seed"] != told["seed"], "a turn without a seed has one of its own"
    assert body(begun(Slots(1, SIZE), [300] * 8, seed=(1 << 32) - 1))["seed"] == 0, "else it would take one at random"


def test_where_it_is_not_installed_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "find_spec", lambda _: None)
    with pytest.raises(RequestError, match=r"catenary-worker\[llamacpp\]"):
        server.check_installed()


def test_it_leaves_one_core_to_the_machine() -> None:
    assert LlamaSettings().all_threads == max(1, (os.cpu_count() or 2) - 1)
    assert LlamaSettings(threads=3).all_threads == 3
