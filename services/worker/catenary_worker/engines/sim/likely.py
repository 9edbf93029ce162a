"""How likely the simulator says that its tokens were.

Rule: a function of the token, its position and the turn's seed, so that a moved turn is told the same. What was said is
always the likeliest; each alternative is half as likely as the one before it.
"""

from collections.abc import Sequence
from hashlib import blake2b
from math import log

from catenary_protocols.conversation import TokenLogprob

_LEAST = 0.5
"""Probability of what was said, at least."""


class Likely:
    """`ids`: tokens that may be alternatives."""

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = ids

    def of(self, tokens: Sequence[int], at: int, seed: int, count: int) -> tuple[TokenLogprob, ...]:
        """Of tokens from a position on, with `count` likeliest ids each."""
        return tuple(self._one(token, at + place, seed, count) for place, token in enumerate(tokens))

    def _one(self, token: int, at: int, seed: int, count: int) -> TokenLogprob:
        digest = blake2b(b"%d %d %d" % (token, at, seed), digest_size=8).digest()
        probability = _LEAST + digest[0] / 512
        top = {token: log(probability)}
        start, rest = int.from_bytes(digest[1:5], "little"), 1.0 - probability
        for place in range(count):
            rest /= 2
            top.setdefault(self._ids[(start + place) % len(self._ids)], log(rest))
        return TokenLogprob(logprob=top[token], top=dict(list(top.items())[:count]))
