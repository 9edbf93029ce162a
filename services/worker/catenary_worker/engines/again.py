"""A constrained turn that was moved: it is run again from its prompt, and not told again what it had said before.

A grammar cannot be entered in its middle, so the engine begins anew, with the same guide and the same seed. Rule: while
it says what was said before, nothing is told; when it says anything else the turn has failed, for its client has the
other words already.
"""

import hashlib
from dataclasses import replace

import msgspec
from catenary_protocols.errors import ErrorInfo

from catenary_worker.engines.base import Delta, EngineTurn, no_ids

SAID_OTHERWISE = ErrorInfo(
    code="engine_failed",
    message="the turn's worker was lost, and begun anew elsewhere its constrained answer was another one",
)
GUIDES = ("structural_tag", "json_schema")
"""Options that constrain what is generated."""


class SaidOtherwiseError(Exception):
    """The turn cannot go on; `info` is what its client is told."""

    info = SAID_OTHERWISE


class Again:
    """See the module.

    Attributes:
        turn: what the engine is to run.
    """

    def __init__(self, moved: EngineTurn) -> None:
        self.turn = replace(moved, generated=no_ids())
        self._told = moved.generated.tolist()
        self._said = 0
        self._passed_on = 0

    def hear(self, delta: Delta) -> Delta | None:
        """What of the engine's delta is new, None for nothing. Raises `SaidOtherwiseError`."""
        left = self._told[self._said :]
        repeated = min(len(left), len(delta.tokens))
        if list(delta.tokens[:repeated]) != left[:repeated]:
            raise SaidOtherwiseError
        self._said += repeated
        if delta.finish in {"stop", "length"} and self._said < len(self._told):
            raise SaidOtherwiseError
        if repeated and repeated == len(delta.tokens) and delta.started is None and delta.finish is None:
            return None
        offset = len(self._told) + self._passed_on
        self._passed_on += len(delta.tokens) - repeated
        return msgspec.structs.replace(
            delta,
            offset=offset,
            tokens=delta.tokens[repeated:],
            logprobs=delta.logprobs[repeated:],
            stop_token=delta.stop_token and repeated < len(delta.tokens),
        )


def again(turn: EngineTurn) -> Again | None:
    """How a turn is to be run that cannot go on after what it has; None if it can."""
    guided = any(turn.options.get(name) for name in GUIDES)
    return Again(turn) if guided and turn.generated else None


def seed_of(turn_id: str) -> int:
    """A seed for a turn that brought none; the same wherever it is moved."""
    return int.from_bytes(hashlib.blake2b(turn_id.encode(), digest_size=8).digest(), "little")
