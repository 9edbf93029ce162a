"""Wiring of the tokenizer: which message goes to whom. No decisions."""

import asyncio
from pathlib import Path

from catenary_runtime.models import Directory
from catenary_runtime.presence import AnyBeat, Listener, Peer
from catenary_runtime.service import Service

from catenary_tokenizer_service.carrying import Carrier
from catenary_tokenizer_service.frontends import Frontends
from catenary_tokenizer_service.helpers import Helpers
from catenary_tokenizer_service.ingress.commands import Commands
from catenary_tokenizer_service.models import Models, options_of
from catenary_tokenizer_service.serving import Serving
from catenary_tokenizer_service.settings import TokenizerSettings
from catenary_tokenizer_service.turns import Turns


class TokenizerService(Service[TokenizerSettings]):
    """Owner of turns: text to tokens, placement, tokens to events."""

    name = "tokenizer"
    section = "tokenizer"
    package = "catenary-tokenizer-service"
    watches = ("frontend", "router", "tokenizer", "worker")

    def __init__(self, settings: TokenizerSettings) -> None:
        super().__init__(settings)
        self.helpers = Helpers()
        cache = Path(settings.data_dir, "models", self.instance)
        self.models = Models(self.bus, cache, self.helpers, options_of(settings))
        self.directory = Directory(self.bus, self.presence)
        self.serving = Serving(self.directory, self.models, settings.no_model_s)
        self.turns = Turns(self.bus, self.presence, self.serving, settings)
        self.carrier = Carrier(self.bus, self.presence, self.models, lambda: self.draining)
        self._served = False
        self.frontends = Frontends(self.turns, settings.resumable_s)
        self.commands = Commands(
            self.bus,
            self.presence,
            self.turns,
            self.serving,
            max_turns=settings.max_turns,
            draining=lambda: self.draining,
        )

    async def start(self) -> None:
        """Subscribe and make tasks."""
        self.turns.on_remembered = self.carrier.remembered
        self.directory.on_card = self.models.want
        self.health.checks["models"] = self._models_there
        self.presence.on_renewed = self._renewed
        self.presence.listen(
            Listener(
                on_beat=self._on_beat,
                on_down=self._on_down,
                on_renewed=self._on_renewed,
            )
        )
        subjects = self.subjects
        await self.bus.subscribe(subjects.to("turn", tokenizer=self.instance), self.commands.handle)
        await self.bus.subscribe(subjects.to("tokens", tokenizer=self.instance), self.turns.runner.frame)
        await self.bus.subscribe(subjects.to("memory", tokenizer=self.instance), self.carrier.on_message)
        await self.bus.subscribe(subjects.to("tool_result"), self.turns.result)
        self.spawn(self.directory.run(), "cards")
        self.spawn(self.models.run(), "models")
        self.spawn(self.turns.preparing.run(), "prepare")
        self.spawn(self.carrier.run(), "memory")
        self.spawn(self._tick(), "tick")

    def _models_there(self) -> tuple[bool, str]:
        if loading := self.serving.loading():
            return False, f"loading {', '.join(loading)}"
        return bool(self.models.names()), ", ".join(self.models.names()) or "none yet"

    def takes_work(self) -> bool:
        """From its first models on: while another one is loaded, its turns wait and those of the others go on."""
        self._served = self._served or super().takes_work()
        return self._served and self.bus.connected

    def beat(self) -> AnyBeat:
        """Our turns, for workers and frontends."""
        return self.plain_beat(
            tails=self.turns.outbox.links.tails(), turns=(*self.frontends.live_turns(), *self.turns.ahead.live())
        )

    async def drain(self) -> None:
        """Send away what is remembered, and let turns end; `stop` ends those that do not."""
        await self.carrier.settle()
        await self.turns.idle.wait()

    async def stop(self) -> None:
        """End what is left, with an error that may be retried where nothing was published."""
        for turn in list(self.turns.live.values()):
            self.turns.hand_back(turn)
        self.turns.outbox.flush()

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                await asyncio.sleep(self.settings.beat_s)
                self.turns.tick(loop.time())
                self.frontends.tick(loop.time())
                self.carrier.watch()
                self.helpers.observe()
                self.models.observe()
        finally:  # however the service ends: nobody waits for a helper that nobody will read from
            self.helpers.close()

    def _renewed(self, _: int) -> None:
        self.turns.outbox.links.restart()
        self.turns.runner.renewed()

    def _on_beat(self, peer: Peer) -> None:
        if peer.service == "worker":
            self.turns.runner.worker_beat(peer)
        elif peer.service == "frontend":
            self.frontends.beat(peer)

    def _on_down(self, peer: Peer) -> None:
        match peer.service:
            case "worker":
                self.turns.runner.worker_down(peer)
                self.turns.ahead.worker_down(peer.instance)
            case "router":
                self.turns.placer.router_down(peer)
            case "frontend":
                self.frontends.down(peer)

    def _on_renewed(self, old: Peer, new: Peer) -> None:
        match new.service:
            case "worker":
                self.turns.runner.worker_renewed(old, new)
                self.turns.ahead.worker_down(new.instance)
                self.turns.runner.answer_strays(new)
            case "router":
                self.turns.placer.router_down(old)
            case "frontend":
                self.frontends.renewed(old, new)
