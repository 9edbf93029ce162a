"""What the engine was asked and did, for tests that ask back."""

from collections import deque
from dataclasses import dataclass, field

from catenary_worker.engines.base import EngineTurn

_KEPT = 256
_PROMPT_END, _IMAGE_BEGINNING = 64 * 1024, 64
"""Characters that are told of each: the answer is one message of the bus, whatever was asked."""


@dataclass(slots=True)
class TurnRecord:
    """One attempt that came to run."""

    turn: EngineTurn
    prompt: str
    cached_tokens: int
    tokens: int = 0

    def report(self) -> dict[str, object]:
        """As JSON."""
        turn, images = self.turn, self.turn.options.get("images")
        names = ("max_tokens", "min_tokens", "ignore_eos", "temperature", "top_p", "top_k", "min_p", "seed")
        sampling: dict[str, object] = {name: getattr(turn, name) for name in names}
        sampling |= {
            "stop_token_ids": list(turn.stop_token_ids),
            "presence_penalty": turn.penalties.presence,
            "frequency_penalty": turn.penalties.frequency,
            "repetition_penalty": turn.penalties.repetition,
            "logit_bias": {str(token): bias for token, bias in turn.logit_bias.items()},
            "priority": turn.priority,
        }
        return {
            "turn_id": turn.turn_id,
            "attempt": turn.attempt,
            "prompt": self.prompt[-_PROMPT_END:],
            "prompt_tokens": len(turn.prompt),
            "tokens": self.tokens,
            "cached_tokens": self.cached_tokens,
            "sampling": sampling,
            "images": [str(one)[:_IMAGE_BEGINNING] for one in images] if isinstance(images, tuple) else [],
        }


@dataclass(slots=True)
class Record:
    """Counters from the start, and the last turns."""

    calls: int = 0
    aborted: int = 0
    turns: deque[TurnRecord] = field(default_factory=lambda: deque(maxlen=_KEPT))

    def report(self) -> dict[str, object]:
        """As JSON: the last turn's fields stand at the top, all kept turns under `turns`."""
        turns = [turn.report() for turn in self.turns]
        last = turns[-1] if turns else {}
        return {**last, "calls": self.calls, "aborted": self.aborted, "turns": turns}
