"""The worker: one engine on the bus."""

import asyncio
from functools import partial

import structlog
from catenary_protocols.bus.messages import WorkerLoad
from catenary_protocols.errors import EngineError, ErrorInfo, RequestError
from catenary_runtime.links import LinkSender
from catenary_runtime.models import publish_model
from catenary_runtime.service import Service

from catenary_worker.commands import Commands
from catenary_worker.core.turns import Turns
from catenary_worker.engines.base import Engine, EngineSetup, engine_for
from catenary_worker.kv import KvPublisher
from catenary_worker.kv_journal import KvJournal
from catenary_worker.load import Load
from catenary_worker.model import open_model
from catenary_worker.owners import Owners
from catenary_worker.runner import HANDED_BACK, Runner
from catenary_worker.settings import WorkerSettings, engine_options
from catenary_worker.sim_control import Scripted, SimControl

log = structlog.get_logger()


class WorkerService(Service[WorkerSettings]):
    """Runs turns on one engine."""

    name = "worker"
    section = "worker"
    package = "catenary-worker"
    watches = ("tokenizer",)

    def __init__(self, settings: WorkerSettings) -> None:
        super().__init__(settings)
        self.turns = Turns(death_limit=settings.death_limit_s)
        self.links = LinkSender()
        self.runner = Runner(self.bus, self.presence, self.turns, self.links)
        self.load = Load(self.presence, self.turns, self.links, self.runner, settings)
        self.owners = Owners(self.presence, self.turns, self.links, self.runner)
        self.journal: KvJournal | None = None
        self.phase = {"model": "not loaded", "engine": "not started"}

    async def start(self) -> None:
        """Take commands at once (refused until the model is there); load in the background."""
        for part in self.phase:
            self.health.checks[part] = partial(self._check, part)
        self.presence.on_renewed = self._renewed
        await self.bus.subscribe(
            self.subjects.to("do", worker=self.instance), Commands(self.bus, self.runner).on_message
        )
        self.spawn(self._serve(), "engine")

    def beat(self) -> WorkerLoad:
        """Load, link tails, live turns."""
        self.owners.check()
        return self.load.beat(ready=self.health.ready()[0])

    async def drain(self) -> None:
        """Take no new turns; return when the last has ended."""
        self.runner.draining = True
        self.presence.beat_soon()
        await self.runner.idle()

    async def stop(self) -> None:
        """Hand back what still runs, then stop the engine."""
        self.runner.give_up(HANDED_BACK)
        if self.runner.engine is not None:
            await self.runner.engine.stop()

    async def _serve(self) -> None:
        engine, kv = await self._load()
        try:
            async for step in engine.steps():
                turned = self.runner.step(step)
                kv.add(step.kv, at_once=turned)
                self.load.step(step.load)
        except EngineError as error:
            self.phase["engine"] = "failed"
            self.runner.give_up(ErrorInfo(code="worker_lost", message=error.message))
            await engine.stop()
            raise

    async def _load(self) -> tuple[Engine, KvPublisher]:
        settings = self.settings
        self.phase["model"] = "loading"
        model = await asyncio.to_thread(open_model, settings)
        options = engine_options(settings.engine_options)
        if settings.sim_script:
            options["scripts"] = True
        self.phase["engine"] = "starting"
        told = partial(self.phase.__setitem__, "engine")
        setup = EngineSetup(model.directory, model.parser, model.reasoning, settings.context, options, told, model.file)
        engine = await asyncio.to_thread(engine_for(settings.engine), setup)
        info = await engine.start()
        card = await asyncio.to_thread(model.card, info)
        self.phase["engine"], self.phase["model"] = "ready", "publishing its card"
        await publish_model(self.bus, card, model.directory)
        if settings.sim_script:
            if not isinstance(engine, Scripted):
                raise RequestError(f"engine {settings.engine} takes no scripts", code="unsupported", field="sim_script")
            await SimControl(self.bus, engine, self.instance).start()
        own = info.hashes == "own"
        self.journal = KvJournal(
            self.instance, self.incarnation, card.model, info.block_size, ranks=info.ranks, own_hashes=own
        )
        kv = KvPublisher(self.bus, self.journal)
        await self.bus.subscribe(self.subjects.to("snapshot", worker=self.instance), kv.on_query)
        self.load.info, self.load.journal = info, self.journal
        self.runner.engine, self.runner.card, self.runner.halves = engine, card, info.halves
        self.phase["model"] = "ready"
        self.presence.beat_soon()
        log.info("model.ready", model=card.model, card=card.card, engine=settings.engine, context=card.context)
        return engine, kv

    def _check(self, part: str) -> tuple[bool, str]:
        return self.phase[part] == "ready", self.phase[part]

    def _renewed(self, _: int) -> None:
        self.links.restart()
        self.turns.hold(asyncio.get_running_loop().time())
        if self.journal is not None:
            self.journal.incarnation = self.incarnation
