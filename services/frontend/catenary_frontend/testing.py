"""For tests: a frontend in this process, and its neighbours as it sees them on the bus. Real broker, real messages."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from catenary_protocols.bus.codec import Decoder, encode
from catenary_protocols.bus.messages import (
    Attach,
    Attached,
    Beat,
    CancelTurn,
    CountTokens,
    EventFrame,
    LiveTurn,
    Message,
    ModelCard,
    Refused,
    TokenCount,
    TurnEvents,
    TurnRequest,
    TurnTaken,
    WorkerLoad,
)
from catenary_protocols.bus.subjects import Subjects
from catenary_protocols.ids import TurnKey
from catenary_protocols.turn_events import TurnEvent
from catenary_runtime.bus import Bus
from catenary_runtime.models import publish_model
from catenary_runtime.presence import Presence
from catenary_runtime.testing import NatsServer, bus_to, free_tcp_port, provisioned
from nats.aio.msg import Msg

from catenary_frontend.service import Frontend
from catenary_frontend.settings import FrontendSettings

Command = TurnRequest | CancelTurn | Attach | CountTokens
_decode: Decoder[Command] = Decoder(Command)  # type: ignore[arg-type]
_decode_beat = Decoder(Beat)
JSON = {"content-type": "application/json"}
CARD = ModelCard(model="org/m", card="c1", context=4096, block_size=16, artifacts={}, created=1)


@dataclass
class ScriptedTokenizer:
    """A tokenizer service as its neighbour sees it.

    Attributes:
        inbox: commands, in the order in which they came.
        beats: beats of frontends.
        refuse: the answer to every request, when set.
        count: the answer to every question for the length of a prompt.
        log: what each turn was told.
        lose: how many of the next frames are lost on their way.
        silent: answers nothing, as one that is frozen.
        slow: lets whoever attaches wait, until `attach` is called.
    """

    bus: Bus
    name: str
    inbox: asyncio.Queue[Command] = field(default_factory=asyncio.Queue)
    beats: asyncio.Queue[Beat] = field(default_factory=asyncio.Queue)
    refuse: Refused | None = None
    count: int | Refused = 0
    log: dict[str, list[TurnEvent]] = field(default_factory=dict)
    to: dict[str, str] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    requests: dict[str, TurnRequest] = field(default_factory=dict)
    lose: int = 0
    silent: bool = False
    slow: bool = False
    frames: int = 0
    _waiting: list[Msg] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.presence = Presence(self.bus, "tokenizer", self.name, self.beat)

    def beat(self) -> Beat:
        """Its live turns."""
        turns = tuple(
            LiveTurn(turn_id=turn, at="w1", events=len(events), to=self.to[turn], attempt=self.attempts[turn])
            for turn, events in self.log.items()
        )
        return Beat(service="tokenizer", instance=self.name, incarnation=self.presence.incarnation, turns=turns)

    async def start(self) -> None:
        """Listen; beat once."""
        await self.bus.subscribe(self.bus.subjects.to("turn", tokenizer=self.name), self._on_command)
        await self.bus.subscribe(
            self.bus.subjects.to("beat", service="frontend"), lambda msg: self.beats.put_nowait(_decode_beat(msg.data))
        )
        await self.presence.start()
        self.presence.tick()

    def _on_command(self, msg: Msg) -> None:
        command = _decode(msg.data)
        answer: Message | None = None
        if isinstance(command, TurnRequest):
            turn = command.turn.turn_id
            self.to[turn] = command.frontend
            self.attempts[turn] = command.turn.attempt
            self.requests[turn] = command
            answer = self.refuse
            if answer is None:
                self.log.setdefault(turn, [])
                answer = TurnTaken(turn=command.turn, tokenizer=self.name, incarnation=self.presence.incarnation)
        elif isinstance(command, CancelTurn):
            self.log.pop(command.turn.turn_id, None)
        elif isinstance(command, CountTokens):
            answer = TokenCount(tokens=self.count) if isinstance(self.count, int) else self.count
        elif command.turn_id in self.log and command.look:
            turn, last = command.turn_id, len(self.log[command.turn_id])
            answer = Attached(turn=self._key(turn), tokenizer=self.name, last=last, request=self.requests[turn])
        elif self.slow:
            self._waiting.append(msg)
        elif command.turn_id in self.log:
            self.to[command.turn_id] = command.frontend
            last = len(self.log[command.turn_id])
            answer = Attached(turn=self._key(command.turn_id), tokenizer=self.name, last=last)
            self._send(command.turn_id, command.after + 1)
        if answer is not None and msg.reply and not self.silent:
            self.bus.publish(msg.reply, encode(answer))
        self.inbox.put_nowait(command)

    def attach(self) -> None:
        """Let those that wait attach now."""
        self.slow, waiting = False, self._waiting
        self._waiting = []
        for msg in waiting:
            self._on_command(msg)

    def _key(self, turn: str) -> TurnKey:
        return TurnKey(turn_id=turn, attempt=self.attempts[turn])

    def say(self, turn: str, *events: TurnEvent) -> None:
        """Add events to a turn's log and send them, unless they are to be lost on the way."""
        first = len(self.log[turn]) + 1
        self.log[turn] += events
        if self.lose:
            self.lose -= 1
        else:
            self._send(turn, first)

    def _send(self, turn: str, first: int) -> None:
        self.frames += 1
        events = tuple(self.log[turn][first - 1 :])
        item = TurnEvents(turn_id=turn, first=first, events=events, attempt=self.attempts[turn])
        frame = EventFrame(
            tokenizer=self.name, incarnation=self.presence.incarnation, number=self.frames, items=(item,)
        )
        self.bus.publish(self.bus.subjects.to("events", frontend=self.to[turn]), encode(frame))

    async def request(self) -> TurnRequest:
        """The next turn that is asked for; other commands before it are dropped."""
        while True:
            command = await self.inbox.get()
            if isinstance(command, TurnRequest):
                return command

    async def cancelled(self) -> CancelTurn:
        """The next cancel; other commands before it are dropped."""
        while True:
            command = await self.inbox.get()
            if isinstance(command, CancelTurn):
                return command


