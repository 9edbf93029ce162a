"""A simulated engine on a virtual clock: no loop, no bus, no text. What capacity planning and router studies run on.

engine.submit(turn, now)
while engine.due is not None:           # the caller keeps the clock and takes the engine that is due first
step, now = engine.advance()        # the step, and the time at which it was ready
"""

from catenary_protocols.ids import TurnKey

from catenary_worker.engines.base import EngineTurn, Step
from catenary_worker.engines.paged import PagedCore, Sequence
from catenary_worker.engines.sim.executor import TimedExecutor
from catenary_worker.engines.sim.phrases import Dice
from catenary_worker.engines.sim.settings import SimSettings
from catenary_worker.engines.sim.voice import Speech, Voice

_VOCABULARY = 32_768


class VirtualEngine:
    """One engine. It says arbitrary ids up to each turn's `max_tokens`; times are seconds of the caller's clock."""

    def __init__(self, settings: SimSettings, context: int) -> None:
        self.core = PagedCore(settings.limits(context), TimedExecutor(settings.timing, _numbers))
        self._free_at = 0.0
        self._ready: tuple[Step, float] | None = None

    @property
    def due(self) -> float | None:
        """When the step that runs now is ready; None while nothing is to be done."""
        if self._ready is None and self.core.live:
            step, seconds = self.core.step(self._free_at)
            self._ready = step, self._free_at + seconds
        return None if self._ready is None else self._ready[1]

    def submit(self, turn: EngineTurn, now: float) -> None:
        """Queue a turn; it is looked at when the step that runs now is over. Raises as `PagedCore.submit`."""
        if self._ready is None and not self.core.live:
            self._free_at = max(self._free_at, now)
        self.core.submit(turn, now)

    def cancel(self, key: TurnKey) -> bool:
        """End a turn with the next step; False if it is not here."""
        return self.core.cancel(key)

    def advance(self) -> tuple[Step, float]:
        """The step that is due, and when it was ready. Raises `LookupError` while nothing is to be done."""
        if self.due is None or self._ready is None:
            raise LookupError("nothing runs on this engine")
        step, self._free_at = self._ready
        self._ready = None
        return step, self._free_at


def _numbers(sequence: Sequence) -> Voice:
    dice = Dice(sequence.turn.prompt, sequence.turn.seed)
    first = dice.choose("ids", 0, _VOCABULARY)
    length = sequence.end - sequence.prompt_length
    return Speech(((_VOCABULARY + (first + at * 7919) % _VOCABULARY,) for at in range(length)), finite=False)
