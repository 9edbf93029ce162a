"""What is remembered, between tokenizers. The rule: it lives where its session's next turn goes.

When that is another instance, because one came, left or drains, answers and thoughts are sent there and forgotten here.
Nothing is confirmed: of answers, what is lost on the way is encoded anew; thoughts that are lost stay out of prompts.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TypeVar

import structlog
from catenary_protocols.bus.codec import Decoder, encode
from catenary_protocols.bus.messages import CarryMemory, RememberedAnswer
from catenary_protocols.errors import TransportError
from catenary_runtime.bus import Bus
from catenary_runtime.presence import Presence
from catenary_runtime.rendezvous import pick
from catenary_tokenizers import CarriedTurn
from nats.aio.msg import Msg

from catenary_tokenizer_service.metrics import CARRIED, THOUGHTS_CARRIED
from catenary_tokenizer_service.models import Models, ServedModel

log = structlog.get_logger()
BATCH_BYTES = 128 << 10
"""Of ids, or of text, in a message: some milliseconds of its receiver."""
T = TypeVar("T")
_decode = Decoder(CarryMemory)


class Carrier:
    """See the module."""

    def __init__(self, bus: Bus, presence: Presence, models: Models, draining: Callable[[], bool]) -> None:
        self._bus = bus
        self._presence = presence
        self._models = models
        self._draining = draining
        self._known: frozenset[str] = frozenset()
        self._changed = asyncio.Event()

    def watch(self) -> None:
        """Notice that owners came or went."""
        owners = self._owners()
        if owners != self._known:
            self._known = owners
            self._changed.set()

    async def run(self) -> None:
        """Send away what belongs to others whenever owners came or went, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self.settle()

    async def settle(self) -> None:
        """Send away what belongs to others now."""
        owners = self._owners()
        for model in self._models.all():
            leaving: dict[str, set[str]] = defaultdict(set)
            for session in _sessions(model):
                leaving[self._owner(session, owners)].add(session)
            for owner, sessions in leaving.items():
                if owner != self._presence.instance:
                    await self._carry(model, owner, sessions)

    def remembered(self, model: ServedModel, session: str) -> None:
        """A session's turn has ended here: should its next one go elsewhere, so does the memory of it."""
        owner = self._owner(session, self._owners())
        if owner != self._presence.instance:
            for message in _taken(model, {session}):
                self._send(owner, message)

    def on_message(self, msg: Msg) -> None:
        """What is remembered of sessions that are ours now."""
        message = _decode(msg.data)
        model = self._models.get(message.card)
        if model is None or (message.answers and model.memory is None):
            _count(message, "dropped")
            return
        model.thoughts.accept(message.thoughts)
        if model.memory is not None:
            model.memory.accept(map(_turn, message.answers))
        _count(message, "taken")

    def _owners(self) -> frozenset[str]:
        """The instances to which frontends give turns."""
        here = self._presence.instance
        others = {peer.instance for peer in self._presence.live("tokenizer") if peer.takes_work} - {here}
        return frozenset(others if self._draining() else others | {here})

    def _owner(self, session: str, owners: Iterable[str]) -> str:
        return pick(session, owners) or self._presence.instance

    async def _carry(self, model: ServedModel, owner: str, sessions: set[str]) -> None:
        log.info("memory.carried", to=owner, model=model.card.model, sessions=len(sessions))
        for message in _taken(model, sessions):
            self._send(owner, message)
            await asyncio.sleep(0)  # others' tokens come first

    def _send(self, owner: str, message: CarryMemory) -> None:
        try:
            self._bus.publish(self._bus.subjects.to("memory", tokenizer=owner), encode(message))
        except TransportError as error:  # one answer larger than a message
            log.warning("memory.not_carried", to=owner, error=error.message)
            _count(message, "dropped")
        else:
            _count(message, "sent")


def _sessions(model: ServedModel) -> set[str]:
    return model.thoughts.sessions() | (model.memory.sessions() if model.memory else set())


def _taken(model: ServedModel, sessions: Collection[str]) -> list[CarryMemory]:
    """All that is remembered of sessions, in messages; here it is forgotten."""
    card = model.card.card
    answers = map(_answer, model.memory.take(sessions)) if model.memory else ()
    thoughts = model.thoughts.take(sessions)
    return [
        *(CarryMemory(card=card, answers=tuple(batch)) for batch in _batches(answers, lambda one: len(one.generated))),
        *(
            CarryMemory(card=card, answers=(), thoughts=tuple(batch))
            for batch in _batches(thoughts, lambda one: len(one.text.encode()))
        ),
    ]


def _answer(turn: CarriedTurn) -> RememberedAnswer:
    control, tail = turn.opening
    return RememberedAnswer(key=turn.key, control=control, tail=tail, generated=turn.generated, session=turn.session)


def _turn(answer: RememberedAnswer) -> CarriedTurn:
    return CarriedTurn(answer.key, (answer.control, answer.tail), answer.generated, answer.session)


def _count(message: CarryMemory, way: str) -> None:
    CARRIED.labels(way=way).inc(len(message.answers))
    THOUGHTS_CARRIED.labels(way=way).inc(len(message.thoughts))


def _batches(items: Iterable[T], size_of: Callable[[T], int]) -> Iterator[list[T]]:
    """In the same order, each small enough for a message, if an item is."""
    batch: list[T] = []
    size = 0
    for item in items:
        length = size_of(item)
        if batch and size + length > BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += length
    if batch:
        yield batch
