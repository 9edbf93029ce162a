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
from catenary_tool_dispatch.registry import DEMO, RegistryError, load
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
        self.pulling = asyncio.Event()
        """Set once every tool of the registry is being pulled."""

    async def start(self) -> None:
        """Read the registry, catch up with the stream, then pull."""
        tools = load(Path(self.settings.registry) if self.settings.registry else DEMO)
        ledger = Ledger(self.settings.ledger_size)
        desk = Desk(self.bus, ledger, Answers(self.bus, ledger), Approvals(), self.spawn)
        for index, tool in enumerate(tools.values()):
            try:
                self.lanes[tool.spec.name] = Lane(tool, build(tool.spec), desk)
            except ToolError as error:
                raise RegistryError(error.message, field=f"tools[{index}].python") from error
        self.watch = Watch(desk, self.lanes, self.settings.history_s)
        self.health.checks["tools"] = self._bound
        await self.watch.start()
        self.spawn(self.watch.puller.run(), "watch")
        self.spawn(self.watch.expire(), "expiry")
        self.spawn(self._pull(), "pull")
        self.spawn(self._tick(), "tick")

    async def drain(self) -> None:
        """Pull no more; wait for what runs."""
        await asyncio.gather(*(lane.drain() for lane in self.lanes.values()))

    def _bound(self) -> tuple[bool, str]:
        missing = [name for name, lane in self.lanes.items() if not lane.puller.bound.is_set()]
        return not missing, f"no consumer yet: {', '.join(missing)}" if missing else f"{len(self.lanes)} tools"

    async def _pull(self) -> None:
        await self.watch.caught_up.wait()
        for lane in self.lanes.values():
            self.spawn(lane.puller.run(), f"pull {lane.name}")
        for lane in self.lanes.values():
            await lane.puller.bound.wait()
        self.pulling.set()

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self.watch.puller.check()
            for lane in self.lanes.values():
                lane.tick(loop.time())
            await asyncio.sleep(_TICK_S)


def main(argv: Sequence[str] | None = None) -> int:
    """Run tool-dispatch until it is told to stop."""
    return run(ToolDispatchService, ToolDispatchSettings, argv)
