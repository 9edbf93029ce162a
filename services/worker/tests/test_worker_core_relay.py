"""From engine steps to frames: whatever comes, an owner's items join to exactly what was generated."""

from array import array

import pytest
from catenary_protocols.bus import messages
from catenary_protocols.bus.messages import RunTurn, TurnTokens
from catenary_protocols.conversation import Hints, Sampling, TokenLogprob
from catenary_protocols.errors import CapacityError, ErrorInfo, RequestError
from catenary_protocols.ids import TurnKey
from catenary_worker.core.admission import engine_turn
from catenary_worker.core.pace import Pace
from catenary_worker.core.relay import UNEXPLAINED, relay
from catenary_worker.core.turns import Turn
from catenary_worker.engines.base import Delta, EngineLoad, Finish, Penalties, Retention, Started
from hypothesis import given
from hypothesis import strategies as st

u32 = st.integers(0, 2**32 - 1)


def turn(name: str = "t", attempt: int = 0, owner: str = "tok", base: int = 0) -> Turn:
    return Turn(name, attempt, owner, 1, base, admitted_at=10.0)


def joined(items: list[TurnTokens], base: int = 0) -> list[int]:
    ids: list[int] = []
    for item in items:
        assert item.offset == base + len(ids)
        ids += array("I", item.tokens)
    return ids


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.lists(u32, max_size=3)), max_size=40),
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 50)),
)
def test_an_owners_items_join_to_what_was_generated(deltas: list[tuple[str, list[int]]], bases: dict[str, int]) -> None:
    turns = {name: turn(name, owner=f"tok-{name > 'a'}", base=bases.get(name, 0)) for name in "abc"}
    truth: dict[str, list[int]] = {name: [] for name in turns}
    got: dict[str, list[TurnTokens]] = {name: [] for name in turns}
    for name, tokens in deltas:
        started = None if got[name] else Started(3)
        offset = turns[name].base + len(truth[name])
        out = relay([Delta(name, 0, offset, tuple(tokens), started)], turns, 11.0)
        truth[name] += tokens
        assert out.tokens == len(tokens)
        assert set(out.frames) == {turns[name].owner}
        got[name] += out.frames[turns[name].owner]
    for name, items in got.items():
        assert joined(items, turns[name].base) == truth[name] == array("I", bytes(turns[name].ids)).tolist()
        assert [item.cached for item in items if item.cached is not None] == ([3] if items else [])


@given(st.lists(st.lists(u32, min_size=1, max_size=3), min_size=1, max_size=12), st.integers(0, 40))
def test_what_is_sent_again_has_the_likelihoods_of_its_own_tokens(steps: list[list[int]], offset: int) -> None:
    one = turn(base=5)
    for tokens in steps:
        told = tuple(TokenLogprob(logprob=-float(token)) for token in tokens)
        out = relay([Delta("t", 0, one.offset, tuple(tokens), logprobs=told)], {"t": one}, 11.0)
        assert out.frames["tok"][0].logprobs == told
    again = one.tokens_from(offset)
    assert [-said.logprob for said in again.logprobs if said is not None] == array("I", again.tokens).tolist()
    assert one.size > turn().size


def test_items_of_one_step_go_to_their_owners() -> None:
    turns = {name: turn(name, owner=owner) for name, owner in (("a", "x"), ("b", "y"), ("c", "x"))}
    out = relay([Delta(name, 0, 0, (1,), Started(0)) for name in "abc"], turns, 11.0)
    assert {owner: [item.turn_id for item in items] for owner, items in out.frames.items()} == {
        "x": ["a", "c"],
        "y": ["b"],
    }


def test_the_stages_of_a_turn_are_told_once_with_their_times() -> None:
    one = turn()
    first = relay([Delta("t", 0, 0, (), Started(7, 0.5))], {"t": one}, 11.0)
    second = relay([Delta("t", 0, 0, (5,))], {"t": one}, 12.0)
    third = relay([Delta("t", 0, 1, (6,))], {"t": one}, 13.0)
    last = relay([Delta("t", 0, 2, (9,), None, "stop", None, stop_token=True)], {"t": one}, 14.0)
    assert [len(out.started) for out in (first, second, third, last)] == [1, 0, 0, 0]
    assert [len(out.prefilled) for out in (first, second, third, last)] == [0, 1, 0, 0]
    assert [len(out.ended) for out in (first, second, third, last)] == [0, 0, 0, 1]
    assert (first.frames["tok"][0].cached, first.frames["tok"][0].queued_s) == (7, 0.5)
    assert second.frames["tok"][0].prefill_s == 1.5
    end = last.frames["tok"][0]
    assert (end.finish, end.stop_token, end.offset, one.finish) == ("stop", True, 2, "stop")


@pytest.mark.parametrize(
    ("finish", "error", "told"),
    [
        ("error", None, UNEXPLAINED),
        ("error", ErrorInfo(code="engine_failed", message="x"), ErrorInfo(code="engine_failed", message="x")),
        ("cancelled", None, None),
        ("length", None, None),
    ],
)
def test_an_end_carries_its_error(finish: Finish, error: ErrorInfo | None, told: ErrorInfo | None) -> None:
    out = relay([Delta("t", 0, 0, (), None, finish, error)], {"t": turn()}, 11.0)
    assert out.frames["tok"][0].error == told


def test_deltas_of_other_attempts_strangers_and_ended_turns_are_dropped() -> None:
    ended = turn("e")
    ended.finish = "error"
    turns = {"t": turn(attempt=2), "e": ended}
    out = relay([Delta("t", 1, 0, (1,)), Delta("s", 0, 0, (1,)), Delta("e", 0, 0, (1,), None, "stop")], turns, 11.0)
    assert (out.frames, out.tokens, out.ended) == ({}, 0, [])
    assert not turns["t"].ids


