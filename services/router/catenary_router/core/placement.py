"""Choosing one worker among those that have room.

The rule: a policy prices candidates and nothing else; what may be a candidate, ties and the reason are the same for
all. Ties go to the session's last worker, since its cache may hold more than anyone knows; else by the session's own
hash, so that equal prices do not send everyone to the same place.
"""

import random
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal
from zlib import crc32

from catenary_protocols.bus.messages import Candidate, PlaceTurn

from catenary_router.core.cost import Seen, Weights, as_told, cost

Price = Callable[[PlaceTurn, Sequence[Seen]], list[float]]
"""The price of each candidate, in their order; the lowest wins."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How candidates are priced.

    Attributes:
        name: as settings and metrics have it.
        tie, tie_share: prices this much, or this share of the lowest, above the lowest count as equal to it.
    """

    name: str
    price: Price
    tie: float = 0.0
    tie_share: float = 0.0


PolicyFactory = Callable[[Weights, random.Random], Policy]
Reason = Literal["only", "overlap", "load", "session", "cold"]
TOLD = 8


@dataclass(frozen=True, slots=True)
class Choice:
    """Where, and why.

    Attributes:
        reason: `only` candidate; it has the most `overlap`; less, but it is less busy (`load`); nobody has any and it
            is the `session`'s last worker; nobody has any (`cold`).
        candidates: the best, best first, as the asker is told; `considered` are the same as they were seen.
    """

    seen: Seen
    reason: Reason
    candidates: tuple[Candidate, ...]
    considered: tuple[Seen, ...]


def choose(turn: PlaceTurn, candidates: Sequence[Seen], policy: Policy, last_worker: str) -> Choice:
    """The cheapest of at least one candidate."""
    prices = policy.price(turn, candidates)
    lowest = min(prices)
    equal = lowest + max(policy.tie, abs(lowest) * policy.tie_share)

    def rank(at: int) -> tuple[bool, float, int]:
        name = candidates[at].worker.name
        return name != last_worker, prices[at], crc32(f"{turn.session}\0{name}".encode())

    by_price = sorted(range(len(candidates)), key=prices.__getitem__)
    tied = bisect_right(by_price, equal, key=prices.__getitem__)
    order = [*sorted(by_price[:tied], key=rank), *by_price[tied : tied + TOLD]]
    best = candidates[order[0]]
    return Choice(
        best,
        _reason(best, candidates, last_worker),
        tuple(
            Candidate(
                worker=candidates[at].worker.name, overlap=candidates[at].overlap, cost=round(float(prices[at]), 3)
            )
            for at in order[:TOLD]
        ),
        tuple(candidates[at] for at in order[:TOLD]),
    )


def _reason(best: Seen, candidates: Sequence[Seen], last_worker: str) -> Reason:
    if len(candidates) == 1:
        return "only"
    most = max(seen.overlap for seen in candidates)
    if most:
        return "overlap" if best.overlap == most else "load"
    return "session" if best.worker.name == last_worker else "cold"


# --- policies -------------------------------------------------------------------------------------------------------


def kv(weights: Weights, _: random.Random) -> Policy:
    """Time to first token and harm, in milliseconds: ours. A turn that nobody waits for minds its own delay less."""

    def price(turn: PlaceTurn, candidates: Sequence[Seen]) -> list[float]:
        sensitivity = turn.hints.latency_sensitivity
        ours = 0.5 + min(1.0, max(0.0, 0.5 if sensitivity is None else sensitivity))
        told = as_told(weights, candidates)
        return [ours * first_token + harm for first_token, harm in (cost(seen, told) for seen in candidates)]

    return Policy("kv", price, tie=0.5, tie_share=0.02)


def kv_dynamo(_: Weights, rng: random.Random) -> Policy:
    """NVIDIA Dynamo's default formula: prefill blocks to compute plus blocks in use; ties at random."""

    def price(turn: PlaceTurn, candidates: Sequence[Seen]) -> list[float]:
        return [
            (seen.queued_tokens + turn.prompt_tokens) / turn.block_size
            - seen.overlap
            + seen.worker.used_blocks
            + _jitter(rng)
            for seen in candidates
        ]

    return Policy("kv_dynamo", price)


def round_robin(_: Weights, __: random.Random) -> Policy:
    """Each in turn."""
    served: dict[str, int] = {}
    count = 0

    def price(_turn: PlaceTurn, candidates: Sequence[Seen]) -> list[float]:
        nonlocal count
        count += 1
        names = [seen.worker.name for seen in candidates]
        longest_ago = min(names, key=lambda name: (served.get(name, 0), name))
        served[longest_ago] = count
        return [float(name != longest_ago) for name in names]

    return Policy("round_robin", price)


def least_loaded(_: Weights, rng: random.Random) -> Policy:
    """The fewest turns; ties at random."""
    return Policy("least_loaded", lambda _turn, candidates: [seen.turns + _jitter(rng) for seen in candidates])


def at_random(_: Weights, rng: random.Random) -> Policy:
    """Anywhere."""
    return Policy("random", lambda _turn, candidates: [rng.random() for _ in candidates])


def direct(_: Weights, rng: random.Random) -> Policy:
    """Where the request says (`last_worker`); the least loaded when it does not say or that one has no room."""

    def price(turn: PlaceTurn, candidates: Sequence[Seen]) -> list[float]:
        return [-1.0 if seen.worker.name == turn.last_worker else seen.turns + _jitter(rng) for seen in candidates]

    return Policy("direct", price)


def _jitter(rng: random.Random) -> float:
    """Too little to matter but for ties."""
    return rng.random() * 1e-3


POLICIES: dict[str, PolicyFactory] = {
    "kv": kv,
    "kv_dynamo": kv_dynamo,
    "round_robin": round_robin,
    "least_loaded": least_loaded,
    "random": at_random,
    "direct": direct,
}
