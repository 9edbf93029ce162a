"""For tests of executors, ours or anybody's: the tokenizer's side of the tool plane, and a service in this process."""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from catenary_protocols.bus.codec import Decoder, encode_json
from catenary_protocols.bus.subjects import Subjects
from catenary_protocols.bus.tool_plane import Approval, ToolCall, ToolCancel, ToolResult
from catenary_protocols.ids import call_key, new_turn_id
from catenary_runtime.bus import Bus
from catenary_runtime.testing import NatsServer, bus_to, provisioned
from nats.aio.msg import Msg

from catenary_tool_dispatch.service import ToolDispatchService
from catenary_tool_dispatch.settings import ToolDispatchSettings

_decode_result = Decoder(ToolResult, json=True)


class Caller:
    """Publishes calls as a tokenizer does, and hears every result."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.results: dict[str, list[ToolResult]] = {}
        self._news = asyncio.Condition()

    async def start(self) -> None:
        """Listen for results."""
        await self.bus.nc.subscribe(self.bus.subjects.to("tool_result"), cb=self._on_result)

    async def _on_result(self, msg: Msg) -> None:
        result = _decode_result(msg.data)
        async with self._news:
            self.results.setdefault(result.key, []).append(result)
            self._news.notify_all()

    def make(self, tool: str, arguments: Any, *, left_s: float = 30.0, **more: Any) -> ToolCall:
        """A call of a new turn, with so many seconds left."""
        now = time.time()
        turn = new_turn_id(int(now * 1000), secrets.token_bytes(10))
        fields: dict[str, Any] = {
            "key": call_key(turn, 0, 0),
            "id": f"call_{secrets.token_hex(4)}",
            "tool": tool,
            "arguments": msgspec.Raw(json.dumps(arguments).encode()),
            "run_by": "mesh",
            "turn_id": turn,
            "index": 0,
            "deadline": now + left_s,
            "remaining_ms": int(left_s * 1000),
            "published_at": now,
        }
        return ToolCall(**(fields | more))

    async def publish(self, call: ToolCall, headers: dict[str, str] | None = None) -> None:
        """Put a call on the stream."""
        subject = self.bus.subjects.to("tool_call", tool=call.tool, run_by=call.run_by)
        await self.bus.js.publish(
            subject, encode_json(call), headers={"Nats-Msg-Id": f"call:{call.key}", **(headers or {})}
        )

    async def call(self, tool: str, arguments: Any, *, left_s: float = 30.0, **more: Any) -> ToolResult:
        """Publish a call and wait for its first result."""
        call = self.make(tool, arguments, left_s=left_s, **more)
        await self.publish(call)
        return await self.result(call.key)

    async def result(self, key: str, *, number: int = 1, within_s: float = 20.0) -> ToolResult:
        """The first (second, …) result of a call."""
        async with asyncio.timeout(within_s), self._news:
            await self._news.wait_for(lambda: len(self.results.get(key, ())) >= number)
            return self.results[key][number - 1]

    async def cancel(self, call: ToolCall) -> None:
        """The turn of the call was cancelled."""
        subject = self.bus.subjects.to("tool_cancel", tool=call.tool, key=call.key)
        await self.bus.js.publish(subject, encode_json(ToolCancel(key=call.key, tool=call.tool)))

    async def approve(self, call: ToolCall, *, approved: bool, reason: str = "") -> None:
        """A person answers."""
        subject = self.bus.subjects.to("tool_approve", tool=call.tool, key=call.key)
        approval = Approval(key=call.key, tool=call.tool, approved=approved, by="somebody", reason=reason)
        await self.bus.js.publish(subject, encode_json(approval))

    async def stored(self, channel: str, **names: str) -> int:
        """How many messages of a channel the stream holds."""
        subject = self.bus.subjects.to(channel, **names)
        info = await self.bus.js.stream_info(self.bus.subjects.tool_stream, subjects_filter=subject)
        return sum((info.state.subjects or {}).values())


@asynccontextmanager
async def caller_on(server: NatsServer) -> AsyncIterator[Caller]:
    """A caller in a namespace of its own on this broker."""
    subjects = Subjects(f"t{secrets.token_hex(4)}.v1")
    await provisioned(server.url, subjects)
    async with bus_to(server, f"caller-{secrets.token_hex(4)}", subjects) as bus:
        caller = Caller(bus)
        await caller.start()
        yield caller


@asynccontextmanager
async def serving(
    server: NatsServer, caller: Caller, registry: Path | None = None, *, wait: bool = True, **settings: Any
) -> AsyncIterator[ToolDispatchService]:
    """A tool-dispatch in this process, drained at the end; ready, or with `wait=False` only its own tools."""
    service = ToolDispatchService(
        ToolDispatchSettings(
            nats=server.url,
            namespace=caller.bus.subjects.namespace,
            registry=str(registry) if registry else "",
            **settings,
        )
    )
    async with asyncio.TaskGroup() as group:
        life = group.create_task(service.live())
        await (service.pulling if wait else service.pulling_own).wait()
        yield service
        service.stopping.set()
        await life


def registry_file(folder: Path, *tools: dict[str, Any], mcp: Sequence[dict[str, Any]] = ()) -> Path:
    """A `tools.toml` of these tools and MCP servers; JSON values are TOML values here, but for inline tables."""
    lines = []
    for kind, row in [*(("tools", tool) for tool in tools), *(("mcp", server) for server in mcp)]:
        lines.append(f"[[{kind}]]")
        lines += [f"{key} = {_toml(value)}" for key, value in row.items()]
    path = folder / "tools.toml"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml(item)}" for key, item in value.items()) + "}"
    return json.dumps(value)
