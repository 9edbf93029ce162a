"""`catenary services`: who is on the bus, as the NATS Services API tells (`$SRV.INFO`)."""

import argparse
import asyncio
import json

import msgspec
from catenary_runtime.bus import connect_once
from nats.errors import Error as NatsError

from catenary_cli.mesh import broker_of
from catenary_cli.options import Flags, resolve
from catenary_cli.welcome import columns

ABOUT = "List the services on the bus."
EXAMPLE = "catenary services --output json"
EVERYONE = "$SRV.INFO"
HEADER = ("service", "instance", "version", "namespace")


class Info(msgspec.Struct, frozen=True):
    """What we read of an answer to `$SRV.INFO`."""

    name: str
    id: str
    version: str
    metadata: dict[str, str] = {}


def add(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    parser.add_argument(
        "--config", default="", help="catenary.toml to read (env CATENARY_CONFIG; default ./catenary.toml)"
    )
    parser.add_argument("--nats", default="", help="broker URL (env CATENARY_NATS; default: the mesh that runs here)")
    parser.add_argument("--data-dir", default="", help="data directory of the mesh that runs here (default .data)")
    parser.add_argument(
        "--wait-s", type=float, default=0.5, help="seconds of silence after which all have answered (0.5)"
    )
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="how to print (table)")


def run(args: argparse.Namespace) -> int:
    """Print them; exit code 1 when nobody answers."""
    options = resolve(Flags(config=args.config, nats=args.nats, data_dir=args.data_dir))
    rows = asyncio.run(_services(broker_of(options), args.wait_s))
    if args.output == "json":
        print(json.dumps([dict(zip(HEADER, row, strict=True)) for row in rows], indent=2))
    elif rows:
        print("\n".join(columns([HEADER, *rows], indent="")))
    else:
        print("nobody answers")
    return 0 if rows else 1


async def _services(url: str, wait_s: float) -> list[tuple[str, ...]]:
    nc = await connect_once(url, "catenary-services")
    try:
        inbox = nc.new_inbox()
        answers = await nc.subscribe(inbox)
        await nc.publish(EVERYONE, reply=inbox)
        rows: list[tuple[str, ...]] = []
        while True:
            try:
                message = await answers.next_msg(wait_s)
            except (NatsError, TimeoutError):
                return sorted(rows)
            if not message.data:  # the broker itself answers that nobody listens
                return []
            info = msgspec.json.decode(message.data, type=Info)
            rows.append(
                (info.name, info.metadata.get("instance", info.id), info.version, info.metadata.get("namespace", ""))
            )
    finally:
        await nc.close()
