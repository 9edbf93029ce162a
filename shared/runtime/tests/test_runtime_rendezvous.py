"""A key picks the same instance everywhere, and few keys move."""

from catenary_runtime.rendezvous import pick, ranked
from hypothesis import given
from hypothesis import strategies as st

groups = st.sets(st.text(min_size=1), min_size=1, max_size=8)


@given(st.text(), groups, st.randoms())
def test_order_of_the_instances_does_not_matter(key: str, group: set[str], random: object) -> None:
    assert ranked(key, sorted(group)) == ranked(key, sorted(group, reverse=True))
    assert set(ranked(key, group)) == group


@given(st.text(), groups)
def test_when_the_chosen_one_leaves_the_second_takes_over_and_else_nobody_moves(key: str, group: set[str]) -> None:
    order = ranked(key, group)
    assert pick(key, group) == order[0]
    assert ranked(key, group - {order[0]}) == order[1:]
    if len(order) > 1:
        assert pick(key, group - {order[-1]}) == order[0]


def test_without_instances_there_is_no_choice() -> None:
    assert pick("key", []) is None


def test_keys_spread_over_the_instances() -> None:
    names = [f"tokenizer-{n}" for n in range(4)]
    shares = [sum(pick(f"session {n}", names) == name for n in range(4000)) for name in names]
    assert all(850 < share < 1150 for share in shares)
