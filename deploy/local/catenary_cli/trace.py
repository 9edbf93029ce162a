"""`catenary trace`: the stages of a turn as a timeline, while and after it runs, without a tracing backend.

It is put together from what the mesh keeps: the moment in the turn's id, the routers' last placements, the calls and
results of the stream `TOOLS` (an hour), and the frontend's line about the turn in the logs of a mesh that runs here.
"""

import argparse
import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from catenary_protocols.bus.codec import Decoder
from catenary_protocols.bus.tool_plane import ToolCall, ToolResult, TurnFact
from catenary_protocols.errors import CatenaryError
from catenary_protocols.ids import began_at, turn_of_call
from catenary_router.core.history import Decision
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import TimeoutError as NatsTimeoutError
from nats.js.api import ConsumerConfig, DeliverPolicy
from nats.js.errors import NotFoundError

from catenary_cli.ask import get
from catenary_cli.target import Target, add_target, target
from catenary_cli.why import REASONS

ABOUT = "Show a turn's stages as a timeline; without a turn, of each that ends from now on."
EXAMPLE = "catenary trace --last"
ENDS = ("finished", "failed", "cancelled")
BAR = 32
NOTHING_S = 0.5
"""Silence after which the stream holds nothing from that moment on."""
_decode_call, _decode_result = Decoder(ToolCall, json=True), Decoder(ToolResult, json=True)
_decode_fact = Decoder(TurnFact, json=True)


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a turn; milliseconds since it began. A moment has the same `began` and `ended`."""

    name: str
    began: float
    ended: float
    detail: str = ""


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """A turn.

    Attributes:
        at: Unix time of its beginning.
        facts: what its frontend wrote when it ended: outcome, model, tokens, calls.
    """

    turn_id: str
    at: float
    stages: list[Stage]
    facts: dict[str, Any] = {}


def add(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    parser.add_argument("turn", nargs="?", default="", help="turn id, from the response header x-catenary-turn-id")
    parser.add_argument("--last", action="store_true", help="the turn that ended last in the mesh that runs here")
    parser.add_argument("--count", type=int, default=0, help="without a turn: end after so many (0: at Ctrl-C)")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="how to print (table)")
    add_target(parser)


def run(args: argparse.Namespace) -> int:
    """Exit code 1 when nothing is known of the turn."""
    return asyncio.run(_trace(target(args), args))


async def _trace(mesh: Target, args: argparse.Namespace) -> int:
    turn = args.turn or (_last(mesh) if args.last else "")
    nc = await mesh.connect("catenary-trace")
    try:
        if not turn:
            async for ended in _ending(nc, mesh, args.count):
                _print(await of(nc, mesh, ended), args.output)
            return 0
        found = await of(nc, mesh, turn)
    finally:
        await nc.close()
    _print(found, args.output)
    return 0 if found.stages else 1


def _last(mesh: Target) -> str:
    lines = [line for path in _logs(mesh) for line in _done(path)]
    if not lines:
        raise CatenaryError("no turn has ended in a mesh that runs here", code="not_found")
    return str(max(lines, key=lambda line: line["ts"])["turn"])


async def of(nc: Client, mesh: Target, turn_id: str) -> Trace:
    """All that is known of a turn; without stages when nothing is."""
    at = began_at(turn_id)
    facts = next((line for path in _logs(mesh) for line in _done(path) if line["turn"] == turn_id), {})
    stages = [
        *_placed(await _decisions(mesh, turn_id), facts, at),
        *[one async for one in _calls(nc, mesh, turn_id, at)],
        *_spoken(facts),
    ]
    return Trace(turn_id=turn_id, at=at, stages=sorted(stages, key=lambda one: (one.began, one.ended)), facts=facts)


async def _ending(nc: Client, mesh: Target, count: int) -> AsyncIterator[str]:
    subscription = await nc.subscribe(mesh.subjects.to("observe"))
    seen = 0
    async for msg in subscription.messages:
        fact = _decode_fact(msg.data)
        if fact.what in ENDS:
            yield fact.turn_id
            seen += 1
        if seen == count > 0:
            return


async def _decisions(mesh: Target, turn_id: str) -> list[Decision]:
    routers = [str(one["url"]) for one in mesh.processes("router")]
    bodies = [await get(url, f"/placements/{turn_id}", accept=(200, 404)) for url in routers]
    return [one for body in bodies for one in msgspec.json.decode(body, type=list[Decision])]


def _placed(decisions: Iterable[Decision], facts: dict[str, Any], at: float) -> Iterator[Stage]:
    first = facts.get("first_token_ms", 0.0)
    for one in sorted(decisions, key=lambda decision: decision.attempt):
        placed = 1000 * (one.at - at)
        overlap = max((of.overlap for of in one.considered if of.worker == one.worker), default=0)
        why = f"{one.worker}: {REASONS.get(one.reason, one.reason)} ({overlap} of {one.blocks} blocks)"
        yield Stage(name="prepare", began=0.0, ended=placed - 1000 * one.waited_s, detail=f"{one.prompt_tokens} tokens")
        yield Stage(name="place", began=placed - 1000 * one.waited_s, ended=placed, detail=why)
        if first >= placed:
            yield Stage(
                name="prefill", began=placed, ended=first, detail=f"{facts['cached_tokens']} tokens were cached"
            )


def _spoken(facts: dict[str, Any]) -> Iterator[Stage]:
    if first := facts.get("first_token_ms"):
        said = f"{facts['completion_tokens']} tokens, {facts['reasoning_tokens']} of them reasoning"
        yield Stage(name="decode", began=first, ended=facts["total_ms"], detail=said)
    if facts:
        how = facts["reason"] or facts["code"]
        yield Stage(name="end", began=facts["total_ms"], ended=facts["total_ms"], detail=how)


async def _calls(nc: Client, mesh: Target, turn_id: str, at: float) -> AsyncIterator[Stage]:
    """Calls and runs, from what the stream holds since the turn began."""
    async for msg in _since(nc, mesh, at):
        if mesh.subjects.match("tool_call", msg.subject):
            call = _decode_call(msg.data)
            if turn_of_call(call.key) == turn_id:
                published = 1000 * (call.published_at - at)
                yield Stage(name="call", began=published, ended=published, detail=f"{call.tool}, for {call.run_by}")
        elif mesh.subjects.match("tool_result", msg.subject):
            result = _decode_result(msg.data)
            if turn_of_call(result.key) == turn_id:
                came = msg.metadata.timestamp.timestamp()
                began = 1000 * ((result.started_at or came) - at)
                how = f"{result.tool}: {result.error.code}" if result.error else result.tool
                name = "run" if result.started_at else "result"  # not run, or by an executor that does not say when
                yield Stage(name=name, began=began, ended=began + result.duration_ms, detail=how)


async def _since(nc: Client, mesh: Target, at: float) -> AsyncIterator[Msg]:
    """Messages of the tool stream from a moment on, until it is silent."""
    start = datetime.fromtimestamp(at, UTC).isoformat()
    config = ConsumerConfig(deliver_policy=DeliverPolicy.BY_START_TIME, opt_start_time=start)  # type: ignore[arg-type]
    try:
        reading = await nc.jetstream().subscribe(
            f"{mesh.subjects.namespace}.tool.>", stream=mesh.subjects.tool_stream, ordered_consumer=True, config=config
        )
    except NotFoundError:
        return
    try:
        left = 1
        while left:
            msg = await reading.next_msg(NOTHING_S)
            left = msg.metadata.num_pending
            yield msg
    except NatsTimeoutError:
        return
    finally:
        await reading.unsubscribe()


def _logs(mesh: Target) -> list[Path]:
    return [Path(one["log"]) for one in mesh.processes("frontend")]


def _done(path: Path) -> Iterator[dict[str, Any]]:
    if path.exists():
        for line in path.read_bytes().splitlines():
            if b'"turn.done"' in line:
                yield json.loads(line)


def _print(found: Trace, output: str) -> None:
    if output == "json":
        print(msgspec.json.encode(found).decode(), flush=True)
        return
    if not found.stages:
        print(f"nothing is known of {found.turn_id}")
        return
    whole = max(stage.ended for stage in found.stages) or 1.0
    facts = found.facts
    print(f"{found.turn_id} {facts.get('api', '')} {facts.get('model', '')} {facts.get('code', '')}".rstrip())
    for stage in found.stages:
        left = min(BAR - 1, round(BAR * max(0.0, stage.began) / whole))
        width = max(1, round(BAR * (stage.ended - stage.began) / whole))
        bar = f"{' ' * left}{'▇' * min(width, BAR - left)}".ljust(BAR)
        lasts = f"{stage.ended - stage.began:8.1f}" if stage.ended > stage.began else " " * 8
        print(f"  {stage.began:9.1f} ms {lasts}  {bar}  {stage.name:<8} {stage.detail}")
    print(flush=True)
