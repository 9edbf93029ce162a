"""A mesh of which a test may kill, freeze and cut off any part: two instances of every service, one broker.

Every process reaches the broker through a proxy of its own, so that it can be cut off alone. A watcher, which no fault
reaches but the broker's, hears all beats, calls and results; tests wait for what it hears, never for time.
"""

import asyncio
import json
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from catenary_protocols.bus.accounts import accounts
from catenary_protocols.bus.codec import Decoder
from catenary_protocols.bus.messages import Beat, WorkerLoad
from catenary_protocols.bus.subjects import Subjects
from catenary_protocols.bus.tool_plane import ToolCall, ToolResult
from catenary_runtime.bus import Bus
from catenary_runtime.testing import NatsServer, Process, Proxy, free_tcp_port, provisioned
from nats.aio.msg import Msg

PATIENCE_S = 30.0
READY_S = 100.0
MODULES = {
    "worker": "catenary_worker",
    "tokenizer": "catenary_tokenizer_service",
    "router": "catenary_router",
    "kv-indexer": "catenary_kv_indexer",
    "tool-dispatch": "catenary_tool_dispatch",
    "frontend": "catenary_frontend",
}
LETTER = "post_letter"
"""A tool that must not run twice; each run leaves the key of its call."""
REGISTRY = """
[[tools]]
name = "post_letter"
command = ["sh", "-c", "echo $CATENARY_CALL_KEY >> {ran}; cat"]
timeout_s = 10
at_most_once = true
schema = {{ type = "object", required = ["to"], properties = {{ to = {{ type = "string" }} }} }}
"""
_beat: Decoder[Beat | WorkerLoad] = Decoder(Beat | WorkerLoad)  # type: ignore[arg-type]  # a union
_call = Decoder(ToolCall, json=True)
_result = Decoder(ToolResult, json=True)


@dataclass(slots=True)
class Part:
    """One process, and its way to the broker."""

    service: str
    name: str
    process: Process
    proxy: Proxy
    url: str

    @property
    def alive(self) -> bool:
        return self.process.process is not None and self.process.process.poll() is None

    def kill(self) -> None:
        """As a crash of the machine would: at once, nothing is said."""
        self.process.signal(signal.SIGKILL)
        assert self.process.process is not None
        self.process.process.wait()

    def freeze(self) -> None:
        self.process.signal(signal.SIGSTOP)

    def wake(self) -> None:
        self.process.signal(signal.SIGCONT)


@dataclass(slots=True)
class Watch:
    """What was heard so far. `until` waits for more."""

    beats: dict[str, Beat | WorkerLoad] = field(default_factory=dict)
    incarnations: Counter[str] = field(default_factory=Counter)
    calls: dict[str, ToolCall] = field(default_factory=dict)
    results: dict[str, list[ToolResult]] = field(default_factory=dict)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def heard(self) -> None:
        self._news.set()

    async def until(self, what: str, told: Callable[[], bool], within_s: float = PATIENCE_S) -> None:
        try:
            async with asyncio.timeout(within_s):
                while not told():
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"never happened: {what}") from None

    def on_beat(self, msg: Msg) -> None:
        beat = _beat(msg.data)
        name = beat.worker if isinstance(beat, WorkerLoad) else beat.instance
        if (before := self.beats.get(name)) is None or before.incarnation < beat.incarnation:
            self.incarnations[name] += 1
        self.beats[name] = beat
        self.heard()

    def on_call(self, msg: Msg) -> None:
        call = _call(msg.data)
        self.calls[call.key] = call
        self.heard()

    def on_result(self, msg: Msg) -> None:
        result = _result(msg.data)
        self.results.setdefault(result.key, []).append(result)
        self.heard()

    def ready(self, name: str) -> bool:
        beat = self.beats.get(name)
        return beat is not None and beat.ready and not beat.draining

    async def holding(self, service: str, turn_id: str) -> str:
        """The instance of a service that has a turn, once its beat says so."""
        await self.until(f"a {service} names the turn", lambda: self.holder(service, turn_id) != "")
        return self.holder(service, turn_id)

    async def later(self, seconds: float, name: str) -> None:
        """Once the beats of this one say that so much time has passed."""
        at = self.beats[name].sent_at
        await self.until(f"beats of {name}", lambda: self.beats[name].sent_at > at + seconds)

    def called(self, turn_id: str) -> bool:
        """Whether a call of a turn was published."""
        return any(call.turn_id == turn_id for call in self.calls.values())

    def named(self, service: str) -> set[str]:
        """Turns that the last beats of a service name."""
        return {live.turn_id for name, beat in self.beats.items() if name.startswith(service) for live in beat.turns}

    def holder(self, service: str, turn_id: str) -> str:
        """The instance of a service whose last beat names a turn, or ""."""
        for name, beat in self.beats.items():
            if name.startswith(service) and any(live.turn_id == turn_id for live in beat.turns):
                return name
        return ""


