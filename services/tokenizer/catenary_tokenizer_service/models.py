"""The models this tokenizer can serve: cards that workers published, with tokenizer and parser loaded."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import structlog
from catenary_parsers import FORMATS, UnknownFormat, format_named, markers_of, reasoning_named
from catenary_protocols.bus.messages import ModelCard
from catenary_protocols.errors import TransportError
from catenary_runtime.bus import Bus
from catenary_runtime.models import fetch_model
from catenary_tokenizers import ModelDirectoryError, ModelTokenizer, TurnMemory, load
from catenary_tokenizers.stabilise import BILLING_HEADER, Stabiliser
from catenary_tokenizers.template import Jinja2Engine
from prometheus_client import Counter as Metric

from catenary_tokenizer_service.core.thoughts import Thoughts
from catenary_tokenizer_service.helpers import Helpers
from catenary_tokenizer_service.metrics import REMEMBERED, THOUGHTS
from catenary_tokenizer_service.settings import TokenizerSettings

log = structlog.get_logger()
RETRY_S = 0.5


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """How models are served.

    Attributes:
        memory_bytes: bound of a model's turn memory.
        forgetful: names of models without one.
        thoughts_bytes: bound of what is kept of a model's thoughts.
        thoughtless: names of models of whose thoughts nothing is.
        unshielded: names of models in whose prompts control tokens that callers spell are such.
        stabiliser: takes out of system texts what changes without meaning, and moves back what clients move along.
    """

    memory_bytes: int = 0
    forgetful: frozenset[str] = frozenset()
    thoughts_bytes: int = 0
    thoughtless: frozenset[str] = frozenset()
    unshielded: frozenset[str] = frozenset()
    stabiliser: Stabiliser = field(default_factory=Stabiliser)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model, ready.

    Attributes:
        special: the parser format's markers that are one control token in this vocabulary.
        call_marks: what begins a call, in its format or in another one that it may have been taught.
        thinking_markers: what opens and closes thinking, or None.
        memory: what it really generated, to be spliced into later prompts; None when switched off.
        thoughts: what it thought before calls, to be put back where clients leave it out.
        helpers: processes for what would hold up the loop; without, it is done here.
    """

    card: ModelCard
    directory: Path
    tokenizer: ModelTokenizer
    special: frozenset[str]
    call_marks: tuple[str, ...]
    thinking_markers: tuple[str, str] | None
    memory: TurnMemory | None
    thoughts: Thoughts
    stabiliser: Stabiliser
    helpers: Helpers | None = None

    @property
    def needs_process(self) -> bool:
        """Whether a template of it has no bounds of its own."""
        return self.tokenizer.template.needs_process or self.tokenizer.tool_template.needs_process


class Models:
    """Loads cards as they appear; `get` is by card, since a model may be served in two versions at once."""

    def __init__(self, bus: Bus, cache: Path, helpers: Helpers, options: ModelOptions) -> None:
        self._bus = bus
        self._cache = cache
        self._helpers = helpers
        self._options = options
        self._counted: Counter[tuple[str, str, str]] = Counter()
        self._loaded: dict[str, ServedModel] = {}
        self._refused: dict[str, str] = {}
        self._wanted: asyncio.Queue[ModelCard] = asyncio.Queue()
        self._news: dict[str, asyncio.Event] = {}

    def want(self, card: ModelCard) -> None:
        """Load this card."""
        self._wanted.put_nowait(card)

    def get(self, card: str) -> ServedModel | None:
        """The model of a card, once loaded."""
        return self._loaded.get(card)

    async def news(self, card: str) -> None:
        """Until this card was loaded, or could not be."""
        await self._news.setdefault(card, asyncio.Event()).wait()

    def why_not(self, card: str) -> str:
        """Why a card cannot be served, "" if it can or is not loaded yet."""
        return self._refused.get(card, "")

    def all(self) -> list[ServedModel]:
        """Those that are loaded."""
        return list(self._loaded.values())

    def observe(self) -> None:
        """Bring the metrics of what models remember up to date."""
        for model in self._loaded.values():
            if model.memory is not None:
                self._tell(REMEMBERED, "answers", model.card, model.memory.counts)
            self._tell(THOUGHTS, "thoughts", model.card, model.thoughts.counts)

    def _tell(self, metric: Metric, of: str, card: ModelCard, counts: Mapping[str, int]) -> None:
        for what, count in counts.items():
            counted = of, card.card, what
            metric.labels(model=card.model, what=what).inc(count - self._counted[counted])
            self._counted[counted] = count

    def names(self) -> list[str]:
        """Names of loaded models."""
        return sorted({model.card.model for model in self._loaded.values()})

    async def run(self) -> None:
        """Load what is wanted, until cancelled."""
        while True:
            card = await self._wanted.get()
            if card.card in self._loaded or card.card in self._refused:
                continue
            try:
                directory = await fetch_model(self._bus, card, self._cache)
                opened = asyncio.to_thread(open_model, card, directory, self._options, self._helpers)
                model, _ = await asyncio.gather(opened, self._helpers.warm(directory))
            except (TransportError, OSError) as error:
                log.warning("model.not_loaded", model=card.model, card=card.card, error=str(error))
                asyncio.get_running_loop().call_later(RETRY_S, self.want, card)
            except (ModelDirectoryError, UnknownFormat) as error:  # its card names its content: it stays as it is
                log.error("model.refused", model=card.model, card=card.card, error=str(error))  # noqa: TRY400
                self._refused[card.card] = str(error)
            else:
                log.info("model.loaded", model=card.model, card=card.card, parser=card.parser)
                self._loaded[card.card] = model
            if not any(one.needs_process for one in self._loaded.values()):
                self._helpers.rest()
            if (news := self._news.pop(card.card, None)) is not None:
                news.set()


def options_of(settings: TokenizerSettings) -> ModelOptions:
    """As set."""
    stabiliser = Stabiliser((BILLING_HEADER, *settings.volatile), settings.moved_along)
    return ModelOptions(
        memory_bytes=settings.turn_memory_mb << 20,
        forgetful=frozenset(settings.turn_memory_off),
        thoughts_bytes=settings.thoughts_mb << 20,
        thoughtless=frozenset(settings.thoughts_off),
        unshielded=frozenset(settings.unshielded),
        stabiliser=stabiliser,
    )


def open_model(
    card: ModelCard, directory: Path, options: ModelOptions | None = None, helpers: Helpers | None = None
) -> ServedModel:
    """Load and warm a model directory; raises `ModelDirectoryError`, `UnknownFormat`."""
    options = options or ModelOptions()
    kept = 0 if card.model in options.forgetful else options.memory_bytes
    sandbox = helpers.sandbox if helpers else Jinja2Engine
    tokenizer = load(directory, safe=card.model not in options.unshielded, sandbox=sandbox)
    tokenizer.encode("warm", special=False)
    style = format_named(card.parser)
    thinking = reasoning_named(style.reasoning if card.reasoning == "auto" else card.reasoning)
    return ServedModel(
        card=card,
        directory=directory,
        tokenizer=tokenizer,
        special=markers_of(card.parser, card.reasoning) & tokenizer.control_tokens.keys(),
        call_marks=tuple({*style.open, *(mark for other in FORMATS.values() for mark in other.open)}),
        thinking_markers=(thinking.open[0], thinking.close[0]) if thinking.open else None,
        memory=TurnMemory(tokenizer.table, kept) if kept else None,
        thoughts=Thoughts(0 if card.model in options.thoughtless else options.thoughts_bytes),
        stabiliser=options.stabiliser,
        helpers=helpers,
    )
