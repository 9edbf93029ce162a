"""MCP servers: one connection each, kept up for as long as the service lives; its tools are run over it.

| what happens                                  | what follows                                                         |
| --------------------------------------------- | -------------------------------------------------------------------- |
| the server does not start, or dies            | it is started again after 0.5 s, then 1, 2, … 30                     |
| a call comes meanwhile                        | it waits for the server, within its time                             |
| the server dies in a call                     | `UNAVAILABLE`: the call is given to whoever takes it next            |
| the server's tools change                     | they are listed anew; calls of one that is gone are `unknown_tool`   |
| a call is cancelled, or its time is over      | the server is told                                                   |
| an answer has more than `MESSAGE_BYTES`       | it is dropped as it comes, and the call fails                        |

Tools are listed anew every 15 s, too: that is also how the death of an idle server is noticed.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import httpx2
import mcp_types as types
import structlog
from mcp.client import Client, IncomingMessage
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
from mcp.shared.exceptions import MCPError

from catenary_tool_dispatch.executors.base import UNAVAILABLE, Invocation, Outcome, bounded, clean
from catenary_tool_dispatch.executors.command import PASSED
from catenary_tool_dispatch.executors.guard import client_for
from catenary_tool_dispatch.executors.mcp_content import text_of
from catenary_tool_dispatch.executors.mcp_stdio import stdio
from catenary_tool_dispatch.specs import McpSpec

log = structlog.get_logger()
logging.getLogger("mcp").setLevel(logging.CRITICAL)  # it logs messages that it cannot read, with what is in them
logging.getLogger("client").setLevel(logging.CRITICAL)
START_S = 30.0
CHECK_S = 15.0
_ANSWER_S = 10.0
_AGAIN_S, _AGAIN_MOST_S = 0.5, 30.0
_MOST_TOOLS = 1024
MESSAGE_BYTES = 8 * 1024 * 1024
"""Of one message of a server; a longer one is dropped as it comes."""
Listed = Callable[[Sequence[types.Tool]], None]


class McpServer:
    """One server. `on_tools` is told what it offers, each time that was asked.

    Attributes:
        tried: set once it has said which tools it has, or failed to for the first time.
        names: the tools it has now, by its own names.
    """

    def __init__(self, spec: McpSpec, on_tools: Listed) -> None:
        self.spec = spec
        self.tried = asyncio.Event()
        self.names: frozenset[str] = frozenset()
        self._on_tools = on_tools
        self._client: Client | None = None
        self._why = ""
        self._up = asyncio.Event()
        self._ask = asyncio.Event()
        self._leaving = asyncio.Event()

    def state(self) -> tuple[bool, str]:
        """Whether it is connected, and a word about it, as a health check."""
        return self._up.is_set(), f"{len(self.names)} tools" if self._up.is_set() else f"not connected{self._why}"

    # --- its life -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep it up until `stop`."""
        pause = _AGAIN_S
        loop = asyncio.get_running_loop()
        while not self._leaving.is_set():
            began = loop.time()
            try:
                await self._serve()
            except Exception as error:  # noqa: BLE001  # the boundary around foreign code
                self._why = f": {_kinds(error)}"
                log.warning("mcp.lost", server=self.spec.name, error=_kinds(error))
            finally:
                self._client = None
                self._up.clear()
                self.tried.set()
            if loop.time() - began > _AGAIN_MOST_S:
                pause = _AGAIN_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._leaving.wait()
            pause = min(2 * pause, _AGAIN_MOST_S)

    def stop(self) -> None:
        """End it in order; `run` returns then."""
        self._leaving.set()
        self._ask.set()

    async def _serve(self) -> None:
        """One connection, from its start to its end."""
        async with contextlib.AsyncExitStack() as stack:
            async with asyncio.timeout(START_S):
                client = await stack.enter_async_context(await self._connect(stack))
            await self._list(client)
            self._client = client
            self._why = ""
            self._up.set()
            self.tried.set()
            log.info("mcp.up", server=self.spec.name, tools=len(self.names), protocol=client.protocol_version)
            async with asyncio.TaskGroup() as group:
                listening = group.create_task(self._listen(client), name=f"mcp {self.spec.name}")
                while not self._leaving.is_set():
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(CHECK_S):
                            await self._ask.wait()
                    self._ask.clear()
                    if not self._leaving.is_set():
                        await self._list(client)
                listening.cancel()

    async def _connect(self, stack: contextlib.AsyncExitStack) -> Client:
        spec = self.spec
        if spec.url:
            http = await stack.enter_async_context(client_for(spec.headers, spec.private_host, MESSAGE_BYTES))
            over = streamable_http_client(spec.url, http_client=http, max_sse_event_size=MESSAGE_BYTES)
            return Client(over, cache=None, message_handler=self._on_message)
        environment = {name: os.environ[name] for name in (*PASSED, *spec.env) if name in os.environ}
        stderr = stack.enter_context(_appending(spec.log or os.devnull))
        process = stdio(spec.command, environment, stderr, MESSAGE_BYTES)
        return Client(process, cache=None, message_handler=self._on_message)

    async def _on_message(self, message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._ask.set()

    async def _listen(self, client: Client) -> None:
        """Newer servers tell of changes only to who has asked for it."""
        with contextlib.suppress(ListenNotSupportedError, SubscriptionLost, MCPError, TimeoutError):
            async with client.listen(tools_list_changed=True) as changes:
                async for _ in changes:
                    self._ask.set()

    async def _list(self, client: Client) -> None:
        tools: list[types.Tool] = []
        async with asyncio.timeout(_ANSWER_S):
            async for page in _pages(client):
                tools += page
                if len(tools) > _MOST_TOOLS:
                    log.warning("mcp.too_many_tools", server=self.spec.name, kept=_MOST_TOOLS)
                    break
        if self.spec.tools:
            tools = [tool for tool in tools if tool.name in self.spec.tools]
        self.names = frozenset(tool.name for tool in tools[:_MOST_TOOLS])
        self._on_tools(tools[:_MOST_TOOLS])

    # --- calls --------------------------------------------------------------------------------------------------

    async def call(self, tool: str, values: Mapping[str, Any], limit: int) -> Outcome:
        """Run a tool when the server is there; the caller bounds the time."""
        await self._up.wait()
        client = self._client
        if client is None:
            return _gone(self.spec.name)
        if tool not in self.names:
            return Outcome(code="unknown_tool", message="the server has this tool no more")
        try:
            result = await client.call_tool(tool, dict(values))
        except MCPError as error:
            if not await self._alive(client):
                return _gone(self.spec.name)
            return Outcome(clean(error.message), code="failed", message=f"the server refused the call: {error.code}")
        except Exception as error:  # noqa: BLE001  # the boundary around foreign code
            return Outcome(code="failed", message=f"the server's answer cannot be read: {type(error).__name__}")
        text, truncated = bounded(clean(text_of(result)).encode(), limit)
        if result.is_error:
            return Outcome(text, code="failed", message="the tool says that it failed", truncated=truncated)
        return Outcome(text, truncated=truncated)

    async def _alive(self, client: Client) -> bool:
        """An error of the call, or the end of the connection? The protocol has no sure sign: ask for something else."""
        try:
            async with asyncio.timeout(_ANSWER_S):
                await client.list_tools()
        except (MCPError, TimeoutError):
            if client is self._client:
                self._client = None
                self._up.clear()
                self._ask.set()
            return False
        return True


class McpExecutor:
    """Runs one tool of a server."""

    def __init__(self, server: McpServer, tool: str, max_output: int) -> None:
        self._server = server
        self._tool = tool
        self._max_output = max_output

    async def run(self, invocation: Invocation, seconds: float) -> Outcome:
        """Call it over the server's connection."""
        try:
            async with asyncio.timeout(seconds):
                return await self._server.call(self._tool, invocation.values, self._max_output)
        except TimeoutError:
            return Outcome(code="timeout", message=f"the server did not answer in {seconds:.3g} s")

    async def close(self) -> None:
        """Nothing: the server outlives its tools."""


def _appending(path: str) -> TextIO:
    return Path(path).open("a", encoding="utf-8")


async def _pages(client: Client) -> AsyncIterator[list[types.Tool]]:
    cursor: str | None = None
    while True:
        page = await client.list_tools(cursor=cursor)
        yield page.tools
        cursor = page.next_cursor
        if cursor is None:
            return


def _gone(server: str) -> Outcome:
    return Outcome(code=UNAVAILABLE, message=f"the MCP server {server} went away during the call")


def _kinds(error: BaseException) -> str:
    """The kinds of the errors inside. What they say may quote messages, but where they are about the connection."""
    if isinstance(error, BaseExceptionGroup):
        return ", ".join(dict.fromkeys(_kinds(one) for one in error.exceptions))
    kind = type(error).__name__
    return f"{kind}: {error}" if isinstance(error, OSError | httpx2.ConnectError) else kind