@dataclass
class Stand:
    """A running frontend with one model, and an HTTP client to it."""

    server: NatsServer
    subjects: Subjects
    frontend: Frontend
    http: httpx.AsyncClient
    url: str

    @asynccontextmanager
    async def tokenizer(self, name: str = "t1") -> AsyncIterator[ScriptedTokenizer]:
        """A tokenizer that beats until the end of the block, then is silent at once."""
        async with bus_to(self.server, name, self.subjects) as bus, asyncio.TaskGroup() as tasks:
            peer = ScriptedTokenizer(bus, name)
            await peer.start()
            beating = tasks.create_task(peer.presence.run())
            await self.until(lambda: self.frontend.presence.get("tokenizer", name) is not None)
            yield peer
            beating.cancel()

    async def until(self, true: Callable[[], bool]) -> None:
        """Look after every message that the loop handles until it is true; the test's own timeout is the limit."""
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@asynccontextmanager
async def running_frontend(server: NatsServer, subjects: Subjects, **settings: Any) -> AsyncIterator[Stand]:
    """A frontend on a free port, once it knows the model `org/m`."""
    port = free_tcp_port()
    options: dict[str, Any] = {"death_limit_s": 0.6, "beat_s": 0.1, **settings}
    frontend = Frontend(FrontendSettings(nats=server.url, namespace=subjects.namespace, port=port, **options))
    await provisioned(server.url, subjects)
    async with bus_to(server, "w1", subjects) as bus, asyncio.TaskGroup() as tasks:
        living = tasks.create_task(frontend.live())
        await publish_model(bus, CARD, Path())
        worker = Presence(bus, "worker", "w1", lambda: _load(worker.incarnation))
        await worker.start()
        beating = tasks.create_task(worker.run())
        url = f"http://127.0.0.1:{port}"
        try:
            async with httpx.AsyncClient(base_url=url, headers=JSON, timeout=20) as http:
                stand = Stand(server, subjects, frontend, http, url)
                await stand.until(lambda: bool(frontend.catalog.cards()))
                await stand.until(lambda: http_listens(port))
                yield stand
        finally:
            frontend.stopping.set()
            await living
            beating.cancel()


def _load(incarnation: int) -> WorkerLoad:
    return WorkerLoad(worker="w1", incarnation=incarnation, model=CARD.model, card=CARD.card, block_size=16)


def http_listens(port: int) -> bool:
    """Whether something accepts connections there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
