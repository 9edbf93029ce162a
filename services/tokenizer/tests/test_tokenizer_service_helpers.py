"""Long prompts and templates without bounds, beside the loop: nothing waits for them, and what dies is replaced."""

import os
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from catenary_protocols.bus.codec import Decoder
from catenary_protocols.bus.messages import PlaceTurn, Refused, TurnRequest, TurnTaken
from catenary_protocols.errors import ErrorInfo
from catenary_protocols.turn_events import Failed, TextDelta
from catenary_runtime.bus import Bus
from catenary_runtime.testing import NatsServer
from catenary_tokenizer_service import helpers
from catenary_tokenizer_service.service import TokenizerService
from catenary_tokenizer_service.testing import Peers, asking, owner_among, turn_request
from catenary_tokenizers import ModelTokenizer, embedded_path, load
from prometheus_client import REGISTRY

Owner = tuple[TokenizerService, Peers]
decode: Decoder[TurnTaken | Refused] = Decoder(TurnTaken | Refused)  # type: ignore[arg-type]  # a union of types
LONG = "the function returns the value of the string; " * (5 * 2**20 // 47)
ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
ONLY_JINJA2 = "{{ '%s: %s' % (messages[0].role, messages[0].content) }}"


@pytest.fixture(scope="module")
def tokenizer() -> ModelTokenizer:
    return load(embedded_path())


@pytest.fixture
async def owner(nats_server: NatsServer, bus: Bus, tmp_path: Path) -> AsyncIterator[Owner]:
    async with owner_among(nats_server, bus, embedded_path(), tmp_path, context=1 << 23) as one:
        yield one


def model_with(template: str, folder: Path) -> Path:
    directory = folder / "model"
    shutil.copytree(embedded_path(), directory)
    (directory / "chat_template.jinja").write_text(template)
    return directory


def request(name: str, text: str) -> TurnRequest:
    return turn_request(asking(text), session=name)


async def taken(peers: Peers, name: str, text: str) -> TurnRequest:
    one = request(name, text)
    assert isinstance(decode(await peers.submit(one)), TurnTaken)
    return one


def placed(peers: Peers, one: TurnRequest) -> bool:
    return any(isinstance(message, PlaceTurn) and message.turn == one.turn for message in peers.seen)


def said(peers: Peers, one: TurnRequest) -> list[str]:
    return [event.text for event in peers.events.get(one.turn.turn_id, ()) if isinstance(event, TextDelta)]


async def failure(peers: Peers, one: TurnRequest) -> ErrorInfo:
    await peers.until(lambda: any(isinstance(event, Failed) for event in peers.events.get(one.turn.turn_id, ())))
    return next(event.error for event in peers.events[one.turn.turn_id] if isinstance(event, Failed))


def encoder_of(service: TokenizerService) -> int:
    pid = service.helpers.encoder.pid
    assert pid is not None
    return pid


def ended(helper: str, why: str) -> float:
    return REGISTRY.get_sample_value("catenary_helper_ended_total", {"helper": helper, "why": why}) or 0.0


async def test_tokens_of_a_turn_flow_while_a_long_prompt_is_encoded(owner: Owner, tokenizer: ModelTokenizer) -> None:
    service, peers = owner
    running = await taken(peers, "running", "hello")
    await peers.run_of(running.turn.turn_id)
    os.kill(encoder_of(service), signal.SIGSTOP)
    long = await taken(peers, "long", LONG)
    after = await taken(peers, "after", "and me?")
    peers.tokens("w1", running.turn.turn_id, tokenizer.encode("tokens flow", special=False), cached=0)
    await peers.until(lambda: "".join(said(peers, running)) == "tokens flow")
    await peers.run_of(after.turn.turn_id)
    assert not placed(peers, long)
    os.kill(encoder_of(service), signal.SIGCONT)
    run = await peers.run_of(long.turn.turn_id)
    prompt = tokenizer.encode_prompt(tokenizer.render([{"role": "user", "content": LONG}]))
    assert run.prompt == prompt


async def test_an_encoder_that_is_killed_is_replaced_and_its_turn_goes_on(owner: Owner) -> None:
    service, peers = owner
    first, before = encoder_of(service), ended("encoder", "died")
    os.kill(first, signal.SIGSTOP)
    long = await taken(peers, "long", LONG)
    after = await taken(peers, "after", "and me?")
    await peers.run_of(after.turn.turn_id)
    os.kill(first, signal.SIGKILL)
    await peers.run_of(long.turn.turn_id)
    assert encoder_of(service) != first
    assert ended("encoder", "died") == before + 1


@pytest.mark.slow
async def test_an_encoder_that_dies_twice_over_a_prompt_ends_its_turn(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, peers = owner
    monkeypatch.setattr(helpers.jobs, "encode", os.abort)
    monkeypatch.setattr(helpers, "partial", lambda job, *_: job)
    long = await taken(peers, "long", LONG)
    error = await failure(peers, long)
    assert (error.code, "died twice" in error.message) == ("internal", True)
    monkeypatch.undo()
    again = await taken(peers, "again", LONG)
    await peers.run_of(again.turn.turn_id)
    service.helpers.observe()
    assert (REGISTRY.get_sample_value("catenary_helper_resident_bytes", {"helper": "encoder"}) or 0) > 1 << 20
    assert (REGISTRY.get_sample_value("catenary_helper_cpu_seconds_total", {"helper": "encoder"}) or 0) > 0


@pytest.mark.slow
async def test_a_template_without_bounds_ends_in_an_error_and_the_next_turn_goes_on(
    nats_server: NatsServer, bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(helpers, "RENDER_S", 2.0)
    template = (
        "{% if messages[0].content == 'hang' %}" + ENDLESS + "{% endif %}"
        "{% if messages[0].content == 'swell' %}{{ 'x' * (messages|length * 10 ** 11) }}{% endif %}"
        "{% if messages[0].content == 'spill' %}{{ 'x' * (messages|length * (2 ** 26 + 1)) }}{% endif %}" + ONLY_JINJA2
    )
    directory = model_with(template, tmp_path)
    async with owner_among(nats_server, bus, directory, tmp_path / "data") as (service, peers):
        model = service.models.all()[0]
        assert model.needs_process
        late = await failure(peers, await taken(peers, "late", "hang"))
        large = await failure(peers, await taken(peers, "large", "swell"))
        long = await failure(peers, await taken(peers, "long", "spill"))
        assert {late.code, large.code, long.code} == {"template_refused"}
        assert "longer than 2 s" in late.message
        assert "characters" in long.message
        fine = await taken(peers, "fine", "hello")
        run = await peers.run_of(fine.turn.turn_id)
        assert model.tokenizer.decode(run.prompt) == "user: hello"


@pytest.mark.parametrize("template", [ONLY_JINJA2 + ENDLESS, ENDLESS, "{% if %}"])
async def test_a_model_whose_template_cannot_be_used_is_refused_with_the_reason(
    nats_server: NatsServer, bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: str
) -> None:
    monkeypatch.setattr(helpers, "RENDER_S", 0.5)
    async with owner_among(nats_server, bus, model_with(template, tmp_path), tmp_path / "data") as (service, peers):
        answer = decode(await peers.submit(request("refused", "hello")))
        assert isinstance(answer, Refused)
        assert "cannot be served" in answer.error.message
        assert "chat_template.jinja" in answer.error.message
        assert service.models.names() == []
