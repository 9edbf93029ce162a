"""A prompt of 5 MB on Qwen's vocabulary: how long the tokenizer's loop, and with it other turns' tokens, stands still."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from itertools import pairwise
from pathlib import Path

from catenary_protocols.bus.messages import ModelCard
from catenary_protocols.conversation import Conversation, TextPart, UserMessage
from catenary_tokenizer_service.helpers import Helpers
from catenary_tokenizer_service.ingress.prompts import encode
from catenary_tokenizer_service.models import ServedModel, open_model

from tests.bench.tokenizers import WORDS
from tests.models import fetch

MEGABYTES = 5
TICK_S = 0.001
ROUNDS = 5
CARD = ModelCard(model="qwen", card="bench", context=1 << 24, block_size=16, artifacts={}, parser="hermes")


def measure() -> dict[str, float]:
    """The loop's pause and the time to the prompt's ids, medians in ms, with the helper process and without."""
    return asyncio.run(_measure(fetch.qwen()))


async def _measure(directory: Path) -> dict[str, float]:
    helpers = Helpers()
    try:
        beside = open_model(CARD, directory, helpers=helpers)
        await helpers.warm(directory)
        with_helper = [await _pause(beside, seed) for seed in range(ROUNDS + 1)][1:]
    finally:
        helpers.close()
    alone = open_model(CARD, directory)
    without = [await _pause(alone, 100 + seed) for seed in range(ROUNDS + 1)][1:]
    return {
        "pause_ms": statistics.median(pause for pause, _ in with_helper),
        "ids_ms": statistics.median(took for _, took in with_helper),
        "pause_without_helper_ms": statistics.median(pause for pause, _ in without),
        "ids_without_helper_ms": statistics.median(took for _, took in without),
    }


async def _pause(model: ServedModel, seed: int) -> tuple[float, float]:
    pick = random.Random(seed)  # noqa: S311  # reproducible, not secret
    words = (
        f"{pick.choice(WORDS)}{pick.choice(WORDS)}_{pick.randrange(10**6):x}" for _ in range(MEGABYTES * 2**20 // 10)
    )
    text = " ".join(words)[: MEGABYTES * 2**20]
    conversation = Conversation(messages=(UserMessage(parts=(TextPart(text=text),)),))
    ticks = [time.perf_counter()]

    async def tick() -> None:
        while True:
            await asyncio.sleep(TICK_S)
            ticks.append(time.perf_counter())

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(10 * TICK_S)
    began = time.perf_counter()
    await encode(model, conversation)
    took = time.perf_counter() - began
    await asyncio.sleep(2 * TICK_S)
    ticking.cancel()
    return 1e3 * max(later - earlier for earlier, later in pairwise(ticks)), 1e3 * took


if __name__ == "__main__":
    import json

    print(json.dumps(measure(), indent=1))
