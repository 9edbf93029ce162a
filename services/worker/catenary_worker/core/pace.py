"""How fast the engine is just now.

Rule: smoothed over recent steps; a step that prefills says nothing of decode, one that prefills little says nothing of
prefill, and 0 means not known yet. What a step costs without any prefill is no part of prefill's pace: tokens that wait
are computed in steps that decode pays for anyway.
"""

from catenary_worker.engines.base import EngineLoad

WEIGHT = 0.1
TELLING_TOKENS = 256
LEAST_SHARE = 0.5
"""Of a step that prefills, so much at least is prefill, however slow decode was of late."""


class Pace:
    """Fed with each step's load."""

    def __init__(self) -> None:
        self.decode_ms = 0.0
        self._tokens = 0.0
        self._ms = 0.0

    @property
    def prefill_tokens_per_s(self) -> float:
        """Of prompt tokens that are computed beside a running batch."""
        return self._tokens * 1000 / max(self._ms - self.decode_ms, self._ms * LEAST_SHARE) if self._ms else 0.0

    def note(self, load: EngineLoad) -> None:
        """One step."""
        if load.step_ms <= 0.0:
            return
        if load.prefilled_tokens >= TELLING_TOKENS:
            self._tokens = _blend(self._tokens, load.prefilled_tokens)
            self._ms = _blend(self._ms, load.step_ms)
        elif load.running and not load.prefilled_tokens:
            self.decode_ms = _blend(self.decode_ms, load.step_ms)


def _blend(old: float, new: float) -> float:
    return new if old == 0.0 else old + WEIGHT * (new - old)
