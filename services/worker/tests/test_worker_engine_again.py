"""A constrained turn that was moved: what it had said is not said again, whatever steps it comes in."""

from array import array

import pytest
from catenary_worker.engines.again import Again, SaidOtherwiseError, again, seed_of
from catenary_worker.engines.base import Delta, EngineTurn, Finish, Started
from hypothesis import given
from hypothesis import strategies as st

GUIDED = EngineTurn("a", array("I", [1]), generated=array("I", [7, 8, 9]), options={"structural_tag": "{}"})


def said(*tokens: int, finish: Finish | None = None, started: Started | None = None, stop: bool = False) -> Delta:
    return Delta("a", 0, 0, tokens, started, finish, stop_token=stop)


def test_only_a_constrained_turn_that_has_said_something_begins_anew() -> None:
    assert again(EngineTurn("a", array("I", [1]), generated=array("I", [7]))) is None
    assert again(EngineTurn("a", array("I", [1]), options={"json_schema": {}, "structural_tag": "{}"})) is None
    anew = again(GUIDED)
    assert anew is not None
    assert (anew.turn.prompt, anew.turn.generated, anew.turn.options) == (GUIDED.prompt, array("I"), GUIDED.options)


@given(st.lists(st.integers(0, 99)), st.data())
def test_however_it_is_cut_the_rest_is_told_once_and_without_holes(more: list[int], data: st.DataObject) -> None:
    whole, heard, offset, anew = [7, 8, 9, *more], list[int](), 3, Again(GUIDED)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)))))
    first = anew.hear(said(started=Started(0)))
    assert first == Delta("a", 0, 3, (), Started(0))
    for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        fresh = anew.hear(said(*whole[start:end], finish="length" if end == len(whole) == start else None))
        if fresh is not None:
            assert fresh.offset == offset
            offset += len(fresh.tokens)
            heard += fresh.tokens
    assert heard == more


@pytest.mark.parametrize("other", [said(7, 6), said(8), said(7, 8, finish="length"), said(7, finish="stop")])
def test_who_says_something_else_has_failed(other: Delta) -> None:
    anew = Again(GUIDED)
    with pytest.raises(SaidOtherwiseError):
        anew.hear(other)
    end = anew.hear(said(finish="error"))
    assert end is not None
    assert end.offset == 3


def test_a_cancel_ends_it_before_it_has_caught_up() -> None:
    anew = Again(GUIDED)
    assert anew.hear(said(7)) is None
    assert anew.hear(said(finish="cancelled")) == Delta("a", 0, 3, (), None, "cancelled")


def test_the_token_that_ended_it_is_told_as_such() -> None:
    ended = Again(GUIDED).hear(said(7, 8, 9, 5, finish="stop", stop=True))
    assert ended == Delta("a", 0, 3, (5,), None, "stop", stop_token=True)


def test_seeds_differ_by_turn_and_follow_it() -> None:
    assert seed_of("a") == seed_of("a") != seed_of("b")