class Stand:
    """See the module."""

    def __init__(self, folder: Path, server: NatsServer) -> None:
        self.folder = folder
        self.server = server
        self.subjects = Subjects()
        self.parts: dict[str, Part] = {}
        self.watch = Watch()
        self.ran = folder / "letters"
        self.bus = Bus(server.url, self.subjects, "watcher", death_limit=1e9)

    async def start(self, time_scale: float, resumable_s: float) -> None:
        """All of it, ready."""
        await provisioned(self.server.url, self.subjects, [LETTER])
        await self.bus.connect()
        registry = self.folder / "tools.toml"
        registry.write_text(REGISTRY.format(ran=self.ran))
        for subject, handler in (
            (self.subjects.to("beat"), self.watch.on_beat),
            (self.subjects.to("load"), self.watch.on_beat),
            (self.subjects.to("tool_call"), self.watch.on_call),
            (self.subjects.to("tool_result"), self.watch.on_result),
        ):
            await self.bus.subscribe(subject, handler)
        own = {
            "worker": ["--engine-options", json.dumps({"time_scale": time_scale}), "--sim-script=true"],
            "tokenizer": [f"--resumable-s={resumable_s}"],
            "tool-dispatch": ["--registry", str(registry)],
            "frontend": ["--heartbeat-s=1", "--drain-s=3"],
        }
        for service in MODULES:
            for number in (1, 2):
                await self._add(service, f"{service}-{number}", own.get(service, []))
        await self.whole()

    async def _add(self, service: str, name: str, flags: list[str]) -> None:
        port = self._port()
        proxy = Proxy(self.server)
        await proxy.start()
        arguments = [
            *("--instance", name, "--data-dir", str(self.folder / "data")),
            f"--{'port' if service == 'frontend' else 'admin-port'}={port}",
            *flags,
        ]
        process = Process(MODULES[service], arguments, self.folder / f"{name}.log", {"CATENARY_NATS": proxy.url})
        self.parts[name] = Part(service, name, process, proxy, f"http://127.0.0.1:{port}")
        process.start()

    def _port(self) -> int:
        """A free one that no other part was given: those that are still starting do not hold theirs yet."""
        given = {part.url.rpartition(":")[2] for part in self.parts.values()}
        while str(port := free_tcp_port()) in given:
            pass
        return port

    async def start_again(self, *names: str) -> None:
        """Start what was killed, and wait until all of it takes work."""
        before = {name: self.watch.incarnations[name] for name in names}
        for name in names:
            self.parts[name].process.start()
        await self.watch.until(
            f"{names} ready again",
            lambda: all(self.watch.incarnations[one] > before[one] and self.watch.ready(one) for one in names),
        )

    async def whole(self) -> None:
        """Undo every fault: all parts run, are connected and ready."""
        for part in self.parts.values():
            part.proxy.unblock()
            if part.alive:
                part.wake()
        await self.start_again(*(name for name, part in self.parts.items() if not part.alive))
        workers = [name for name, part in self.parts.items() if part.service == "worker"]
        await self.watch.until("everything is ready", lambda: all(map(self.watch.ready, self.parts)), READY_S)
        await self.watch.until(
            "no turn runs", lambda: not any(self.watch.beats[name].turns for name in workers), READY_S
        )

    async def stop(self) -> dict[str, int]:
        """SIGTERM, the edge first; exit codes."""
        codes = {}
        for part in reversed(self.parts.values()):
            codes[part.name] = await asyncio.to_thread(part.process.stop)
        return codes

    async def end(self) -> None:
        """Whatever still runs, at once."""
        await self.bus.close()
        for part in self.parts.values():
            if part.alive:
                part.kill()
            await part.proxy.close()

    def client(self, frontend: str = "frontend-1") -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=None)
        return httpx.AsyncClient(base_url=self.parts[frontend].url, timeout=PATIENCE_S, limits=limits)

    async def stored(self) -> int:
        """How many calls were published; the watcher may have been away when one was."""
        subject = self.subjects.to("tool_call", tool=LETTER)
        info = await self.bus.js.stream_info(self.subjects.tool_stream, subjects_filter=subject)
        return sum((info.state.subjects or {}).values())

    def letters(self) -> Counter[str]:
        """How often each call has run."""
        return Counter(self.ran.read_text().split() if self.ran.exists() else ())


@asynccontextmanager
async def standing(
    folder: Path, time_scale: float = 1.0, *, resumable_s: float = 2.0, advisories: bool = False
) -> AsyncIterator[Stand]:
    """A whole mesh until the end of the block; with `advisories`, its broker tells of connections that end."""
    server = NatsServer(folder / "nats")
    if advisories:
        server.more = {"accounts": accounts(Subjects(), {}, server.password)}
    await asyncio.to_thread(server.start)
    stand = Stand(folder, server)
    try:
        await stand.start(time_scale, resumable_s)
        yield stand
        codes = await stand.stop()
        assert set(codes.values()) == {0}, codes
    finally:
        await stand.end()
        server.kill()
