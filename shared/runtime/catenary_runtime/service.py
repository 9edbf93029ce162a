"""The life of a service: settings, logs, traces, bus, beats, admin port, ready, drain, exit.

A service is a subclass with `start` (subscribe, make tasks), `beat` (what it tells of itself) and `drain` (finish what
runs). `run` is its main. One supervisor stands around it all: a task that fails takes the process down with exit code
1, and whoever started it starts it again.
"""

import asyncio
import gc
import os
import secrets
import signal
import sys
import time
from collections.abc import Coroutine, Sequence
from importlib.metadata import version
from typing import Any, ClassVar, Generic, TypeVar

import nats.micro
import structlog
import uvloop
from catenary_protocols.bus.messages import Beat
from catenary_protocols.bus.permissions import inbox
from catenary_protocols.bus.subjects import Subjects
from catenary_protocols.errors import CatenaryError

from catenary_runtime import logging, telemetry
from catenary_runtime.bus import Bus
from catenary_runtime.config import ConfigError, Settings, load
from catenary_runtime.health import EmbeddedServer, Health, admin_app, server_for
from catenary_runtime.metrics import BUILD, TASKS
from catenary_runtime.presence import AnyBeat, Presence
from catenary_runtime.tls import broker_tls

S = TypeVar("S", bound=Settings)
log = structlog.get_logger()

CANCEL_AGAIN_S = 10.0
"""After which a cancelled task that still runs is cancelled again: `wait_for` of Python 3.11, and nats-py with it,
loses a cancellation that comes at the moment when what was waited for is there. Nothing takes so long to tidy up."""


