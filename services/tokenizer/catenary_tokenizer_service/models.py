"""The models this tokenizer can serve: cards that workers published, with tokenizer and parser loaded."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog
from catenary_parsers import FORMATS, UnknownFormat, format_named, markers_of, reasoning_named
from catenary_protocols.bus.messages import ModelCard
from catenary_protocols.errors import TransportError
from catenary_runtime.bus import Bus
from catenary_runtime.models import fetch_model
from catenary_tokenizers import ModelDirectoryError, ModelTokenizer, TurnMemory, load

log = structlog.get_logger()
RETRY_S = 0.5


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model, ready.

    Attributes:
        special: the parser format's markers that are one control token in this vocabulary.
        call_marks: what begins a call, in its format or in another one that it may have been taught.
        thinking_markers: what opens and closes thinking, or None.
        memory: what it really generated, to be spliced into later prompts; None when switched off.
    """

    card: ModelCard
    tokenizer: ModelTokenizer
    special: frozenset[str]
    call_marks: tuple[str, ...]
    thinking_markers: tuple[str, str] | None
    memory: TurnMemory | None


class Models:
    """Loads cards as they appear; `get` is by card, since a model may be served in two versions at once."""

    def __init__(self, bus: Bus, cache: Path, *, memory_bytes: int) -> None:
        self._bus = bus
        self._cache = cache
        self._memory_bytes = memory_bytes
        self._loaded: dict[str, ServedModel] = {}
        self._wanted: asyncio.Queue[ModelCard] = asyncio.Queue()
        self._waiting: dict[str, list[Callable[[], None]]] = {}

    def want(self, card: ModelCard) -> None:
        """Load this card."""
        self._wanted.put_nowait(card)

    def get(self, card: str) -> ServedModel | None:
        """The model of a card, once loaded."""
        return self._loaded.get(card)

    def when_loaded(self, card: str, then: Callable[[], None]) -> None:
        """Call `then` once this card was loaded, or could not be: now, if it is there."""
        if card in self._loaded:
            then()
        else:
            self._waiting.setdefault(card, []).append(then)

    def names(self) -> list[str]:
        """Names of loaded models."""
        return sorted({model.card.model for model in self._loaded.values()})

    async def run(self) -> None:
        """Load what is wanted, until cancelled."""
        while True:
            card = await self._wanted.get()
            if card.card in self._loaded:
                continue
            try:
                directory = await fetch_model(self._bus, card, self._cache)
                self._loaded[card.card] = await asyncio.to_thread(open_model, card, directory, self._memory_bytes)
            except (TransportError, ModelDirectoryError, UnknownFormat, OSError) as error:
                log.warning("model.not_loaded", model=card.model, card=card.card, error=str(error))
                asyncio.get_running_loop().call_later(RETRY_S, self.want, card)
            else:
                log.info("model.loaded", model=card.model, card=card.card, parser=card.parser)
            for then in self._waiting.pop(card.card, ()):
                then()


def open_model(card: ModelCard, directory: Path, memory_bytes: int = 0) -> ServedModel:
    """Load and warm a model directory; raises `ModelDirectoryError`, `UnknownFormat`."""
    tokenizer = load(directory)
    tokenizer.encode("warm", special=False)
    style = format_named(card.parser)
    thinking = reasoning_named(style.reasoning if card.reasoning == "auto" else card.reasoning)
    return ServedModel(
        card=card,
        tokenizer=tokenizer,
        special=markers_of(card.parser, card.reasoning) & tokenizer.control_tokens.keys(),
        call_marks=tuple({*style.open, *(mark for other in FORMATS.values() for mark in other.open)}),
        thinking_markers=(thinking.open[0], thinking.close[0]) if thinking.open else None,
        memory=TurnMemory(tokenizer.table, memory_bytes) if memory_bytes else None,
    )
