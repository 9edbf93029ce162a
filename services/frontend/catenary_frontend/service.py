"""The frontend service: wiring."""

import asyncio
from pathlib import Path
from typing import Any, ClassVar

from catenary_protocols.bus.messages import Beat
from catenary_protocols.errors import ErrorInfo
from catenary_runtime.health import admin_app, server_for
from catenary_runtime.models import Directory
from catenary_runtime.service import Service

from catenary_frontend.app import App, make_app
from catenary_frontend.auth import Keys
from catenary_frontend.catalog import Catalog
from catenary_frontend.edge import Edge
from catenary_frontend.guard import server_options
from catenary_frontend.sealing import Sealer
from catenary_frontend.settings import FrontendSettings, named
from catenary_frontend.stored import StoredResponses
from catenary_frontend.turns import OpenTurns

_STOPPED = ErrorInfo(code="draining", message="this frontend was shut down", retry_after=1)


class Frontend(Service[FrontendSettings]):
    """HTTP edge of the mesh."""

    name: ClassVar[str] = "frontend"
    section: ClassVar[str] = "frontend"
    package: ClassVar[str] = "catenary-frontend"
    watches: ClassVar[tuple[str, ...]] = ("tokenizer", "worker")

    def __init__(self, settings: FrontendSettings) -> None:
        super().__init__(settings)
        self.turns = OpenTurns(self.bus, self.presence)
        self.directory = Directory(self.bus, self.presence)
        self.keys = Keys(settings.api_keys, settings.keys_file)
        self.catalog = Catalog(self.directory, named(settings.aliases))
        self._idle = asyncio.Event()
        self.turns.on_idle = self._idle.set

    async def start(self) -> None:
        """Listen, and look at the time."""
        self.health.checks["tokenizer"] = self._tokenizer_there
        self.health.checks["model"] = lambda: (bool(self.catalog.cards()), f"{len(self.catalog.cards())} served")
        await self.turns.start()
        self.spawn(self.directory.run(), "models")
        self.spawn(self._tick(), "tick")
        self.spawn(self.keys.watch(self.settings.host), "keys")
        if self.settings.admin_port:
            self.spawn(self._admin(), "admin")

    async def _admin(self) -> None:
        server = server_for(admin_app(self.health), self.settings.host, self.settings.admin_port)
        try:
            await server.serve()
        finally:
            server.close()

    def _tokenizer_there(self) -> tuple[bool, str]:
        live = sum(peer.takes_work for peer in self.presence.live("tokenizer"))
        return live > 0, f"{live} take turns"

    async def _tick(self) -> None:
        while True:
            self.turns.tick()
            await asyncio.sleep(self.settings.beat_s)

    async def drain(self) -> None:
        """Let open turns finish."""
        while len(self.turns):
            self._idle.clear()
            await self._idle.wait()

    async def stop(self) -> None:
        """End what is left in a clear error."""
        self.turns.fail_all(_STOPPED)

    def beat(self) -> Beat:
        """Turns we follow, and how far each has come."""
        return self.plain_beat(turns=self.turns.live())

    def app(self) -> App:
        """The APIs, on the same port as the probes."""
        edge = Edge(
            settings=self.settings,
            instance=self.instance,
            bus=self.bus,
            presence=self.presence,
            health=self.health,
            turns=self.turns,
            catalog=self.catalog,
            keys=self.keys,
            sealer=Sealer(Path(self.settings.data_dir) / "sealing.key"),
            stored=StoredResponses(self.bus),
            spawn=self.spawn,
        )
        return make_app(edge, self.version)

    def http_port(self) -> int:
        """The APIs' port."""
        return self.settings.port

    def http_options(self) -> dict[str, Any]:
        """Bounds on connections, and TLS."""
        return server_options(self.settings)
