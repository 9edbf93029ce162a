"""An MCP server for tests: `stdio`, or `http PORT`, which says on stderr where it listens (0: any port); `http PORT json`
answers in JSON where it would in events."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import mcp_types as types
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("for tests")


@server.tool()
def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


@server.tool()
def pid() -> str:
    return str(os.getpid())


@server.tool()
def environment(name: str) -> str:
    return os.environ.get(name, "not there")


@server.tool()
def header(name: str, ctx: Context[Any, Any]) -> str:
    return (ctx.headers or {}).get(name, "not there")


@server.tool()
def fail(why: str) -> str:
    raise ToolError(why)


@server.tool()
def numbers() -> dict[str, int]:
    return {"one": 1}


@server.tool(structured_output=False)
def mixed() -> list[types.ContentBlock]:
    text = types.TextResourceContents(uri="file:///a.txt", text="from a.txt")
    blob = types.BlobResourceContents(uri="file:///b.bin", mime_type="application/x-b", blob="AAEC")
    return [
        types.TextContent(text="first"),
        types.ImageContent(data="iVBORw0=", mime_type="image/png"),
        types.EmbeddedResource(resource=text),
        types.EmbeddedResource(resource=blob),
        types.ResourceLink(name="report", uri="file:///r.pdf", mime_type="application/pdf"),
    ]


@server.tool()
def long(size: int) -> str:
    return "ä" * size


@server.tool()
async def hang(begun: str, ended: str) -> str:
    """Say so in `begun`, wait, and say in `ended` that the wait was cancelled. Both are pipes."""
    await asyncio.to_thread(Path(begun).write_text, "begun")
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        Path(ended).write_text("cancelled")  # noqa: ASYNC240  # somebody reads already
        raise
    return ""


@server.tool()
async def wait(begun: str, told: str) -> str:
    """Say so in `begun`, and answer what is said in `told`."""
    await asyncio.to_thread(Path(begun).write_text, "begun")
    return await asyncio.to_thread(Path(told).read_text)


@server.tool()
def die(times: int, log: str) -> str:
    """End this process the first so many times."""
    path = Path(log)
    path.write_text((path.read_text() if path.exists() else "") + "x")
    if len(path.read_text()) <= times:
        os.kill(os.getpid(), signal.SIGKILL)
    return path.read_text()


@server.tool()
async def change(add_tool: str, remove: str, ctx: Context[Any, Any]) -> str:
    """Have another tool, and one less."""
    server.add_tool(lambda: "here", name=add_tool)
    server.remove_tool(remove)
    await ctx.notify_tools_changed()
    return "changed"


if __name__ == "__main__":
    if sys.argv[1] == "http":
        server.run("streamable-http", port=int(sys.argv[2]), json_response="json" in sys.argv)
    else:
        server.run("stdio")
