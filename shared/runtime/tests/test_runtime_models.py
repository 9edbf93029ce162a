"""Model cards and files over JetStream: published by a worker, fetched by whoever serves the model."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from catenary_protocols.bus.codec import encode
from catenary_protocols.bus.messages import ModelCard, WorkerLoad
from catenary_protocols.errors import TransportError
from catenary_runtime import models
from catenary_runtime.bus import Bus
from catenary_runtime.models import Directory, card_hash, fetch_model, get_card, hash_files, publish_model
from catenary_runtime.presence import Presence
from catenary_runtime.testing import NatsServer, bus_to, provisioned
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.msg import Msg

MODEL = "org/model.v1"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A model directory with one file that does not belong to the card."""
    path = tmp_path / "model"
    path.mkdir()
    (path / "tokenizer.json").write_bytes(b"t" * 300_000)
    (path / "config.json").write_bytes(b"{}")
    (path / "weights.bin").write_bytes(b"w")
    return path


@pytest.fixture
async def stored(bus: Bus, nats_server: NatsServer) -> Bus:
    """A bus in a provisioned namespace."""
    await provisioned(nats_server.url, bus.subjects)
    return bus


def card_of(directory: Path, parser: str = "hermes") -> ModelCard:
    artifacts = hash_files(directory)
    return ModelCard(
        model=MODEL,
        card=card_hash(artifacts, parser, 16),
        context=4096,
        block_size=16,
        artifacts=artifacts,
        parser=parser,
    )


async def test_a_published_model_is_fetched_whole(stored: Bus, directory: Path, tmp_path: Path) -> None:
    card = card_of(directory)
    await publish_model(stored, card, directory)
    await publish_model(stored, card, directory)
    found = await get_card(stored, MODEL, card.card)
    assert found == card
    there = await fetch_model(stored, found, tmp_path / "cache")
    assert {path.name for path in there.iterdir()} == {"tokenizer.json", "config.json"}
    assert hash_files(there) == card.artifacts


async def test_files_that_are_there_are_kept_and_broken_ones_fetched_again(
    stored: Bus, directory: Path, tmp_path: Path
) -> None:
    card = card_of(directory)
    await publish_model(stored, card, directory)
    there = await fetch_model(stored, card, tmp_path / "cache")
    whole = (there / "config.json").stat().st_mtime_ns
    (there / "tokenizer.json").write_bytes(b"cut")
    assert await fetch_model(stored, card, tmp_path / "cache") == there
    assert hash_files(there) == card.artifacts
    assert (there / "config.json").stat().st_mtime_ns == whole


async def test_what_is_not_there_is_a_typed_error(stored: Bus, directory: Path, tmp_path: Path) -> None:
    card = card_of(directory)
    with pytest.raises(TransportError, match=f"no card {card.card} of model {MODEL}"):
        await get_card(stored, MODEL, card.card)
    with pytest.raises(TransportError, match="is not in the store"):
        await fetch_model(stored, card, tmp_path / "cache")


async def test_a_file_whose_chunks_another_worker_took_away_is_no_wait_for_ever(
    stored: Bus, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "CHUNK_S", 0.2)
    card = card_of(directory)
    await publish_model(stored, card, directory)
    bucket = stored.subjects.artifacts_bucket
    await stored.js.purge_stream(f"OBJ_{bucket}", subject=f"$O.{bucket}.C.>")
    with pytest.raises(TransportError, match="is not in the store"):
        await fetch_model(stored, card, tmp_path / "cache")


async def test_workers_that_put_a_model_together_leave_it_whole(
    stored: Bus, nats_server: NatsServer, directory: Path, tmp_path: Path
) -> None:
    (directory / "tokenizer.json").write_bytes(b"many chunks " * 100_000)
    card = card_of(directory)
    async with AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(bus_to(nats_server, f"w-{number}", stored.subjects)) for number in range(6)
        ]
        await asyncio.gather(*(publish_model(worker, card, directory) for worker in workers))
    there = await fetch_model(stored, card, tmp_path / "cache")
    assert hash_files(there) == card.artifacts


async def test_without_provisioning_it_is_said(bus: Bus, directory: Path, tmp_path: Path) -> None:
    card = card_of(directory)
    with pytest.raises(TransportError, match="catenary provision"):
        await publish_model(bus, card, directory)
    with pytest.raises(TransportError, match="no card"):
        await get_card(bus, MODEL, card.card)
    with pytest.raises(TransportError, match="no store"):
        await fetch_model(bus, card, tmp_path / "cache")


