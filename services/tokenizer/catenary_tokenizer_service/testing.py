"""The tokenizer's neighbours as a test plays them: real messages on a real broker, each step in the test's hands."""

import asyncio
import secrets
import struct
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from catenary_protocols.bus.codec import Decoder, encode
from catenary_protocols.bus.messages import (
    Attach,
    Beat,
    CancelPlace,
    CancelTurn,
    EventFrame,
    LiveTurn,
    Message,
    ModelCard,
    Placement,
    PlaceTurn,
    Retain,
    RunTurn,
    TokenFrame,
    TurnAdmitted,
    TurnRequest,
    TurnTokens,
    WorkerLoad,
)
from catenary_protocols.conversation import Conversation, Sampling, TextPart, UserMessage
from catenary_protocols.ids import TurnKey, new_turn_id
from catenary_protocols.turn_events import TurnEvent
from catenary_runtime.bus import Bus
from catenary_runtime.models import card_hash, hash_files, publish_model
from catenary_runtime.testing import NatsServer, provisioned
from nats.aio.msg import Msg

from catenary_tokenizer_service.service import TokenizerService
from catenary_tokenizer_service.settings import TokenizerSettings

ROUTER, FRONTEND, TOKENIZER = "router-t", "frontend-t", "tokenizer-t"
_any: Decoder[Message] = Decoder(
    RunTurn | CancelTurn | Retain | PlaceTurn | CancelPlace | EventFrame | Attach  # type: ignore[arg-type]
)


def asking(*texts: str, **more: Any) -> Conversation:
    """A conversation of what a user said; `more`: its other fields."""
    return Conversation(messages=tuple(UserMessage(parts=(TextPart(text=text),)) for text in texts), **more)


def turn_request(conversation: Conversation, **more: Any) -> TurnRequest:
    """A new turn of `FRONTEND` for the model `m`; `more`: fields that are otherwise."""
    now = time.time()
    fields: dict[str, Any] = {
        "turn": TurnKey(turn_id=new_turn_id(int(now * 1000), secrets.token_bytes(10))),
        "frontend": FRONTEND,
        "frontend_incarnation": 1,
        "model": "m",
        "session": "s",
        "conversation": conversation,
        "sampling": Sampling(),
        "arrived_at": now,
    }
    return TurnRequest(**{**fields, **more})


