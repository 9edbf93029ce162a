"""The timed executor: says what a voice says, and how long a GPU would have taken."""

from collections.abc import Callable

from catenary_worker.engines.paged import Batch, Ended, Executed, Sequence
from catenary_worker.engines.sim.timing import Timing
from catenary_worker.engines.sim.voice import Voice

Cast = Callable[[Sequence], Voice]
"""Gives a sequence, the first time it runs, its voice."""


class TimedExecutor:
    """No model: a timing for the batch, a voice for each sequence."""

    def __init__(self, timing: Timing, cast: Cast) -> None:
        self._timing = timing
        self._cast = cast
        self._voices: dict[Sequence, Voice] = {}

    def begin(self, sequence: Sequence) -> None:
        """Choose its voice."""
        self._voices[sequence] = self._cast(sequence)

    def run(self, batch: Batch) -> Executed:
        """Next ids by position."""
        voices = self._voices
        tokens: list[tuple[int, ...]] = []
        ended: dict[int, Ended] = {}
        for row, sequence in enumerate(batch.sampling):
            at = len(sequence.ids) - sequence.prompt_length
            voice = voices[sequence]
            said = voice.next(at)
            tokens.append(said)
            if voice.finite and (end := voice.ended(at + len(said))):
                ended[row] = end
        return Executed(self._timing(batch), tokens, ended)

    def end(self, sequence: Sequence) -> None:
        """Forget it."""
        self._voices.pop(sequence, None)