async def test_a_broker_that_is_away_is_said_too(directory: Path, tmp_path: Path) -> None:
    broker = NatsServer(tmp_path / "nats")
    broker.start()
    async with bus_to(broker, "test") as bus:
        await provisioned(broker.url, bus.subjects)
        card = card_of(directory)
        lost = asyncio.Event()
        bus.on_lost = lost.set
        broker.kill()
        await lost.wait()
        with pytest.raises(TransportError, match="no buckets"):
            await publish_model(bus, card, directory)
        with pytest.raises(TransportError, match="no card"):
            await get_card(bus, MODEL, card.card)
        with pytest.raises(TransportError, match="no store"):
            await fetch_model(bus, card, tmp_path / "cache")


names = st.text("abc.", min_size=1, max_size=6)
facts = st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n")) | st.integers(), max_size=4)


@given(st.dictionaries(names, st.text("0123456789abcdef", min_size=1), max_size=4), facts)
def test_a_card_is_named_by_its_content_alone(artifacts: dict[str, str], said: list[str | int]) -> None:
    name = card_hash(artifacts, *said)
    assert name == card_hash(dict(reversed(artifacts.items())), *said)
    assert name != card_hash(artifacts, *said, "more")
    assert name != card_hash({**artifacts, "another": "00"}, *said)


# --- the models that are served --------------------------------------------------------------------------------------


class Fleet:
    """A presence that hears of workers by hand."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.presence = Presence(bus, "router", "r", lambda: pytest.fail("no beat is due"))

    def worker(self, name: str, card: ModelCard, *, ready: bool = True) -> None:
        load = WorkerLoad(worker=name, incarnation=1, model=card.model, card=card.card, block_size=16, ready=ready)
        self.presence._on_beat(Msg(self.bus.nc, data=encode(load)))


async def known(directory: Directory, cards: int) -> None:
    """Run the directory until it has so many cards."""
    arrived = asyncio.Event()
    seen: list[ModelCard] = []

    def on_card(card: ModelCard) -> None:
        seen.append(card)
        if len(seen) == cards:
            arrived.set()

    directory.on_card = on_card
    running = asyncio.create_task(directory.run())
    async with asyncio.timeout(10):
        await arrived.wait()
    running.cancel()
    await asyncio.wait([running])


async def test_the_current_card_is_the_one_most_ready_workers_have(stored: Bus, directory: Path) -> None:
    old, new = card_of(directory), card_of(directory, "qwen3_coder")
    for card in (old, new):
        await publish_model(stored, card, directory)
    fleet = Fleet(stored)
    models = Directory(stored, fleet.presence)
    assert models.current(MODEL) is None
    fleet.worker("w1", old)
    fleet.worker("w2", new, ready=False)
    fleet.worker("w3", new, ready=False)
    await known(models, 1)
    assert models.current(MODEL) == old
    assert models.all() == [old]
    fleet.worker("w2", new)
    fleet.worker("w3", new)
    assert models.current(MODEL) is None
    await known(models, 1)
    assert models.current(MODEL) == new
    fleet.presence._peers.clear()
    assert (models.current(MODEL), models.all()) == (None, [])


def test_a_card_carries_every_kind_of_vocabulary(directory: Path) -> None:
    for name in ("qwen.tiktoken", "tekken.json", "tokenizer.model.v3", "tiktoken.model"):
        (directory / name).write_bytes(name.encode())
    assert set(hash_files(directory)) == {
        "tokenizer.json",
        "config.json",
        "qwen.tiktoken",
        "tekken.json",
        "tokenizer.model.v3",
        "tiktoken.model",
    }


@pytest.mark.parametrize("name", ["../out.json", "/out.json", "a/../../out.json"])
async def test_a_file_of_a_card_stays_in_its_directory(stored: Bus, directory: Path, tmp_path: Path, name: str) -> None:
    card = card_of(directory)
    await publish_model(stored, card, directory)
    outside = {name: card.artifacts["config.json"]}
    strange = ModelCard(model=MODEL, card=card.card, context=1, block_size=1, artifacts=outside)
    with pytest.raises(TransportError, match="no place in a model directory"):
        await fetch_model(stored, strange, tmp_path / "cache")
