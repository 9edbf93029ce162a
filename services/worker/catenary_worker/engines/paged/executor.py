"""What computes a batch. The timed executor says how long it would take; a computing one really does it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from catenary_protocols.conversation import TokenLogprob
from catenary_protocols.errors import ErrorInfo

from catenary_worker.engines.base import Finish
from catenary_worker.engines.paged.sequence import Sequence


@dataclass(slots=True)
class Batch:
    """What one step computes.

    For each sequence: the KV of `ids[computed : computed + scheduled]`, into `blocks`.

    Attributes:
        sampling: those whose last id is computed and that get their next ids.
        partial: those in the middle of their prompt.
        prefill_tokens: ids computed for sequences in prefill.
        prefill_context: sum over those ids of the ids before them (what attention reads).
        decode_rows: sequences in decode.
        decode_tokens: KV ids they hold.
        total_tokens: ids the whole pool can hold.
    """

    total_tokens: int
    sampling: list[Sequence] = field(default_factory=list)
    partial: list[Sequence] = field(default_factory=list)
    prefill_tokens: int = 0
    prefill_context: int = 0
    decode_rows: int = 0
    decode_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Ended:
    """The executor ends a sequence itself."""

    finish: Finish
    error: ErrorInfo | None = None


@dataclass(slots=True)
class Executed:
    """What came of a batch.

    Attributes:
        seconds: how long it took (or would have taken).
        tokens: next ids of each of `Batch.sampling`, in its order; usually one, several where a model drafts.
        ended: index in `Batch.sampling` → why that sequence ends after these ids.
        logprobs: index in `Batch.sampling` → how likely each of its ids was, for turns that ask.
    """

    seconds: float
    tokens: list[tuple[int, ...]]
    ended: Mapping[int, Ended] = field(default_factory=dict)
    logprobs: Mapping[int, tuple[TokenLogprob, ...]] = field(default_factory=dict)


class Executor(Protocol):
    """Computes batches."""

    def begin(self, sequence: Sequence) -> None:
        """A sequence runs for the first time; `cached_tokens` is set."""

    def run(self, batch: Batch) -> Executed:
        """Compute one batch."""

    def end(self, sequence: Sequence) -> None:
        """A sequence is over; also called for one that never ran."""
