"""A model that a worker begins to serve: whoever asks for it waits until it is loaded, but not for ever."""

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from catenary_protocols.bus.codec import Decoder, encode
from catenary_protocols.bus.messages import (
    Beat,
    CountTokens,
    Detokenize,
    ModelCard,
    Refused,
    TokenCount,
    TokenText,
    TurnRequest,
    TurnTaken,
)
from catenary_protocols.turn_events import Failed
from catenary_runtime.bus import Bus
from catenary_runtime.models import publish_model
from catenary_runtime.testing import NatsServer
from catenary_tokenizer_service import models
from catenary_tokenizer_service.models import ServedModel, open_model
from catenary_tokenizer_service.service import TokenizerService
from catenary_tokenizer_service.testing import TOKENIZER, Peers, asking, owner, owner_among, turn_request
from catenary_tokenizers import embedded_path

HELLO = asking("hello")
_reply: Decoder[TurnTaken | Refused | TokenCount | TokenText] = Decoder(
    TurnTaken | Refused | TokenCount | TokenText  # type: ignore[arg-type]
)
Tokenizer = tuple[TokenizerService, Peers]


@pytest.fixture
async def tokenizer(nats_server: NatsServer, bus: Bus, tmp_path: Path) -> AsyncIterator[Tokenizer]:
    async with owner_among(nats_server, bus, embedded_path(), tmp_path) as one:
        yield one


def late(peers: Peers) -> ModelCard:
    """A second model, that `w2` serves from now on; nobody has published its card and files yet."""
    peers.cards["w2"] = msgspec.structs.replace(peers.card, model="late", card="c0ffee")
    return peers.cards["w2"]


def request(model: str) -> TurnRequest:
    return turn_request(HELLO, model=model)


async def until(peers: Peers, service: TokenizerService, condition: Callable[[], bool]) -> None:
    """Look after each beat of it."""
    beats = asyncio.Event()
    subject = peers.bus.subjects.to("beat", service="tokenizer", instance=service.instance)
    subscription = await peers.bus.subscribe(subject, lambda _: beats.set())
    async with asyncio.timeout(10):
        while not condition():
            beats.clear()
            await beats.wait()
    await subscription.unsubscribe()


async def until_loading(peers: Peers, service: TokenizerService) -> None:
    await until(peers, service, lambda: service.serving.loading() == ["late"])


async def test_a_turn_for_a_model_that_is_being_loaded_is_taken_at_once_and_runs_when_it_is(
    tokenizer: Tokenizer,
) -> None:
    service, peers = tokenizer
    card = late(peers)
    await until_loading(peers, service)
    one = request("late")
    assert isinstance(_reply(await peers.submit(one)), TurnTaken)
    assert one.turn.turn_id not in peers.events
    peers.workers = {"w2": 1}
    await publish_model(peers.bus, card, embedded_path())
    run = await peers.run_of(one.turn.turn_id)
    assert (run.model, run.card) == ("late", card.card)


async def test_counting_and_decoding_wait_for_a_model_too(tokenizer: Tokenizer) -> None:
    service, peers = tokenizer
    card = late(peers)
    await until_loading(peers, service)
    subject = peers.bus.subjects.to("turn", tokenizer=TOKENIZER)
    asked = [
        asyncio.create_task(peers.bus.request(subject, encode(message), within=10))
        for message in (CountTokens(model="late", conversation=HELLO), Detokenize(model="late", ids=b""))
    ]
    await publish_model(peers.bus, card, embedded_path())
    count, text = [_reply(one) for one in await asyncio.gather(*asked)]
    assert isinstance(count, TokenCount)
    assert isinstance(text, TokenText)


async def test_a_model_is_there_when_its_helper_process_has_it_too(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, peers = tokenizer
    opened = threading.Event()

    def open_and_tell(*args: Any) -> ServedModel:
        model = open_model(*args)
        opened.set()
        return model

    monkeypatch.setattr(models, "open_model", open_and_tell)
    encoder = service.helpers.encoder.pid
    assert encoder is not None
    os.kill(encoder, signal.SIGSTOP)
    await publish_model(peers.bus, late(peers), embedded_path())
    await until(peers, service, opened.is_set)
    await until_loading(peers, service)
    os.kill(encoder, signal.SIGCONT)
    await until(peers, service, lambda: not service.serving.loading())
    assert service.models.names() == ["late", "m"]


async def test_while_a_model_is_loaded_the_service_is_not_ready_but_takes_turns_of_the_others(
    tokenizer: Tokenizer,
) -> None:
    service, peers = tokenizer
    assert service.health.ready()[0]
    card = late(peers)
    await until_loading(peers, service)
    ready, rows = service.health.ready()
    assert not ready
    assert {"check": "models", "ok": False, "detail": "loading late"} in rows
    beat = service.beat()
    assert isinstance(beat, Beat)
    assert beat.ready
    one = request("m")
    await peers.submit(one)
    await peers.run_of(one.turn.turn_id)
    await publish_model(peers.bus, card, embedded_path())
    await until(peers, service, lambda: service.health.ready()[0])


async def test_a_tokenizer_that_starts_takes_no_work_before_it_has_all_models(
    nats_server: NatsServer, bus: Bus, tmp_path: Path
) -> None:
    async with owner_among(nats_server, bus, embedded_path(), tmp_path) as (first, peers):
        card = late(peers)
        await until_loading(peers, first)
        async with owner(nats_server, peers, tmp_path / "second", "second") as second:
            await until_loading(peers, second)
            assert not second.takes_work()
            await publish_model(peers.bus, card, embedded_path())
            await until(peers, second, second.takes_work)


async def test_a_model_that_does_not_come_in_time_fails_the_turn_in_an_error_to_retry(
    nats_server: NatsServer, bus: Bus, tmp_path: Path
) -> None:
    async with owner_among(nats_server, bus, embedded_path(), tmp_path) as (_, peers):
        late(peers)
        async with owner(nats_server, peers, tmp_path / "hasty", "hasty", no_model_s=0.1) as hasty:
            await until_loading(peers, hasty)
            one = request("late")
            await peers.submit(one, "hasty")
            await peers.until(lambda: bool(peers.events.get(one.turn.turn_id)))
    (end,) = peers.events[one.turn.turn_id]
    assert isinstance(end, Failed)
    assert (end.error.code, end.error.retry) == ("model_not_ready", True)
