"""The MCP servers of a registry, and a lane for each tool that they name.

A tool of the registry keeps its name, and so does the tool of the server that came first; who comes second is left out
and logged. Lanes are added and never taken away: one whose tool is gone answers that it is.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import structlog

from catenary_tool_dispatch.arguments import ArgumentCheck, SchemaRefusedError
from catenary_tool_dispatch.desk import Desk
from catenary_tool_dispatch.lane import Lane
from catenary_tool_dispatch.specs import McpSpec, Tool, ToolSpec

if TYPE_CHECKING:
    from mcp_types import Tool as Named

    from catenary_tool_dispatch.executors.mcp import McpServer

log = structlog.get_logger()
FIRST_S = 10.0
"""How long the start waits for servers. Whoever takes longer, or fails, is there when it is."""
_LONGEST_NAME = 128
_MOST = 2048
"""Lanes of all servers: one that thinks up new names for ever must not fill the memory."""


class Servers:
    """See the module. `lanes` is where lanes are added; `open_lane` starts to pull for one."""

    def __init__(
        self, specs: Iterable[McpSpec], lanes: dict[str, Lane], desk: Desk, open_lane: Callable[[Lane], None]
    ) -> None:
        self._lanes = lanes
        self._desk = desk
        self._open_lane = open_lane
        self._owner: dict[str, McpServer] = {}
        self._refused: set[tuple[str, str]] = set()
        self._lives: list[asyncio.Task[None]] = []
        self._all: list[McpServer] = [self._server(spec) for spec in specs]

    def _server(self, spec: McpSpec) -> "McpServer":
        from catenary_tool_dispatch.executors.mcp import McpServer  # costs 30 MB, and most registries need none

        server = McpServer(spec, lambda tools: self._offer(server, tools))
        return server

    def state(self) -> tuple[bool, str]:
        """A health check: whether all are connected."""
        rows = {server.spec.name: server.state() for server in self._all}
        return all(ok for ok, _ in rows.values()), ", ".join(f"{name}: {said}" for name, (_, said) in rows.items())

    def start(self) -> None:
        """Start them, and keep them up."""
        for server in self._all:
            self._lives.append(self._desk.spawn(server.run(), f"mcp {server.spec.name}"))

    async def tried(self) -> None:
        """Wait until each has said which tools it has, or failed to; not for long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_S):
                for server in self._all:
                    await server.tried.wait()

    async def stop(self) -> None:
        """End them in order; one that has not come up is not waited for."""
        for server, life in zip(self._all, self._lives, strict=False):
            server.stop()
            if not server.state()[0]:
                life.cancel()
        await asyncio.gather(*self._lives, return_exceptions=True)

    def _offer(self, server: "McpServer", tools: "Sequence[Named]") -> None:
        from catenary_tool_dispatch.executors.mcp import McpExecutor

        for named in tools:
            name = server.spec.offered(named.name)
            ours = self._owner.get(name) is server
            if ours and self._lanes[name].tool.spec.schema == named.input_schema:
                continue  # a schema takes a millisecond to compile, and this comes every few seconds
            try:
                tool = _tool(server.spec, name, named)
            except SchemaRefusedError as error:
                self._refuse(server, name, error.message)
                continue
            if ours:
                self._lanes[name].tool = tool
            elif name in self._lanes:
                self._refuse(server, name, "the name is taken")
            elif not 0 < len(name) <= _LONGEST_NAME:
                self._refuse(server, name, f"a name has at most {_LONGEST_NAME} characters")
            elif len(self._owner) >= _MOST:
                self._refuse(server, name, f"there are {_MOST} tools of MCP servers already")
            else:
                self._owner[name] = server
                executor = McpExecutor(server, named.name, tool.spec.max_output_bytes)
                self._lanes[name] = Lane(tool, executor, self._desk)
                self._open_lane(self._lanes[name])

    def _refuse(self, server: "McpServer", name: str, why: str) -> None:
        if len(self._refused) < _MOST and (server.spec.name, name) not in self._refused:
            self._refused.add((server.spec.name, name))
            log.warning("mcp.tool_left_out", server=server.spec.name, tool=name, reason=why)


def _tool(server: McpSpec, name: str, named: "Named") -> Tool:
    spec = ToolSpec(
        name=name,
        description=named.description or "",
        schema=named.input_schema,
        timeout_s=server.timeout_s,
        max_output_bytes=server.max_output_bytes,
        concurrency=server.concurrency,
        at_most_once=server.at_most_once,
        approval=server.approval,
    )
    return Tool(spec, ArgumentCheck(spec.schema))
