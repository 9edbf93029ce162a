"""Prefixes that many sessions share."""

from catenary_router.core.marks import marks_of
from catenary_router.core.popular import COUNTED, MANY, WINDOW_S, Popular
from catenary_router.testing import prompt
from hypothesis import given
from hypothesis import strategies as st


def test_a_prefix_of_many_sessions_is_found_nearly_whole_and_cheap() -> None:
    popular = Popular()
    for session in range(64):
        popular.placed(f"s{session}", marks_of(prompt((1, 400), (session, 50))), 1.0)
    blocks, price = popular.shared(marks_of(prompt((1, 400), (999, 50))), 2.0)
    assert 320 <= blocks <= 400
    assert 1 / (1 + (90 / MANY) ** 2) < price < 1 / (1 + (45 / MANY) ** 2)


def test_a_session_that_comes_back_is_no_crowd() -> None:
    popular = Popular()
    for _ in range(100):
        popular.placed("s", marks_of(prompt((1, 400))), 1.0)
    assert popular.shared(marks_of(prompt((1, 400))), 2.0) == (0, 1.0)


def test_counts_fade() -> None:
    popular = Popular()
    for session in range(64):
        popular.placed(f"s{session}", marks_of(prompt((1, 400))), 1.0)
    assert popular.shared(marks_of(prompt((1, 400))), 1.0 + 1.5 * WINDOW_S)[0] > 0
    popular.placed("other", marks_of(prompt((2, 4))), 1.0 + 1.5 * WINDOW_S)
    assert popular.shared(marks_of(prompt((1, 400))), 1.0 + 1.5 * WINDOW_S)[0] > 0
    popular.placed("other", marks_of(prompt((2, 4))), 1.0 + 2.6 * WINDOW_S)
    assert popular.shared(marks_of(prompt((1, 400))), 1.0 + 2.6 * WINDOW_S) == (0, 1.0)


def test_memory_is_bounded() -> None:
    popular = Popular()
    for session in range(20_000):
        popular.placed(f"s{session}", marks_of(prompt((session, 100))), 1.0)
    assert len(popular._now) + len(popular._before) <= 2 * (COUNTED + 100)


@given(st.integers(0, 300), st.integers(0, 300), st.integers(0, 40))
def test_what_is_shared_is_a_prefix_of_both(common: int, own: int, sessions: int) -> None:
    popular = Popular()
    for session in range(sessions):
        popular.placed(f"s{session}", marks_of(prompt((1, common), (100 + session, own))), 1.0)
    blocks, price = popular.shared(marks_of(prompt((1, common), (99, own))), 1.0)
    assert blocks <= common
    assert 0 < price <= 1
    if sessions < MANY // 3 or not common:
        assert (blocks, price) == (0, 1.0)
