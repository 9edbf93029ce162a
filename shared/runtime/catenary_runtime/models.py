"""Model cards on the bus: a worker publishes its model's card and files, any tokenizer loads them, no shared disk.

Cards are in the key-value bucket under `<token(model)>.<card>`, files in the object store under their content hash.
Which card of a model is the current one is what ready workers say in their beats.
"""

import asyncio
import hashlib
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import structlog
from catenary_protocols.bus.codec import Decoder, UndecodableError, encode
from catenary_protocols.bus.messages import ModelCard, WorkerLoad
from catenary_protocols.bus.subjects import token
from catenary_protocols.errors import TransportError
from nats.errors import Error as NatsError
from nats.js.errors import NotFoundError
from nats.js.object_store import OBJ_CHUNKS_PRE_TEMPLATE, ObjectStore

from catenary_runtime.bus import Bus
from catenary_runtime.presence import Listener, Peer, Presence

log = structlog.get_logger()
FILES = (
    "tokenizer.json",
    "tokenizer.model*",
    "tekken.json",
    "tiktoken.model",
    "*.tiktoken",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/tool_use.jinja",
    "config.json",
    "generation_config.json",
    "special_tokens_map.json",
)
"""What a prompt needs, as patterns of paths in a model directory."""
CHUNK_S = 2.0
"""So long the next 128 KB of a file may take."""
_decode = Decoder(ModelCard)


def hash_files(directory: Path) -> dict[str, str]:
    """Content hash by file name, of those `FILES` that a model directory has."""
    return {
        path.relative_to(directory).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()[:32]
        for pattern in FILES
        for path in sorted(directory.glob(pattern))
        if path.is_file()
    }


def card_hash(artifacts: dict[str, str], *facts: str | int) -> str:
    """The content hash that names a card: files and all facts that change tokens."""
    text = "\n".join([*(f"{name}={digest}" for name, digest in sorted(artifacts.items())), *map(str, facts)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


async def publish_model(bus: Bus, card: ModelCard, directory: Path) -> None:
    """Put a card and those of its files that are not there yet; raises `TransportError`."""
    try:
        store = await bus.js.object_store(bus.subjects.artifacts_bucket)
        bucket = await bus.js.key_value(bus.subjects.models_bucket)
    except (NatsError, TimeoutError) as error:
        raise TransportError(f"no buckets for models (was `catenary provision` run?): {error}") from error
    try:
        for name, digest in card.artifacts.items():
            try:
                await store.get_info(digest)
            except NotFoundError:
                await store.put(digest, (directory / name).read_bytes())
        await bucket.put(_key(card.model, card.card), encode(card))
    except (NatsError, TimeoutError) as error:
        raise TransportError(f"cannot publish model {card.model}: {error or type(error).__name__}") from error


async def get_card(bus: Bus, model: str, card: str) -> ModelCard:
    """One card; raises `TransportError` when it is not there."""
    try:
        bucket = await bus.js.key_value(bus.subjects.models_bucket)
        entry = await bucket.get(_key(model, card))
    except (NatsError, TimeoutError) as error:
        raise TransportError(f"no card {card} of model {model}: {error or type(error).__name__}") from error
    return _decode(entry.value or b"")


async def fetch_model(bus: Bus, card: ModelCard, cache: Path) -> Path:
    """The model directory of a card under `cache`, fetched from the object store unless it is there already."""
    directory = cache / card.card
    directory.mkdir(parents=True, exist_ok=True)
    try:
        store = await bus.js.object_store(bus.subjects.artifacts_bucket)
    except (NatsError, TimeoutError) as error:
        raise TransportError(f"no store of model files: {error or type(error).__name__}") from error
    for name, digest in card.artifacts.items():
        path = directory / name
        if directory not in path.parents or ".." in path.parts:
            raise TransportError(f"{name} of model {card.model} is no place in a model directory")
        if path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest()[:32] == digest:
            continue
        try:
            data = await _content(bus, store, digest)
        except (NatsError, TimeoutError) as error:
            why = error or type(error).__name__
            raise TransportError(f"{name} of model {card.model} is not in the store: {why}") from error
        if hashlib.sha256(data).hexdigest()[:32] != digest:
            raise TransportError(f"{name} of model {card.model} is not whole in the store")
        path.parent.mkdir(exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}.part")
        part.write_bytes(data)
        part.rename(path)
    return directory


async def _content(bus: Bus, store: ObjectStore, name: str) -> bytes:
    """An object, chunk by chunk; nats-py's own `get` waits for ever for chunks that are gone.

    Workers that start together all put it, and each takes away the chunks of the one before.
    """
    info = await store.get_info(name)
    subject = OBJ_CHUNKS_PRE_TEMPLATE.format(bucket=bus.subjects.artifacts_bucket, obj=info.nuid)
    if not info.chunks:
        return b""
    chunks = await bus.js.subscribe(subject, ordered_consumer=True)
    try:
        return b"".join([(await chunks.next_msg(CHUNK_S)).data for _ in range(info.chunks)])
    finally:
        await chunks.unsubscribe()


class Directory:
    """The models that ready workers serve now, with their cards."""

    def __init__(self, bus: Bus, presence: Presence) -> None:
        self._bus = bus
        self._presence = presence
        self._cards: dict[tuple[str, str], ModelCard] = {}
        self._named = asyncio.Event()
        self.on_card: Callable[[ModelCard], None] = lambda _: None
        presence.listen(Listener(on_beat=self._look))

    async def run(self) -> None:
        """Fetch cards that beats name and we do not have, until cancelled; one that failed, when it is named again."""
        while True:
            await self._named.wait()
            self._named.clear()
            for key in self._wanted():
                try:
                    card = await get_card(self._bus, *key)
                except (TransportError, UndecodableError) as error:
                    log.warning("card.missing", model=key[0], card=key[1], error=error.message)
                    continue
                self._cards[key] = card
                self.on_card(card)

    def _look(self, peer: Peer) -> None:
        beat = peer.beat
        if isinstance(beat, WorkerLoad) and beat.ready and (beat.model, beat.card) not in self._cards:
            self._named.set()

    def current(self, model: str) -> ModelCard | None:
        """The card that most live workers of a model have; None when the model is not served."""
        return self._cards.get((model, self.live().get(model, "")))

    def all(self) -> list[ModelCard]:
        """Cards of all models that are served, by name."""
        found = (self._cards.get(key) for key in sorted(self.live().items()))
        return [card for card in found if card is not None]

    def live(self) -> dict[str, str]:
        """Of each model that is served, the content hash of the card that most of its live workers have."""
        votes = Counter(
            (peer.beat.model, peer.beat.card)
            for peer in self._presence.live("worker")
            if isinstance(peer.beat, WorkerLoad) and peer.beat.ready
        )
        return {model: card for (model, card), _ in reversed(votes.most_common())}

    def _wanted(self) -> list[tuple[str, str]]:
        return [key for key in self.live().items() if key not in self._cards]


def _key(model: str, card: str) -> str:
    return f"{token(model)}.{card}"
