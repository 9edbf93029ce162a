"""How soon a client has a tool call whole, while the model goes on: on each API, from its last token on the bus.

The worker's frames are heard on the bus beside the tokenizer, so both ends of the way have one clock: from the frame that
holds the token with which the call is whole, to the bytes with which this API's clients have it whole.
"""

import asyncio
import json
import re
import statistics
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

from catenary_protocols.bus.codec import Decoder
from catenary_protocols.bus.messages import TokenFrame
from catenary_tokenizers import embedded_path, load
from nats.aio.msg import Msg

from tests.bench.load import spread
from tests.mesh.harness import MODEL, WEATHER, RunningMesh, Script, running_mesh

Json = dict[str, Any]

SIDE_BY_SIDE, ROUNDS = 4, 8
SCALE = 2.0
"""At which a lone stream gets a token about every 10 ms."""
WITHIN_S = 120
ARGUMENTS = '{"city": "Bergen"}'
CALL = f'{{"name": "get_weather", "arguments": {ARGUMENTS}}}'
AFTERWARDS = "It takes a while, and there is more to say. " * 16
SAID = f"<think>\nA city is named.\n</think>\n\n<tool_call>\n{CALL}\n</tool_call>\n{AFTERWARDS}"
FUNCTION: Any = WEATHER["function"]


@dataclass(frozen=True)
class Way:
    """An API: its path and body, whether a call is whole by these events, and the words of the model it takes."""

    path: str
    body: Callable[[str], Json]
    whole: Callable[[list[Json]], bool]
    needs: str = CALL


def chat(words: str) -> Json:
    return {"messages": [{"role": "user", "content": words}], "tools": [WEATHER]}


def responses(words: str) -> Json:
    return {"input": words, "tools": [{"type": "function", **FUNCTION}]}


def messages(words: str) -> Json:
    tool = {"name": FUNCTION["name"], "input_schema": FUNCTION["parameters"]}
    return {"messages": [{"role": "user", "content": words}], "tools": [tool], "max_tokens": 2000}


def arguments_are_whole(events: list[Json]) -> bool:
    """Chat says of no call that it is done: a client has it when its arguments are."""
    deltas = (choice["delta"] for event in events for choice in event.get("choices", ()))
    pieces = (call["function"]["arguments"] for delta in deltas for call in delta.get("tool_calls", ()))
    return "".join(pieces) == ARGUMENTS


def is_dispatched(events: list[Json]) -> bool:
    return "tool_call" in events[-1]


def item_is_done(events: list[Json]) -> bool:
    last = events[-1]
    return bool(last["type"] == "response.output_item.done" and last["item"]["type"] == "function_call")


def block_stopped(events: list[Json]) -> bool:
    if events[-1]["type"] != "content_block_stop":
        return False
    starts = [event["content_block"]["type"] for event in events if event["type"] == "content_block_start"]
    return bool(starts[-1] == "tool_use")


WAYS = {
    "chat": Way("/v1/chat/completions", chat, arguments_are_whole, ARGUMENTS),
    "chat_dispatch": Way(
        "/v1/chat/completions", lambda words: {**chat(words), "nvext": {"tool_dispatch": True}}, is_dispatched
    ),
    "responses": Way("/v1/responses", responses, item_is_done),
    "messages": Way("/v1/messages", messages, block_stopped),
}


@dataclass
class Heard:
    """Frames of the workers by turn: when each came, and its tokens."""

    frames: dict[str, list[tuple[float, bytes]]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        self._decode = Decoder(TokenFrame)
        self._tokenizer = load(embedded_path())

    def __call__(self, message: Msg) -> None:
        now = time.perf_counter()
        for item in self._decode(message.data).items:
            self.frames[item.turn_id].append((now, item.tokens))

    def when(self, turn: str, words: str) -> float:
        """When the token came with which the model had said the words."""
        stream, text = self._tokenizer.detokenizer(), ""
        for at, tokens in self.frames[turn]:
            text += "".join(part if isinstance(part, str) else part.text for part in stream.push(tokens))
            if words in text:
                return at
        raise RuntimeError(f"the model did not say {words!r}: {text!r}")


def measure() -> Json:
    """Milliseconds from the call's last token to the client, and seconds for which the answer then goes on."""
    with TemporaryDirectory() as folder, running_mesh(Path(folder), "--time-scale", str(SCALE), "--sim-script") as mesh:
        return asyncio.run(_measure(mesh))


async def _measure(mesh: RunningMesh) -> Json:
    results = {}
    heard = Heard()
    async with mesh.bus() as bus, asyncio.timeout(WITHIN_S * len(WAYS)):
        script = Script(bus, mesh.workers, "calls")
        await script.say(SAID)
        await bus.subscribe(bus.subjects.to("tokens"), heard)
        for name, way in WAYS.items():
            waits, rest = [], []
            await one(mesh, way, heard, f"{name}, first")
            for number in range(ROUNDS):
                words = (f"{name}, {number}, {beside}" for beside in range(SIDE_BY_SIDE))
                for wait, after in await asyncio.gather(*(one(mesh, way, heard, each) for each in words)):
                    waits.append(wait)
                    rest.append(after)
            results[name] = {"calls": len(waits), "to_client_ms": spread(waits)}
            results[name] |= {"then_goes_on_s": round(statistics.median(rest), 2)}
        await script.forget()
    return results


async def one(mesh: RunningMesh, way: Way, heard: Heard, words: str) -> tuple[float, float]:
    """Seconds from the last token to the client, and from there to the end of the stream."""
    events: list[Json] = []
    whole = at = 0.0
    async for at, event in stream(mesh.url("frontend"), way, words):
        events.append(event)
        if not whole and way.whole(events):
            whole = at
    if not whole:
        raise RuntimeError(f"there was no whole call: {events}")
    first = events[0]
    answer: Json = first.get("response") or first.get("message") or first
    turn = re.split("[-_]", answer["id"])[-1]
    return whole - heard.when(turn, way.needs), at - whole


async def stream(url: str, way: Way, words: str) -> AsyncIterator[tuple[float, Json]]:
    """Events of one answer, and when their bytes were here."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    body = json.dumps({"model": MODEL, "stream": True, **way.body(words)}).encode()
    head = f"POST {way.path} HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    async for line in reader:
        if line.startswith(b"data: {"):
            yield time.perf_counter(), json.loads(line.removeprefix(b"data: "))
    writer.close()
