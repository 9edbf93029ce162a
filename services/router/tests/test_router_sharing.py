"""Blocks that are about to be held."""

from catenary_router.core.sharing import BRIEF_S, Sharing
from hypothesis import given
from hypothesis import strategies as st

PLACED = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 6), st.floats(0, BRIEF_S)), max_size=12)


@given(PLACED, st.lists(st.booleans(), min_size=12, max_size=12))
def test_when_placements_are_sorted_in_changes_nothing(
    placed: list[tuple[str, int, float]], settles: list[bool]
) -> None:
    at_once, later = Sharing(), Sharing()
    now = 0.0
    for (worker, length, passed), settle in zip(placed, settles, strict=False):
        now += passed
        for one in (at_once, later):
            one.placed(worker, range(length), now)
        at_once.settle()
        if settle:
            later.settle()
        for asked in "ab" if settle else worker:
            found = [one.overlap(asked, range(8), 0, now, known=True) for one in (at_once, later)]
            assert found[0] == found[1]
