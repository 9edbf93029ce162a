"""How fast the engine is just now.

Rule: smoothed over recent steps; a step that prefills says nothing of decode, one that prefills little says nothing of
prefill (it is mostly the step's own cost), and 0 means not known yet.
"""

from catenary_worker.engines.base import EngineLoad

WEIGHT = 0.1
TELLING_TOKENS = 256


class Pace:
    """Fed with each step's load."""

    def __init__(self) -> None:
        self.decode_ms = 0.0
        self.prefill_tokens_per_s = 0.0

    def note(self, load: EngineLoad) -> None:
        """One step."""
        if load.step_ms <= 0.0:
            return
        if load.prefilled_tokens >= TELLING_TOKENS:
            self.prefill_tokens_per_s = _blend(self.prefill_tokens_per_s, load.prefilled_tokens * 1000 / load.step_ms)
        elif load.running and not load.prefilled_tokens:
            self.decode_ms = _blend(self.decode_ms, load.step_ms)


def _blend(old: float, new: float) -> float:
    return new if old == 0.0 else old + WEIGHT * (new - old)
