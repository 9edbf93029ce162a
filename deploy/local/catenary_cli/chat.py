"""`catenary chat`: talk to a model; its reasoning, text, calls and their results are shown as they come."""

import argparse
import asyncio
import json
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from catenary_protocols.bus.codec import Decoder
from catenary_protocols.bus.tool_plane import ToolResult
from catenary_protocols.errors import CatenaryError, RequestError
from catenary_protocols.ids import call_key
from catenary_tool_dispatch.registry import load
from nats.aio.msg import Msg

from catenary_cli.ask import post, told
from catenary_cli.screen import Screen
from catenary_cli.target import Target, add_target, target
from catenary_cli.timeline import PATH, Turn

ABOUT = "Talk to a model; without a message, until an empty line or Ctrl-D."
EXAMPLE = 'catenary chat "What is the weather in `Oslo`?" --tools get_weather'
ROUNDS = 8
"""Turns in which a model may go on calling tools before a person is asked."""
HTTP_OK = 200
RESULT_S = 30.0
_decode_result = Decoder(ToolResult, json=True)
Results = Mapping[str, asyncio.Future[str]]
"""By call key."""


def add(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    parser.add_argument("message", nargs="?", default="", help="say this, print the answer, and end")
    parser.add_argument("-m", "--model", default="", help="model to talk to (default: the first that is served)")
    parser.add_argument("-s", "--system", default="", help="system text")
    parser.add_argument(
        "--tools", default="", metavar="NAME,…", help="tools of the registry that it may call, or `all`"
    )
    parser.add_argument("--max-tokens", type=int, help="most tokens of an answer")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help="how to print (text)")
    add_target(parser)


def run(args: argparse.Namespace) -> int:
    """Exit code 1 when a turn fails."""
    mesh = target(args)
    request = {
        "model": asyncio.run(mesh.model(args.model)),
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": list(_tools(args.tools, mesh.options.registry)),
        "nvext": {"run_tools": True, "tool_dispatch": True},
        **({"max_tokens": args.max_tokens} if args.max_tokens else {}),
    }
    talk = Talk(mesh, request, None if args.output == "json" else Screen())
    if args.system:
        talk.messages.append({"role": "system", "content": args.system})
    if args.message:
        asyncio.run(talk.say(args.message))
        return 0
    print(f"{request['model']} at {mesh.api}; an empty line ends", file=sys.stderr)
    while line := _line().strip():
        asyncio.run(talk.say(line))
    return 0


def _line() -> str:
    """What a person types next, "" at the end."""
    if sys.stdin.isatty():
        print("> ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline()


@asynccontextmanager
async def _results(mesh: Target) -> AsyncIterator[Results]:
    """Results as the bus tells them, by call key: a turn may end before a tool that it called."""
    results: defaultdict[str, asyncio.Future[str]] = defaultdict(asyncio.get_running_loop().create_future)

    async def on_result(msg: Msg) -> None:
        result = _decode_result(msg.data)
        if not results[result.key].done():
            results[result.key].set_result(result.error.message if result.error else result.output)

    nc = await mesh.connect("catenary-chat")
    try:
        await nc.subscribe(mesh.subjects.to("tool_result"), cb=on_result)
        await nc.flush()
        yield results
    finally:
        await nc.close()


@dataclass(slots=True)
class Talk:
    """A conversation. Without a screen, each turn is printed as a line of JSON."""

    mesh: Target
    request: Mapping[str, Any]
    screen: Screen | None
    messages: list[dict[str, Any]] = field(default_factory=list)

    async def say(self, said: str) -> None:
        """One message, and all turns that answer it; raises `CatenaryError` when one fails."""
        self.messages.append({"role": "user", "content": said})
        hearing: AbstractAsyncContextManager[Results] = (
            _results(self.mesh) if self.request["tools"] else nullcontext({})
        )
        async with hearing as results:
            await self._answer(results)

    async def _answer(self, results: Results) -> None:
        for _ in range(ROUNDS):
            turn = await self._turn(results)
            self.messages.append(turn.message())
            for call in turn.calls:
                result = turn.results[call["id"]]
                self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
                if self.screen:
                    self.screen.call(call, result)
            if self.screen:
                self.screen.line()
            else:
                print(json.dumps({**turn.message(), "results": turn.results, "usage": turn.usage}), flush=True)
            if not turn.calls:
                return

    async def _turn(self, results: Results) -> Turn:
        turn = Turn()
        async with post(self.mesh.api, PATH, {**self.request, "messages": self.messages}, self.mesh.key) as answer:
            if answer.status != HTTP_OK:
                raise CatenaryError(told(await answer.body()))
            async for event in answer.events():
                before = (len(turn.reasoning), len(turn.text))
                turn.take(event)
                if self.screen:
                    self.screen.show(turn, before)
        if turn.failed:
            raise CatenaryError(turn.failed)
        for index, call in enumerate(turn.calls):
            if call["id"] not in turn.results:
                key = call_key(answer.headers["x-catenary-turn-id"], 0, index)
                turn.results[call["id"]] = await _result(results[key], call["function"]["name"])
        return turn


async def _result(coming: asyncio.Future[str], tool: str) -> str:
    try:
        return await asyncio.wait_for(coming, RESULT_S)
    except TimeoutError as error:
        raise CatenaryError(f"the mesh has no result of {tool} yet", code="tool_failed") from error


def _tools(asked: str, registry: Path) -> Iterator[dict[str, Any]]:
    """As a request declares them; raises `RequestError` for one that the registry does not have."""
    known = load(registry)
    for name in known if asked == "all" else filter(None, asked.split(",")):
        if name not in known:
            raise RequestError(f"no tool {name!r}; there are {', '.join(known)}", field="tools")
        spec = known[name].spec
        function = {"name": name, "description": spec.description, "parameters": spec.schema}
        yield {"type": "function", "function": function}