@dataclass(eq=False)
class Peers:
    """See the module. `placements` decides where a turn goes; default: the first of `workers`.

    `routers` place turns; those that are `silent` neither beat nor answer.
    `cards`: what a worker serves, where that is not the first card.
    """

    bus: Bus
    card: ModelCard
    workers: dict[str, int] = field(default_factory=lambda: {"w1": 1, "w2": 1})
    routers: tuple[str, ...] = (ROUTER,)
    cards: dict[str, ModelCard] = field(default_factory=dict)
    events: dict[str, list[TurnEvent]] = field(default_factory=dict)
    seen: list[Message] = field(default_factory=list)
    live: dict[str, tuple[LiveTurn, ...]] = field(default_factory=dict)
    frontend_turns: tuple[LiveTurn, ...] = ()
    frontend_incarnation: int = 1
    router: Callable[[PlaceTurn], Message | None] | None = None
    admits: bool = True
    frames: dict[str, int] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    silent: set[str] = field(default_factory=set)

    async def start(self) -> None:
        """Subscribe."""
        subjects = self.bus.subjects
        await self.bus.subscribe(subjects.to("place"), self._place)
        await self.bus.subscribe(subjects.to("events", frontend=FRONTEND), self._frame)
        await self.bus.subscribe(subjects.to("do"), self._do)

    async def beats(self) -> None:
        """Beat for all who are not silent, until cancelled."""
        while True:
            self.beat()
            await asyncio.sleep(0.05)

    def beat(self) -> None:
        """One beat of each."""
        to = self.bus.subjects.to
        routers = [("router", name, ()) for name in self.routers]
        for service, name, turns in (*routers, ("frontend", FRONTEND, self.frontend_turns)):
            if name not in self.silent:
                incarnation = self.frontend_incarnation if service == "frontend" else 1
                beat = Beat(service=service, instance=name, incarnation=incarnation, turns=turns, sent_at=time.time())
                self.bus.publish(to("beat", service=service, instance=name), encode(beat))
        for worker, incarnation in self.workers.items():
            if worker not in self.silent:
                card = self.cards.get(worker, self.card)
                load = WorkerLoad(
                    worker=worker,
                    incarnation=incarnation,
                    model=card.model,
                    card=card.card,
                    block_size=card.block_size,
                    turns=self.live.get(worker, ()),
                )
                self.bus.publish(to("load", worker=worker), encode(load))

    async def submit(self, request: TurnRequest, to: str = TOKENIZER) -> bytes:
        """The tokenizer's answer to a request."""
        subject = self.bus.subjects.to("turn", tokenizer=to)
        return await self.bus.request(subject, encode(request), within=5)

    def tell(self, message: Message) -> None:
        """A command without an answer."""
        self.bus.publish(self.bus.subjects.to("turn", tokenizer=TOKENIZER), encode(message))

    def tokens(self, worker: str, turn_id: str, ids: bytes, *, to: str = TOKENIZER, **item: object) -> None:
        """One frame with one item."""
        link = f"{worker} {to}"
        number = self.frames[link] = self.frames.get(link, 0) + 1
        one = TurnTokens(turn_id=turn_id, tokens=ids, **item)  # type: ignore[arg-type]
        frame = TokenFrame(worker=worker, incarnation=self.workers[worker], number=number, items=(one,))
        self.bus.publish(self.bus.subjects.to("tokens", tokenizer=to), encode(frame))

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something that arrived makes it true."""
        async with asyncio.timeout(10):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    def of(self, kind: type[Message]) -> list[Message]:
        """All of a kind that arrived, in order."""
        return [message for message in self.seen if isinstance(message, kind)]

    async def run_of(self, turn_id: str, attempt: int = 0) -> RunTurn:
        """The `RunTurn` of an attempt, once it is there."""

        def find() -> RunTurn | None:
            for message in self.seen:
                if isinstance(message, RunTurn) and message.turn.turn_id == turn_id and message.turn.attempt == attempt:
                    return message
            return None

        while (found := find()) is None:
            await self.until(lambda: find() is not None)
        return found

    def _place(self, msg: Msg) -> None:
        message = _any(msg.data)
        self._note(message)
        router = (self.bus.subjects.match("place", msg.subject) or {})["router"]
        if isinstance(message, PlaceTurn) and router not in self.silent:
            answer = self.router(message) if self.router else self.placed(message, router)
            if answer is not None:
                self.bus.publish(msg.reply, encode(answer))

    def placed(self, message: PlaceTurn, router: str = ROUTER) -> Placement:
        """On the first worker that has not failed the turn."""
        worker = next(one for one in self.workers if one not in message.not_on)
        return Placement(
            turn=message.turn,
            router=router,
            router_incarnation=1,
            worker=worker,
            worker_incarnation=self.workers[worker],
        )

    def _do(self, msg: Msg) -> None:
        message = _any(msg.data)
        names = self.bus.subjects.match("do", msg.subject) or {}
        if isinstance(message, RunTurn) and msg.reply and self.admits and names["worker"] not in self.silent:
            admitted = TurnAdmitted(turn=message.turn, worker=names["worker"], incarnation=1)
            self.bus.publish(msg.reply, encode(admitted))
        self._note(message)

    def _frame(self, msg: Msg) -> None:
        frame = _any(msg.data)
        for item in frame.items if isinstance(frame, EventFrame) else ():
            log = self.events.setdefault(item.turn_id, [])
            if item.first <= len(log) + 1:
                log.extend(item.events[len(log) + 1 - item.first :])
        self.changed.set()

    def _note(self, message: Message) -> None:
        self.seen.append(message)
        self.changed.set()


@asynccontextmanager
async def owner_among(
    server: NatsServer, bus: Bus, directory: Path, data: Path, *, context: int = 4096, guides: bool = True
) -> AsyncIterator[tuple[TokenizerService, Peers]]:
    """A tokenizer that serves the model of a directory, or has refused it, with its neighbours."""
    await provisioned(server.url, bus.subjects)
    artifacts = hash_files(directory)
    digest = card_hash(artifacts, 16, context)
    card = ModelCard(
        model="m", card=digest, context=context, block_size=16, artifacts=artifacts, parser="hermes", guides=guides
    )
    await publish_model(bus, card, directory)
    peers = Peers(bus, card)
    await peers.start()
    beating = asyncio.create_task(peers.beats())
    async with owner(server, peers, data) as service:
        yield service, peers
    beating.cancel()


@asynccontextmanager
async def owner(
    server: NatsServer, peers: Peers, data: Path, name: str = TOKENIZER, **more: object
) -> AsyncIterator[TokenizerService]:
    """One more tokenizer for the same neighbours; `more` are settings."""
    fields: dict[str, object] = {
        "nats": server.url,
        "namespace": peers.bus.subjects.namespace,
        "instance": name,
        "data_dir": str(data),
        "beat_s": 0.05,
        "death_limit_s": 0.5,
        "drain_s": 0.1,
    }
    service = TokenizerService(TokenizerSettings(**{**fields, **more}))  # type: ignore[arg-type]
    living = asyncio.create_task(service.live())
    async with asyncio.timeout(30):
        while not (  # noqa: ASYNC110  # the service has no event for "ready"; bounded above
            (service.models.names() or service.models.why_not(peers.card.card))
            and service.presence.get("router", ROUTER)
        ):
            await asyncio.sleep(0.01)
    try:
        yield service
    finally:
        service.stopping.set()
        await living


def u32(*ids: int) -> bytes:
    """Token ids as they travel."""
    return struct.pack(f"<{len(ids)}I", *ids)
