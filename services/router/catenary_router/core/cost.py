"""What it costs to place a turn on a worker, in milliseconds.

The rule: cost = the turn's estimated time to first token + the harm it does to others. Before its first token lie the
prefill already queued there and its own uncached tokens. Others are harmed by the same tokens (they wait meanwhile; in
an idle mesh there is nobody who would), by one more sequence in every decode step, and by the blocks it takes from
sessions that live there and will be back. The turns of a worker that has more than its share count by the cube of the
excess, so that a prompt everyone shares is computed on a second worker before the first is far busier than the others.
Speed is what the worker itself reports, so a slow engine is simply dearer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import NamedTuple

from catenary_router.core.fleet import Worker


@dataclass(frozen=True, slots=True)
class Weights:
    """How much each thing counts.

    Attributes:
        harm: milliseconds of others' waiting against milliseconds of ours.
        decode: milliseconds for each turn that is there already: what it adds to a step. That steps are long where many
            turns run is told by their number; by the steps' own length it would count twice.
        crowding: of our own prefill, when as many sessions live there as its cache can hold.
        tokens_per_s, decode_ms: of workers that have not reported.
    """

    harm: float = 1.0
    decode: float = 1.0
    crowding: float = 2.0
    tokens_per_s: float = 30_000.0
    decode_ms: float = 10.0


@dataclass(slots=True)
class Seen:
    """A worker as one turn sees it.

    Attributes:
        overlap: leading blocks of the prompt it holds or will hold in a moment.
        new_tokens: prompt tokens it would have to compute.
        charged_tokens: what of them is this turn's to pay; see `popular`.
        turns, queued_tokens: the worker's, as of now.
        home_tokens: footprint of the sessions that live there.
        mean_turns: turns of the model's workers, on average.
    """

    worker: Worker
    overlap: int
    new_tokens: int
    charged_tokens: float
    turns: int
    queued_tokens: float
    home_tokens: int = 0
    mean_turns: float = 0.0


class Cost(NamedTuple):
    """Two parts, ms."""

    first_token: float
    harm: float


def as_told(weights: Weights, candidates: Sequence[Seen]) -> Weights:
    """Workers that have not reported are taken to be as fast as those that have; else the untried would look faster."""
    speeds = [speed for seen in candidates if (speed := seen.worker.beat.prefill_tokens_per_s)]
    return replace(weights, tokens_per_s=median(speeds)) if speeds else weights


def ms_per_token(worker: Worker, weights: Weights) -> float:
    """Prefill, by the worker's own measure."""
    return 1000.0 / (worker.beat.prefill_tokens_per_s or weights.tokens_per_s)


def backlog_s(seen: Seen, weights: Weights) -> float:
    """Seconds of prefill before a new turn's own begins."""
    return seen.queued_tokens * ms_per_token(seen.worker, weights) / 1000.0


def cost(seen: Seen, weights: Weights) -> Cost:
    """See the module."""
    worker = seen.worker
    beat = worker.beat
    per_token = ms_per_token(worker, weights)
    own = seen.charged_tokens * per_token
    crowd = 0.0
    if capacity := beat.kv_total * beat.block_size:
        crowd = min(2.0, (seen.home_tokens + seen.new_tokens) / capacity)
    mean = seen.mean_turns
    turns = seen.turns
    share = turns / mean if turns > mean > 0.0 else 1.0
    return Cost(
        first_token=seen.queued_tokens * per_token + own,
        harm=weights.harm * own * mean / (1.0 + mean)
        + weights.decode * turns * share**3
        + weights.crowding * own * crowd * crowd,
    )