class Service(Generic[S]):
    """Base of the six services.

    Attributes:
        name: as in subjects (`kv-indexer`).
        section: as in files and variables (`kv_indexer`).
        package: the distribution's name.
        watches: services whose beats are wanted.
    """

    name: ClassVar[str]
    section: ClassVar[str]
    package: ClassVar[str]
    watches: ClassVar[tuple[str, ...]] = ()

    def __init__(self, settings: S) -> None:
        self.settings = settings
        self.instance = settings.instance or f"{self.name}-{secrets.token_hex(4)}"
        self.health = Health(self.name)
        self.subjects = Subjects(settings.namespace)
        self.version = version(self.package)
        self.stopping = asyncio.Event()
        self.bus = Bus(
            settings.nats,
            self.subjects,
            self.instance,
            death_limit=settings.death_limit_s,
            inbox=inbox(self.name, self.instance),
            tls=broker_tls(settings),
        )
        self.presence = Presence(
            self.bus,
            self.name,
            self.instance,
            self.beat,
            interval=settings.beat_s,
            death_limit=settings.death_limit_s,
        )
        self._tasks: asyncio.TaskGroup | None = None
        self._owned: set[asyncio.Task[None]] = set()
        self._server: EmbeddedServer | None = None

    # --- what a service defines ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Subscribe and make tasks. The bus is connected, beats have not begun."""

    async def drain(self) -> None:
        """Stop taking work and finish what runs; cancelled after `drain_s`."""

    async def stop(self) -> None:
        """Let go of what is held. The bus is still connected."""

    def beat(self) -> AnyBeat:
        """What to tell of ourselves; services add tails and live turns."""
        return self.plain_beat()

    def takes_work(self) -> bool:
        """What the beat says of it: by itself, whether all checks are good."""
        return self.health.ready()[0]

    def app(self) -> Any:
        """The ASGI app of the admin port."""
        return admin_app(self.health)

    def http_port(self) -> int:
        """The port to serve `app` on; 0 picks a free one."""
        return self.settings.admin_port

    def http_options(self) -> dict[str, Any]:
        """More for uvicorn."""
        return {}

    # --- what a service uses ------------------------------------------------------------------------------------

    @property
    def incarnation(self) -> int:
        """Our incarnation, ms."""
        return self.presence.incarnation

    @property
    def draining(self) -> bool:
        """Asked to stop."""
        return self.health.stopping

    def plain_beat(self, **more: Any) -> Beat:
        """A beat with the fields every service fills."""
        return Beat(
            service=self.name,
            instance=self.instance,
            incarnation=self.presence.incarnation,
            ready=self.takes_work(),
            draining=self.draining,
            sent_at=time.time(),
            warning=self.health.warning(),
            **more,
        )

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """A task the service owns: it ends with the service, and its failure ends the service."""
        if self._tasks is None:
            raise RuntimeError("spawn before start")
        task = self._tasks.create_task(work, name=name)
        self._owned.add(task)
        task.add_done_callback(self._owned.discard)
        return task

    # --- the life -----------------------------------------------------------------------------------------------

    async def live(self) -> None:
        """From connect to disconnect."""
        loop = asyncio.get_running_loop()
        TASKS.set_function(lambda: len(asyncio.all_tasks(loop)))
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stopping.set)
        self.health.checks["bus"] = lambda: (self.bus.connected, "connected" if self.bus.connected else "no broker")
        await self.bus.connect()
        try:
            await nats.micro.add_service(
                self.bus.nc,
                name=f"catenary-{self.name}",
                version=self.version,
                description=type(self).__doc__ or self.name,
                metadata={"instance": self.instance, "namespace": self.settings.namespace},
            )
            async with asyncio.TaskGroup() as self._tasks:
                try:
                    await self._begin()
                    await self.stopping.wait()
                    await self._leave()
                finally:
                    self._cancel_tasks()
        finally:
            if self._server is not None:
                self._server.close()
            await self.bus.close()
            telemetry.shutdown()
            log.info("service.stopped")

    async def _begin(self) -> None:
        await self.presence.start(self.watches)
        await self.start()
        self._server = server_for(self.app(), self.settings.host, self.http_port(), **self.http_options())
        self._http = self.spawn(self._server.serve(), "http")
        port = await self._server.started_on()
        self._beats = self.spawn(self.presence.run(), "beats")
        _raise_if_cancelled()
        log.info("service.started", http=f"http://{self.settings.host}:{port}", incarnation=self.incarnation)

    async def _leave(self) -> None:
        self.health.stopping = True
        self.presence.beat_soon()
        log.info("service.draining", limit_s=self.settings.drain_s)
        try:
            async with asyncio.timeout(self.settings.drain_s):
                await self.drain()
        except TimeoutError:
            log.warning("service.drain_cut")
        await self.stop()
        self._beats.cancel()
        if self._server is not None:
            self._server.leave()
        await self._http

    def _cancel_tasks(self) -> None:
        for task in self._owned:
            task.cancel()
        if self._owned:
            asyncio.get_running_loop().call_later(CANCEL_AGAIN_S, self._cancel_tasks)


def _raise_if_cancelled() -> None:
    """For a cancellation that was lost below (see `CANCEL_AGAIN_S`)."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def run(service: type[Service[S]], settings: type[S], argv: Sequence[str] | None = None) -> int:
    """Main of a service process: exit code 0 after a drain, 1 after a failure, 2 for bad settings."""
    try:
        loaded = load(settings, service.section, sys.argv[1:] if argv is None else argv)
    except ConfigError as error:
        print(f"{service.package}: {error.message}", file=sys.stderr)  # noqa: T201  # before logs exist
        return 2
    gc.freeze()  # what is imported stays; a full collection that walks it stops everything for tens of milliseconds

    async def main() -> None:
        one = service(loaded.settings)
        logging.setup(service.name, one.instance, loaded.settings.log_level)
        telemetry.setup(service.name, one.instance, one.version)
        BUILD.info({"service": service.name, "version": one.version})
        log.info("service.starting", pid=os.getpid(), version=one.version)
        await one.live()

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main())
    except Exception as error:  # the service's one supervisor
        known = [one for one in _leaves(error) if isinstance(one, CatenaryError)]
        for one in known:
            log.error("service.failed", error=one.message, code=one.code)  # noqa: TRY400  # its message says it all
        if len(known) < len(_leaves(error)):
            log.exception("service.crashed")
        return 1
    return 0


def _leaves(error: BaseException) -> list[BaseException]:
    """The errors inside a group, however deep."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for one in error.exceptions for leaf in _leaves(one)]
    return [error]
