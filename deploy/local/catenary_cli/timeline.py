"""The first half of the demo: one agent, two turns over HTTP, and what happened when."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
from catenary_protocols.bus.codec import Decoder
from catenary_protocols.bus.tool_plane import ToolResult
from nats.aio.msg import Msg

from catenary_cli.ask import Event, post, told
from catenary_cli.target import Target

PATH = "/v1/chat/completions"
RESULT_S = 5.0
QUESTION = "Is it warm enough for a swim in `Oslo`? Look up the weather first."
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Current weather of a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
_decode_result = Decoder(ToolResult, json=True)
Seen = tuple[asyncio.Future[float], asyncio.Future[tuple[float, ToolResult]]]


@dataclass(slots=True)
class Turn:
    """What a client puts together from one stream; times in seconds since the request.

    Attributes:
        results: of calls that the mesh ran, by call id.
        failed: why it ended early, "" when it did not.
    """

    began: float = field(default_factory=time.perf_counter)
    reasoning: str = ""
    text: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    marks: list[tuple[float, str]] = field(default_factory=list)
    call_at: float = 0.0
    ended_at: float = 0.0
    deltas_after_call: int = 0
    usage: dict[str, Any] = field(default_factory=dict)
    results: dict[str, str] = field(default_factory=dict)
    failed: str = ""

    def take(self, event: Event) -> None:
        """One more event."""
        at = event.at - self.began
        data = msgspec.json.decode(event.data)
        if event.name == "tool_call_dispatch":
            self.call_at = at
            self.marks.append((at, "the whole call is on this stream as tool_call_dispatch"))
        elif event.name == "tool_result":
            self.results[data["tool_call_id"]] = data["content"]
            self.marks.append((at, "its result is on this stream as tool_result"))
        elif not event.name:
            self.usage = data.get("usage") or self.usage
            if "error" in data:
                self.failed = data["error"]["message"]
            for choice in data.get("choices", ()):
                self._delta(at, choice["delta"])
                if choice.get("finish_reason"):
                    self.ended_at = at
                    self.marks.append((at, f"the turn ends: {choice['finish_reason']}"))

    def _delta(self, at: float, delta: dict[str, Any]) -> None:
        if piece := delta.get("reasoning_content"):
            self._first(at, self.reasoning, "first reasoning token")
            self.reasoning += piece
        if piece := delta.get("content"):
            self._first(at, self.text, "first token of text")
            self.text += piece
            self.deltas_after_call += bool(self.call_at)
        for call in delta.get("tool_calls") or ():
            if call["index"] == len(self.calls):
                self.marks.append((at, f"a call of {call['function']['name']} begins"))
                self.calls.append({"id": call["id"], "type": "function", "function": {"arguments": ""}})
            function = self.calls[call["index"]]["function"]
            function["arguments"] += call["function"].get("arguments") or ""
            function.setdefault("name", call["function"].get("name"))

    def _first(self, at: float, so_far: str, what: str) -> None:
        if not so_far:
            self.marks.append((at, what))

    def message(self) -> dict[str, Any]:
        """As the next request sends it back."""
        return {
            "role": "assistant",
            "content": self.text,
            "reasoning_content": self.reasoning,
            "tool_calls": self.calls,
        }


async def run_agent(mesh: Target) -> bool:
    """Two turns; True when the result was there before the first turn's end."""
    model = await mesh.model()
    question = {"role": "user", "content": QUESTION}
    request = {
        "model": model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": TOOLS,
        "messages": [question],
        "nvext": {"run_tools": True, "tool_dispatch": True},
    }
    async with watching(mesh) as (called, result):
        first = await _turn(mesh, request)
        call_at = await asyncio.wait_for(called, RESULT_S) - first.began
        at, answer = await asyncio.wait_for(result, RESULT_S)
    result_at = at - first.began
    first.marks += [
        (call_at, "the whole call is on the bus"),
        (result_at, f"its result is on the bus: {answer.output}"),
    ]
    _show("Turn 1", QUESTION, first)
    talked, waited = first.ended_at - call_at, result_at - call_at
    print(f"  after the call the model went on talking for {talked * 1000:.0f} ms ({first.deltas_after_call} deltas);")
    print(f"  the result was there {waited * 1000:.1f} ms after it, {(talked - waited) * 1000:.0f} ms before the end\n")
    reply = {"role": "tool", "tool_call_id": first.calls[0]["id"], "content": answer.output}
    second = await _turn(mesh, {**request, "messages": [question, first.message(), reply]})
    _show("Turn 2", f"(the result) {answer.output}", second)
    details = second.usage["prompt_tokens_details"]
    print(f"  {details['cached_tokens']} of {second.usage['prompt_tokens']} prompt tokens were in the KV cache")
    print(f"  the answer: {second.text.strip()}\n")
    return waited < talked


@asynccontextmanager
async def watching(
    mesh: Target,
) -> AsyncIterator[tuple[asyncio.Future[float], asyncio.Future[tuple[float, ToolResult]]]]:
    """When the next call and the next result are seen on the bus (`time.perf_counter`)."""
    loop = asyncio.get_running_loop()
    called: asyncio.Future[float] = loop.create_future()
    result: asyncio.Future[tuple[float, ToolResult]] = loop.create_future()

    async def on_call(_: Msg) -> None:
        if not called.done():
            called.set_result(time.perf_counter())

    async def on_result(message: Msg) -> None:
        if not result.done():
            result.set_result((time.perf_counter(), _decode_result(message.data)))

    nc = await mesh.connect("catenary-demo")
    try:
        await nc.subscribe(mesh.subjects.to("tool_call"), cb=on_call)
        await nc.subscribe(mesh.subjects.to("tool_result"), cb=on_result)
        await nc.flush()
        yield called, result
    finally:
        await nc.close()


async def _turn(mesh: Target, request: dict[str, Any]) -> Turn:
    turn = Turn()
    async with post(mesh.api, PATH, request, mesh.key) as answer:
        if answer.status != 200:  # HTTP
            raise SystemExit(f"the mesh answered {answer.status}: {told(await answer.body())}")
        async for event in answer.events():
            turn.take(event)
    return turn


def _show(title: str, said: str, turn: Turn) -> None:
    print(f"{title}: {said}")
    for at, what in sorted(turn.marks):
        print(f"  {at * 1000:8.1f} ms  {what}")
