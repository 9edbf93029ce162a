"""tool-dispatch: runs the calls that the mesh is to run and that its registry has, and publishes their results."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from catenary_protocols.errors import ToolError
from catenary_runtime.service import Service, run

from catenary_tool_dispatch.answers import Answers
from catenary_tool_dispatch.approvals import Approvals
from catenary_tool_dispatch.core.ledger import Ledger
from catenary_tool_dispatch.desk import Desk
from catenary_tool_dispatch.executors import build
from catenary_tool_dispatch.lane import Lane
from catenary_tool_dispatch.registry import DEMO, RegistryError, read
from catenary_tool_dispatch.servers import Servers
from catenary_tool_dispatch.settings import ToolDispatchSettings
from catenary_tool_dispatch.watch import Watch

_TICK_S = 0.25


class ToolDispatchService(Service[ToolDispatchSettings]):
    """Runs registered tool calls and publishes their results."""

    name = "tool-dispatch"
    section = "tool_dispatch"
    package = "catenary-tool-dispatch"

    def __init__(self, settings: ToolDispatchSettings) -> None:
        super().__init__(settings)
        self.lanes: dict[str, Lane] = {}
        self.pulling_own = asyncio.Event()
        """Set once every tool that the registry names itself is being pulled."""
        self.pulling = asyncio.Event()
        """Set once every tool is being pulled, those of the MCP servers that came up at first, too."""

    async def start(self) -> None:
        """Read the registry, catch up with the stream, then pull."""
        registry = read(Path(self.settings.registry) if self.settings.registry else DEMO)
        ledger = Ledger(self.settings.ledger_size)
        desk = Desk(self.bus, ledger, Answers(self.bus, ledger), Approvals(), self.spawn)
        for index, tool in enumerate(registry.tools.values()):
            try:
                self.lanes[tool.spec.name] = Lane(tool, build(tool.spec), desk)
            except ToolError as error:
                raise RegistryError(error.message, field=f"tools[{index}].python") from error
        self.watch = Watch(desk, self.lanes, self.settings.history_s)
        self.servers = Servers(registry.servers.values(), self.lanes, desk, self._open)
        self.health.checks["tools"] = self._bound
        if registry.servers:
            self.health.warnings["mcp"] = self.servers.state
        await self.watch.start()
        self.spawn(self.watch.puller.run(), "watch")
        self.spawn(self.watch.expire(), "expiry")
        self.spawn(self._pull(), "pull")
        self.spawn(self._tick(), "tick")

    async def drain(self) -> None:
        """Pull no more; wait for what runs."""
        await asyncio.gather(*(lane.drain() for lane in self.lanes.values()))

    async def stop(self) -> None:
        """End the MCP servers."""
        await self.servers.stop()

    def _bound(self) -> tuple[bool, str]:
        missing = [name for name, lane in self.lanes.items() if not lane.puller.bound.is_set()]
        if missing:
            return False, f"no consumer yet: {', '.join(missing)}"
        return (
            self.pulling.is_set(),
            f"{len(self.lanes)} tools" if self.pulling.is_set() else "MCP servers are starting",
        )

    async def _pull(self) -> None:
        await self.watch.caught_up.wait()
        for lane in self.lanes.values():
            self._open(lane)
        await self._opened()
        self.pulling_own.set()
        self.servers.start()
        await self.servers.tried()
        await self._opened()
        self.pulling.set()

    async def _opened(self) -> None:
        for lane in list(self.lanes.values()):
            await lane.puller.bound.wait()

    def _open(self, lane: Lane) -> None:
        if not self.draining:
            self.spawn(lane.puller.run(), f"pull {lane.name}")

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self.watch.puller.check()
            for lane in list(self.lanes.values()):
                lane.tick(loop.time())
            await asyncio.sleep(_TICK_S)


def main(argv: Sequence[str] | None = None) -> int:
    """Run tool-dispatch until it is told to stop."""
    return run(ToolDispatchService, ToolDispatchSettings, argv)
