"""Turn ids sort by time and are subject tokens; call keys name their turn."""

import pytest
from catenary_protocols.bus.subjects import token
from catenary_protocols.errors import RequestError
from catenary_protocols.ids import TurnKey, began_at, call_key, new_turn_id, turn_of_call
from hypothesis import given
from hypothesis import strategies as st

times = st.integers(0, 2**48 - 1)
entropy = st.binary(min_size=10, max_size=10)
ids = st.builds(new_turn_id, times, entropy)


@given(ids)
def test_an_id_is_a_subject_token_of_26_characters(turn_id: str) -> None:
    assert len(turn_id) == 26
    assert token(turn_id) == turn_id


@given(times, entropy, times, entropy)
def test_ids_sort_by_time(early: int, one: bytes, late: int, other: bytes) -> None:
    if early < late:
        assert new_turn_id(early, one) < new_turn_id(late, other)


@given(times, entropy, entropy)
def test_ids_of_one_moment_differ_by_their_entropy(now: int, one: bytes, other: bytes) -> None:
    assert (new_turn_id(now, one) == new_turn_id(now, other)) == (one == other)


@given(times, entropy)
def test_an_id_tells_when_its_turn_began(now: int, one: bytes) -> None:
    assert began_at(new_turn_id(now, one)) == now / 1000


@pytest.mark.parametrize("wrong", ["", "t1", "0" * 25, "u" * 26, "0" * 25 + "."])
def test_what_is_no_id_is_refused(wrong: str) -> None:
    with pytest.raises(RequestError, match="no turn id"):
        began_at(wrong)


@given(ids, st.integers(0, 99), st.integers(0, 999))
def test_a_call_key_names_its_turn_and_is_a_token(turn_id: str, choice: int, index: int) -> None:
    key = call_key(turn_id, choice, index)
    assert turn_of_call(key) == turn_id
    assert token(key) == key


def test_a_turn_key_can_be_a_key() -> None:
    assert {TurnKey(turn_id="t", attempt=1): 1}[TurnKey(turn_id="t", attempt=1)] == 1
    assert TurnKey(turn_id="t") != TurnKey(turn_id="t", attempt=1)
