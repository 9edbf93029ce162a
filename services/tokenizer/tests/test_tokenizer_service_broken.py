"""Engines that give up in the middle: what they had said by then is told, whether the turn ends or goes on elsewhere."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from catenary_protocols.errors import ErrorInfo
from catenary_protocols.turn_events import Failed, Finished, TextDelta, TurnEvent
from catenary_runtime.bus import Bus
from catenary_runtime.testing import NatsServer
from catenary_tokenizer_service.testing import Peers, asking, owner_among, turn_request
from catenary_tokenizers import ModelTokenizer, embedded_path, load

BROKEN = ErrorInfo(code="engine_failed", message="boom")
LEAVING = ErrorInfo(code="draining", message="the worker was stopped")


@pytest.fixture(scope="module")
def tokenizer() -> ModelTokenizer:
    return load(embedded_path())


@pytest.fixture
async def peers(nats_server: NatsServer, bus: Bus, tmp_path: Path) -> AsyncIterator[Peers]:
    async with owner_among(nats_server, bus, embedded_path(), tmp_path) as (_, peers):
        yield peers


async def running(peers: Peers) -> str:
    """A turn that a worker has."""
    request = turn_request(asking("hello"))
    await peers.submit(request)
    await peers.run_of(request.turn.turn_id)
    return request.turn.turn_id


def said(log: list[TurnEvent]) -> str:
    return "".join(event.text for event in log if isinstance(event, TextDelta))


@pytest.mark.parametrize("last", [" you", " <tool", " \N{SNOWMAN}"])
async def test_what_came_with_the_error_is_told_before_it(peers: Peers, tokenizer: ModelTokenizer, last: str) -> None:
    turn_id = await running(peers)
    ids, more = tokenizer.encode("Good morning", special=True), tokenizer.encode(last, special=True)
    peers.tokens("w1", turn_id, ids, cached=0)
    peers.tokens("w1", turn_id, more, offset=len(ids) // 4, finish="error", error=BROKEN)
    log = peers.events.setdefault(turn_id, [])
    await peers.until(lambda: bool(log) and isinstance(log[-1], Failed))
    end = log[-1]
    assert isinstance(end, Failed)
    assert end.error.code == "engine_failed"
    assert said(log) == f"Good morning{last}"


async def test_what_came_with_the_last_word_of_a_worker_that_leaves_is_told_once(
    peers: Peers, tokenizer: ModelTokenizer
) -> None:
    turn_id = await running(peers)
    ids = tokenizer.encode("Good morning, all of you.<|im_end|>", special=True)
    peers.tokens("w1", turn_id, ids[:8], cached=0)
    peers.tokens("w1", turn_id, ids[8:16], offset=2, finish="error", error=LEAVING)
    again = await peers.run_of(turn_id, attempt=1)
    assert again.generated == ids[:16]
    peers.tokens("w1", turn_id, ids[16:], attempt=1, offset=4, finish="stop", stop_token=True)
    log = peers.events.setdefault(turn_id, [])
    await peers.until(lambda: bool(log) and isinstance(log[-1], Finished))
    assert said(log) == "Good morning, all of you."
