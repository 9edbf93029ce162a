"""The timed executor: says what a voice says, and how long a GPU would have taken."""

from collections.abc import Callable

from catenary_protocols.conversation import TokenLogprob

from catenary_worker.engines.paged import Batch, Ended, Executed, Sequence
from catenary_worker.engines.sim.likely import Likely
from catenary_worker.engines.sim.timing import Timing
from catenary_worker.engines.sim.voice import Voice

Cast = Callable[[Sequence], Voice]
"""Gives a sequence, the first time it runs, its voice."""


class TimedExecutor:
    """No model: a timing for the batch, a voice for each sequence. `likely`: for turns that ask how sure it is."""

    def __init__(self, timing: Timing, cast: Cast, likely: Likely | None = None) -> None:
        self._timing = timing
        self._cast = cast
        self._likely = likely
        self._asking: dict[Sequence, tuple[Likely, int]] = {}
        self._voices: dict[Sequence, Voice] = {}

    def begin(self, sequence: Sequence) -> None:
        """Choose its voice."""
        self._voices[sequence] = self._cast(sequence)
        count = sequence.turn.options.get("logprobs")
        if self._likely is not None and isinstance(count, int):
            self._asking[sequence] = self._likely, count

    def run(self, batch: Batch) -> Executed:
        """Next ids by position."""
        voices, asking = self._voices, self._asking
        tokens: list[tuple[int, ...]] = []
        ended: dict[int, Ended] = {}
        told: dict[int, tuple[TokenLogprob, ...]] = {}
        for row, sequence in enumerate(batch.sampling):
            at = len(sequence.ids) - sequence.prompt_length
            voice = voices[sequence]
            said = voice.next(at)
            tokens.append(said)
            if voice.finite and (end := voice.ended(at + len(said))):
                ended[row] = end
            if asking and (asked := asking.get(sequence)) is not None:
                likely, count = asked
                told[row] = likely.of(said, at, sequence.turn.seed or 0, count)
        return Executed(self._timing(batch), tokens, ended, told)

    def end(self, sequence: Sequence) -> None:
        """Forget it."""
        self._voices.pop(sequence, None)
        self._asking.pop(sequence, None)
