"""Turn memory between tokenizers. The rule: a remembered answer lives where its session's next turn goes.

When that is another instance, because one came, left or drains, the answer is sent there and forgotten here. Nothing
is confirmed: what is lost on the way is encoded anew.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

import structlog
from catenary_protocols.bus.codec import Decoder, encode
from catenary_protocols.bus.messages import CarryMemory, RememberedAnswer
from catenary_protocols.errors import TransportError
from catenary_runtime.bus import Bus
from catenary_runtime.presence import Presence
from catenary_runtime.rendezvous import pick
from catenary_tokenizers import CarriedTurn
from nats.aio.msg import Msg

from catenary_tokenizer_service.metrics import CARRIED
from catenary_tokenizer_service.models import Models, ServedModel

log = structlog.get_logger()
BATCH_BYTES = 128 << 10
"""Of ids in a message: some milliseconds of its receiver."""
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
            for session in model.memory.sessions() if model.memory else ():
                leaving[self._owner(session, owners)].add(session)
            for owner, sessions in leaving.items():
                if owner != self._presence.instance:
                    await self._carry(model, owner, sessions)

    def remembered(self, model: ServedModel, session: str) -> None:
        """A session's turn has ended here: should its next one go elsewhere, so does the memory of it."""
        owner = self._owner(session, self._owners())
        if owner != self._presence.instance and model.memory is not None:
            for batch in _batches(model.memory.take({session})):
                self._send(model, owner, batch)

    def on_message(self, msg: Msg) -> None:
        """Answers of sessions that are ours now."""
        message = _decode(msg.data)
        model = self._models.get(message.card)
        if model is None or model.memory is None:
            CARRIED.labels(way="dropped").inc(len(message.answers))
            return
        model.memory.accept(
            CarriedTurn(answer.key, (answer.control, answer.tail), answer.generated, answer.session)
            for answer in message.answers
        )
        CARRIED.labels(way="taken").inc(len(message.answers))

    def _owners(self) -> frozenset[str]:
        """The instances to which frontends give turns."""
        here = self._presence.instance
        others = {peer.instance for peer in self._presence.live("tokenizer") if peer.takes_work} - {here}
        return frozenset(others if self._draining() else others | {here})

    def _owner(self, session: str, owners: Iterable[str]) -> str:
        return pick(session, owners) or self._presence.instance

    async def _carry(self, model: ServedModel, owner: str, sessions: set[str]) -> None:
        if model.memory is None:
            return
        turns = model.memory.take(sessions)
        log.info("memory.carried", to=owner, model=model.card.model, sessions=len(sessions), answers=len(turns))
        for batch in _batches(turns):
            self._send(model, owner, batch)
            await asyncio.sleep(0)  # others' tokens come first

    def _send(self, model: ServedModel, owner: str, turns: Iterable[CarriedTurn]) -> None:
        answers = tuple(
            RememberedAnswer(
                key=turn.key,
                control=turn.opening[0],
                tail=turn.opening[1],
                generated=turn.generated,
                session=turn.session,
            )
            for turn in turns
        )
        message = encode(CarryMemory(card=model.card.card, answers=answers))
        try:
            self._bus.publish(self._bus.subjects.to("memory", tokenizer=owner), message)
        except TransportError as error:  # one answer larger than a message
            log.warning("memory.not_carried", to=owner, error=error.message)
            CARRIED.labels(way="dropped").inc(len(answers))
        else:
            CARRIED.labels(way="sent").inc(len(answers))


def _batches(turns: Iterable[CarriedTurn]) -> Iterator[list[CarriedTurn]]:
    """In the same order, each small enough for a message, if an answer is."""
    batch: list[CarriedTurn] = []
    size = 0
    for turn in turns:
        if batch and size + len(turn.generated) > BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(turn)
        size += len(turn.generated)
    if batch:
        yield batch
