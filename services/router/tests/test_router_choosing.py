"""One worker among many: as a plain look at all of them would have it."""

import random
from collections.abc import Sequence
from zlib import crc32

from catenary_protocols.bus.messages import PlaceTurn, WorkerLoad
from catenary_protocols.ids import TurnKey
from catenary_router.core.cost import Seen, Weights
from catenary_router.core.fleet import Worker
from catenary_router.core.placement import POLICIES, TOLD, Policy, choose
from hypothesis import given
from hypothesis import strategies as st

prices = st.lists(st.one_of(st.sampled_from([0.0, 1.0, 1.01, 1.4, 100.0]), st.floats(0, 200)), min_size=1, max_size=20)


def turn(session: str) -> PlaceTurn:
    return PlaceTurn(
        turn=TurnKey(turn_id="t"),
        tokenizer="t",
        tokenizer_incarnation=1,
        model="m",
        card="c",
        block_size=16,
        hashes=b"",
        prompt_tokens=1600,
        session=session,
        arrived_at=0.0,
    )


def seen(number: int, *, overlap: int = 0, turns: int = 0, queued: int = 0) -> Seen:
    beat = WorkerLoad(worker=f"w{number}", incarnation=1, model="m", card="c", block_size=16, decode_ms=10.0)
    new_tokens = 1600 - 16 * overlap
    return Seen(Worker(f"w{number}", 1, beat), overlap, new_tokens, new_tokens, turns, queued)


@given(prices, st.text(max_size=3), st.integers(-1, 19), st.floats(0, 1), st.floats(0, 0.1))
def test_the_cheapest_wins_and_ties_go_home_or_by_the_sessions_hash(
    asked: list[float], session: str, last: int, tie: float, tie_share: float
) -> None:
    candidates = [seen(number) for number in range(len(asked))]
    policy = Policy("as told", lambda _turn, _candidates: asked, tie=tie, tie_share=tie_share)
    choice = choose(turn(session), candidates, policy, f"w{last}")
    limit = min(asked) + max(tie, min(asked) * tie_share)
    tied = [number for number, price in enumerate(asked) if price <= limit]
    by_hash = min(tied, key=lambda number: (asked[number], crc32(f"{session}\0w{number}".encode())))
    assert choice.seen is candidates[last if last in tied else by_hash]
    assert choice.considered[0] is choice.seen
    assert len(choice.candidates) == len(choice.considered) == min(TOLD, len(asked))
    costs = [round(price, 3) for price in sorted(asked)][:TOLD]
    if len(tied) <= 1:
        assert [one.cost for one in choice.candidates] == costs


loads = st.lists(st.tuples(st.integers(0, 100), st.integers(0, 30), st.integers(0, 50_000)), min_size=2, max_size=8)


@given(loads, st.data())
def test_more_of_the_prompt_less_queued_and_fewer_turns_never_make_a_worker_dearer(
    drawn: Sequence[tuple[int, int, int]], data: st.DataObject
) -> None:
    price = POLICIES["kv"](Weights(), random.Random(0)).price  # noqa: S311  it draws nothing
    at = data.draw(st.integers(0, len(drawn) - 1))
    overlap, turns, queued = drawn[at]
    better = (
        data.draw(st.integers(overlap, 100)),
        data.draw(st.integers(0, turns)),
        data.draw(st.integers(0, queued)),
    )

    def priced(loads: Sequence[tuple[int, int, int]]) -> float:
        candidates = [seen(n, overlap=o, turns=t, queued=q) for n, (o, t, q) in enumerate(loads)]
        return price(turn("s"), candidates)[at]

    assert priced([*drawn[:at], better, *drawn[at + 1 :]]) <= priced(drawn) + 1e-9
