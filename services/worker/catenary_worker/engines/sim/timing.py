"""How long a step takes on the GPU that is not there.

A preset is a function of the batch; its figures are milliseconds on one H100-class device with an 8B model.
"""

from collections.abc import Callable, Mapping
from random import Random

from catenary_worker.engines.paged import Batch

Timing = Callable[[Batch], float]
"""Seconds of one step."""


def dynamo(batch: Batch) -> float:
    """The polynomials of NVIDIA Dynamo's mocker: prefill by new tokens, decode by the share of KV in use.

    Turns that share blocks hold more ids than there are; the share ends at 1, where the polynomial does.
    """
    milliseconds = 0.0
    if batch.prefill_tokens:
        tokens = batch.prefill_tokens
        milliseconds += 4.209989e-07 * tokens * tokens + 1.518344e-02 * tokens + 16.50142
    if batch.decode_rows:
        share = min(1.0, batch.decode_tokens / batch.total_tokens)
        milliseconds += max(1.0, -25.74 * share * share + 54.01 * share + 5.74)
    return milliseconds / 1000


def roofline(batch: Batch) -> float:
    """Linear terms: weights read once, compute per token, attention per token and token before it, KV read."""
    milliseconds = (
        6.0
        + 0.015 * batch.prefill_tokens
        + 8.4e-07 * batch.prefill_context
        + 0.02 * batch.decode_rows
        + 54.0 * batch.decode_tokens / batch.total_tokens
    )
    return milliseconds / 1000


PRESETS: Mapping[str, Timing] = {"dynamo": dynamo, "roofline": roofline}


def jittered(timing: Timing, spread: float, seed: int) -> Timing:
    """The same with normal noise of this relative spread, 70 % at most; repeatable by seed."""
    noise = Random(seed)  # noqa: S311 - no secret

    def noisy(batch: Batch) -> float:
        return timing(batch) * (1 + min(0.7, max(-0.7, noise.gauss(0.0, spread))))

    return noisy
