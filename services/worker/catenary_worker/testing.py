"""For tests: a tokenizer as a worker sees it, on the real bus, and a worker in this process."""

import asyncio
import secrets
import time
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from catenary_protocols.bus.codec import Decoder, encode
from catenary_protocols.bus.messages import (
    Beat,
    CancelTurn,
    LiveTurn,
    Message,
    Refused,
    ResendTokens,
    RunTurn,
    TokenFrame,
    TurnAdmitted,
    TurnTokens,
    WorkerLoad,
)
from catenary_protocols.bus.subjects import Subjects
from catenary_protocols.conversation import Sampling
from catenary_protocols.ids import TurnKey, new_turn_id
from catenary_runtime.bus import Bus
from catenary_runtime.presence import AnyBeat, Listener, Peer, Presence
from catenary_runtime.testing import NatsServer
from nats.aio.msg import Msg

from catenary_worker.service import WorkerService
from catenary_worker.settings import WorkerSettings

PATIENCE_S = 20.0
BEAT_S = 0.05
DEATH_LIMIT_S = 1.0
_decode_frame = Decoder(TokenFrame)
_decode_answer: Decoder[TurnAdmitted | Refused] = Decoder(TurnAdmitted | Refused)  # type: ignore[arg-type]


def new_key(attempt: int = 0) -> TurnKey:
    """A turn nobody has."""
    return TurnKey(turn_id=new_turn_id(time.time_ns() // 1_000_000, secrets.token_bytes(10)), attempt=attempt)


class TokenizerPeer:
    """Beats, runs turns, keeps every frame.

    Attributes:
        lists: turns its beats list; a turn that is run is listed until it is taken out.
        got: ids by turn and attempt, in the order in which they came first.
        ends: the last item of each.
    """

    def __init__(self, url: str, subjects: Subjects, name: str = "tok-1") -> None:
        self.name = name
        self.bus = Bus(url, subjects, name, death_limit=1e9)
        self.presence = Presence(self.bus, "tokenizer", name, self._beat, interval=BEAT_S, death_limit=DEATH_LIMIT_S)
        self.lists: dict[TurnKey, str] = {}
        self.got: dict[TurnKey, dict[int, int]] = {}
        self.firsts: dict[TurnKey, TurnTokens] = {}
        self.ends: dict[TurnKey, TurnTokens] = {}
        self.frames: list[TokenFrame] = []
        self.loads: dict[str, WorkerLoad] = {}
        self.ended: set[TurnKey] = set()
        self.down: list[str] = []
        self.renewed: list[str] = []
        self._made = 0
        self._news = asyncio.Condition()
        self._pending: set[asyncio.Task[None]] = set()
        self._beating: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Connect, listen, beat."""
        await self.bus.connect()
        await self.bus.subscribe(self.bus.subjects.to("tokens", tokenizer=self.name), self._on_frame)
        self.presence.listen(Listener(on_beat=self._on_load, on_down=self._on_down, on_renewed=self._on_renewed))
        await self.presence.start(("worker",))
        self.beat()

    def beat(self) -> None:
        """Go on beating."""
        self._beating = asyncio.get_running_loop().create_task(self.presence.run())

    async def hush(self) -> None:
        """Beat no more, as if dead."""
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.wait([self._beating])

    async def close(self) -> None:
        """Leave."""
        await self.hush()
        await self.bus.close()

    # --- what it does -------------------------------------------------------------------------------------------

    def run_turn(self, worker: str, key: TurnKey, prompt: bytes | list[int], **more: Any) -> RunTurn:
        """The message that runs a turn there; the worker must have been heard of."""
        load = self.loads[worker]
        ids = prompt if isinstance(prompt, bytes) else array("I", prompt).tobytes()
        fields: dict[str, Any] = {
            "turn": key,
            "tokenizer": self.name,
            "tokenizer_incarnation": self.presence.incarnation,
            "model": load.model,
            "card": load.card,
            "prompt": ids,
            "sampling": Sampling(max_tokens=16, ignore_eos=True),
        }
        return RunTurn(**(fields | more))

    async def run(
        self, worker: str, prompt: bytes | list[int], *, key: TurnKey | None = None, trace: str = "", **more: Any
    ) -> TurnKey:
        """Run a turn; it must be admitted. Listed in beats from now on."""
        key = key or new_key()
        answer = await self.ask(worker, self.run_turn(worker, key, prompt, **more), trace)
        assert isinstance(answer, TurnAdmitted), answer  # noqa: S101
        return key

    async def ask(self, worker: str, run: RunTurn, trace: str = "") -> TurnAdmitted | Refused:
        """Ask for a turn; the worker's answer."""
        self.lists[run.turn] = worker
        headers = {"traceparent": trace} if trace else None
        subject = self.bus.subjects.to("do", worker=worker)
        data = await self.bus.request(subject, encode(run), within=PATIENCE_S, headers=headers)
        answer = _decode_answer(data)
        if isinstance(answer, Refused):
            self.lists.pop(run.turn, None)
        return answer

    def do(self, worker: str, message: Message) -> None:
        """A command without an answer."""
        self.bus.publish(self.bus.subjects.to("do", worker=worker), encode(message))

    def cancel(self, worker: str, key: TurnKey) -> None:
        """Cancel an attempt, and list it no more."""
        self.lists.pop(key, None)
        self.do(worker, CancelTurn(turn=key))

    def resend(self, worker: str, key: TurnKey, offset: int = 0) -> None:
        """Ask for tokens again."""
        self.do(worker, ResendTokens(turn=key, tokenizer=self.name, offset=offset))

    # --- what it sees -------------------------------------------------------------------------------------------

    def ids(self, key: TurnKey) -> list[int]:
        """Ids of an attempt, by offset; asserts that there is no hole."""
        got = self.got.get(key, {})
        first = min(got, default=0)
        assert sorted(got) == list(range(first, first + len(got))), "a hole in the offsets"  # noqa: S101
        return [got[offset] for offset in sorted(got)]

    async def until(self, ready: Callable[[], bool]) -> None:
        """Wait for something that a frame or a beat brings."""
        async with asyncio.timeout(PATIENCE_S), self._news:
            await self._news.wait_for(ready)

    async def beats(self, count: int) -> None:
        """So many more of its beats are due, whether the broker is there or not."""
        goal = self._made + count
        await self.until(lambda: self._made >= goal)

    async def until_end(self, key: TurnKey) -> TurnTokens:
        """The last item of an attempt."""
        await self.until(lambda: key in self.ends)
        return self.ends[key]

    async def until_ready(self, worker: str) -> WorkerLoad:
        """The worker takes turns."""
        await self.until(lambda: worker in self.loads and self.loads[worker].ready)
        return self.loads[worker]

    def _beat(self) -> Beat:
        self._made += 1
        self._tell()
        turns = tuple(
            LiveTurn(
                turn_id=key.turn_id, attempt=key.attempt, at=worker, offset=max(self.got.get(key, {}), default=-1) + 1
            )
            for key, worker in self.lists.items()
        )
        return Beat(
            service="tokenizer",
            instance=self.name,
            incarnation=self.presence.incarnation,
            turns=turns,
            sent_at=time.time(),
        )

    def _on_frame(self, msg: Msg) -> None:
        frame = _decode_frame(msg.data)
        self.frames.append(frame)
        for item in frame.items:
            key = TurnKey(turn_id=item.turn_id, attempt=item.attempt)
            got = self.got.setdefault(key, {})
            self.firsts.setdefault(key, item)
            for at, token in enumerate(array("I", item.tokens)):
                assert got.setdefault(item.offset + at, token) == token, "a token changed"  # noqa: S101
            if item.finish:
                self.ends[key] = item
        self._tell()

    def _on_load(self, peer: Peer) -> None:
        beat: AnyBeat = peer.beat
        if isinstance(beat, WorkerLoad):
            self.loads[beat.worker] = beat
            self.ended.update(beat.ended)
            self._tell()

    def _on_down(self, peer: Peer) -> None:
        self.loads.pop(peer.instance, None)
        self.down.append(peer.instance)
        self._tell()

    def _on_renewed(self, _: Peer, new: Peer) -> None:
        if new.service == "worker":
            self.renewed.append(new.instance)
            self._tell()

    def _tell(self) -> None:
        task = asyncio.get_running_loop().create_task(self._notify())
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)

    async def _notify(self) -> None:
        async with self._news:
            self._news.notify_all()


def worker_settings(server: NatsServer, subjects: Subjects, instance: str, **more: Any) -> WorkerSettings:
    """Quick beats, and a simulator as fast as the machine."""
    fields: dict[str, Any] = {
        "nats": server.url,
        "namespace": subjects.namespace,
        "instance": instance,
        "beat_s": BEAT_S,
        "death_limit_s": DEATH_LIMIT_S,
        "engine_options": '{"time_scale": 0}',
    }
    return WorkerSettings(**(fields | more))


@asynccontextmanager
async def running_worker(settings: WorkerSettings) -> AsyncIterator[WorkerService]:
    """A worker in this process, from connect to disconnect; streams and buckets must be there."""
    service = WorkerService(settings)
    living = asyncio.create_task(service.live())
    try:
        yield service
    finally:
        service.stopping.set()
        async with asyncio.timeout(PATIENCE_S):
            await living


@asynccontextmanager
async def tokenizer_peer(server: NatsServer, subjects: Subjects, name: str = "tok-1") -> AsyncIterator[TokenizerPeer]:
    """A peer that beats."""
    peer = TokenizerPeer(server.url, subjects, name)
    await peer.start()
    try:
        yield peer
    finally:
        await peer.close()
