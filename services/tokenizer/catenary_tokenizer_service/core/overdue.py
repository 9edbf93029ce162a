"""What a worker's beats say of a turn. The rule: one beat may be late, two in a row that agree are the truth.

A beat may overtake frames that still wait in a callback's queue, and may have been made before a command arrived.
"""

from dataclasses import dataclass
from typing import Literal

Finding = Literal["fine", "resend", "gone"]


@dataclass(slots=True)
class Watch:
    """Suspicion about one attempt of one turn."""

    ahead_of: int = -1
    missing: int = 0

    def beat(self, offset: int | None, have: int, *, settled: bool) -> Finding:
        """Weigh a beat.

        Args:
            offset: tokens the worker has for this attempt; None when it does not name the turn.
            have: tokens we have.
            settled: the attempt was admitted longer than a death limit ago.
        """
        if offset is None:
            self.ahead_of = -1
            self.missing += settled
            return "gone" if self.missing > 1 else "fine"
        self.missing = 0
        if offset <= have:
            self.ahead_of = -1
            return "fine"
        stuck = self.ahead_of == have
        self.ahead_of = have
        return "resend" if stuck else "fine"
