"""What was decided of late, and why.

The rule: figures are as they were when the turn was placed; the last few thousand placements are kept, all attempts of
a turn together.
"""

import json
from collections import OrderedDict

import msgspec
from catenary_protocols.bus.messages import PlaceTurn

from catenary_router.core.cost import Weights, backlog_s
from catenary_router.core.placement import Choice

KEPT = 4096


class Considered(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that had room for the turn.

    Attributes:
        cost: by the policy's own measure; the lowest won. Milliseconds for `kv`.
        overlap: leading blocks of the prompt it held or was about to hold.
        turns, queued_ms: turns it had, and prefill that would have come before this turn's.
    """

    worker: str
    cost: float
    overlap: int
    turns: int
    queued_ms: float

    def told(self) -> str:
        """In a line."""
        load = f"{self.turns} turns, {self.queued_ms:g} ms queued"
        return f"{self.worker}: cost {self.cost:g}, {self.overlap} blocks, {load}"


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """One placement.

    Attributes:
        reason: see `Choice`.
        at: Unix time; waited_s: since the turn came to the router.
        blocks: whole blocks of the prompt.
        considered: best first, eight at most.
    """

    turn_id: str
    attempt: int
    worker: str
    policy: str
    reason: str
    at: float
    waited_s: float
    prompt_tokens: int
    block_size: int
    blocks: int
    considered: tuple[Considered, ...]


class History:
    """See the module."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._turns: OrderedDict[str, tuple[Decision, ...]] = OrderedDict()

    def note(
        self, place: PlaceTurn, choice: Choice, policy: str, weights: Weights, *, now: float, since: float
    ) -> Decision:
        """A turn is about to be placed; nothing was counted on its worker yet."""
        turn = place.turn
        decision = Decision(
            turn_id=turn.turn_id,
            attempt=turn.attempt,
            worker=choice.seen.worker.name,
            policy=policy,
            reason=choice.reason,
            at=now,
            waited_s=now - since,
            prompt_tokens=place.prompt_tokens,
            block_size=place.block_size,
            blocks=len(place.hashes) // 8,
            considered=tuple(
                Considered(
                    worker=one.worker,
                    cost=one.cost,
                    overlap=one.overlap,
                    turns=seen.turns,
                    queued_ms=round(1000 * backlog_s(seen, weights), 1),
                )
                for one, seen in zip(choice.candidates, choice.considered, strict=True)
            ),
        )
        self._turns[turn.turn_id] = (*self._turns.get(turn.turn_id, ()), decision)
        self._turns.move_to_end(turn.turn_id)
        if len(self._turns) > self._kept:
            self._turns.popitem(last=False)
        return decision

    def of(self, turn_id: str) -> tuple[Decision, ...]:
        """The turn's placements, the latest last; none when it was never placed here, or long ago."""
        return self._turns.get(turn_id, ())


def told(decision: Decision) -> str:
    """As JSON in ASCII, which goes into a header as it is."""
    return json.dumps(msgspec.to_builtins(decision), separators=(",", ":"))