def test_tokens_of_a_held_turn_are_kept_and_not_sent() -> None:
    one = turn()
    one.held_since = 10.0
    out = relay([Delta("t", 0, 0, (1, 2), Started(0), "length")], {"t": one}, 11.0)
    assert out.frames == {}
    assert out.ended == [one]
    assert array("I", bytes(one.tokens_from(0).tokens)).tolist() == [1, 2]
    assert one.tokens_from(0).finish == "length"


# --- admission --------------------------------------------------------------------------------------------------------


def run(**more: object) -> RunTurn:
    fields: dict[str, object] = {
        "turn": TurnKey(turn_id="t", attempt=2),
        "tokenizer": "tok",
        "tokenizer_incarnation": 1,
        "model": "m",
        "card": "c",
        "prompt": array("I", [1, 2]).tobytes(),
        "sampling": Sampling(),
    }
    return RunTurn(**(fields | more))  # type: ignore[arg-type]  # a table of fields


def test_everything_the_engine_can_use_reaches_it() -> None:
    sampling = Sampling(
        max_tokens=9,
        min_tokens=2,
        temperature=0.5,
        top_p=0.9,
        top_k=4,
        min_p=0.1,
        seed=7,
        presence_penalty=0.1,
        frequency_penalty=0.2,
        repetition_penalty=1.1,
        ignore_eos=True,
        logprobs=3,
        logit_bias={5: -1.0},
    )
    sent = run(
        sampling=sampling,
        generated=array("I", [8]).tobytes(),
        stop_token_ids=(3,),
        hints=Hints(priority=4),
        salt="s",
        guide="{}",
        images=("data:,",),
        image_at=(1,),
        deadline=99.0,
        session="chat",
        retention=messages.Retention(priority=20, seconds=30.0),
        lora="french",
        half="decode",
        handoff=b"there",
    )
    got = engine_turn(sent, model="m", card="c", halves=frozenset({"decode"}))
    assert (got.key, got.prompt.tolist(), got.generated.tolist()) == (sent.turn, [1, 2], [8])
    assert (got.max_tokens, got.min_tokens, got.ignore_eos, got.stop_token_ids) == (9, 2, True, (3,))
    assert (got.temperature, got.top_p, got.top_k, got.min_p, got.seed) == (0.5, 0.9, 4, 0.1, 7)
    assert (got.penalties, got.logit_bias) == (Penalties(0.1, 0.2, 1.1), {5: -1.0})
    assert (got.priority, got.salt, got.deadline) == (4, "s", 99.0)
    assert (got.session, got.retention) == ("chat", Retention(20, 30.0))
    assert (got.half, got.handoff) == ("decode", b"there")
    images = {"images": ("data:,",), "image_at": (1,)}
    assert got.options == {"structural_tag": "{}", "logprobs": 3, "lora": "french", **images}


@given(st.integers(-100, 100), st.integers(-100, 100), st.integers(0, 5), st.integers(0, 5))
def test_strict_priority_sorts_before_any_ordinary_one(one: int, other: int, strict: int, lax: int) -> None:
    high = engine_turn(run(hints=Hints(priority=one, strict_priority=strict)), model="m", card="c").priority
    low = engine_turn(run(hints=Hints(priority=other, strict_priority=lax)), model="m", card="c").priority
    assert (high > low) == ((strict, one) > (lax, other))


def test_another_model_or_version_is_refused() -> None:
    with pytest.raises(RequestError, match="serves m, not other") as caught:
        engine_turn(run(model="other"), model="m", card="c")
    assert caught.value.field == "model"
    with pytest.raises(CapacityError, match="another version of m"):
        engine_turn(run(card="d"), model="m", card="c")


# --- pace -------------------------------------------------------------------------------------------------------------


def test_pace_is_unknown_then_follows_slowly_and_keeps_prefill_apart_from_decode() -> None:
    pace = Pace()
    assert (pace.decode_ms, pace.prefill_tokens_per_s) == (0.0, 0.0)
    pace.note(EngineLoad(running=3, step_ms=10.0))
    pace.note(EngineLoad(running=3, step_ms=100.0, prefilled_tokens=500))
    pace.note(EngineLoad(running=3, step_ms=20.0, prefilled_tokens=40))
    pace.note(EngineLoad(step_ms=0.0))
    assert pace.decode_ms == 10.0
    assert pace.prefill_tokens_per_s == pytest.approx(500 * 1000 / (100.0 - 10.0))
    pace.note(EngineLoad(running=3, step_ms=20.0))
    assert pace.decode_ms == pytest.approx(11.0)


@given(fixed=st.floats(1, 50), per_token=st.floats(0.001, 0.1), chunks=st.lists(st.integers(256, 8192), min_size=1))
def test_pace_of_prefill_is_free_of_what_each_step_costs(fixed: float, per_token: float, chunks: list[int]) -> None:
    pace = Pace()
    pace.note(EngineLoad(running=1, step_ms=fixed))
    for tokens in chunks:
        pace.note(EngineLoad(running=1, step_ms=fixed + per_token * tokens, prefilled_tokens=tokens))
    slowest = 1000 / per_token
    measured = pace.prefill_tokens_per_s
    if per_token * min(chunks) >= fixed:
        assert measured == pytest.approx(slowest)
    else:
        assert measured <= slowest * (1 + 1e-9), "a step that is nearly all its own cost is halved, not believed"


@given(st.lists(st.floats(0.1, 1000), min_size=1))
def test_pace_stays_between_what_was_measured(steps: list[float]) -> None:
    pace = Pace()
    for ms in steps:
        pace.note(EngineLoad(running=1, step_ms=ms))
    assert min(steps) - 1e-9 <= pace.decode_ms <= max(steps) + 1e-9
