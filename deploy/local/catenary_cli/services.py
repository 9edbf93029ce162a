"""`catenary services`: who is on the bus, as the NATS Services API tells (`$SRV.INFO`)."""

import argparse
import asyncio
import json

import msgspec
from nats.aio.client import Client
from nats.errors import Error as NatsError

from catenary_cli.target import Target, add_target, target
from catenary_cli.welcome import columns

ABOUT = "List the services on the bus."
EXAMPLE = "catenary services --output json"
EVERYONE = "$SRV.INFO"
WAIT_S = 0.5
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
        "--wait-s", type=float, default=WAIT_S, help=f"seconds of silence after which all have answered ({WAIT_S})"
    )
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="how to print (table)")
    add_target(parser)


def run(args: argparse.Namespace) -> int:
    """Print them; exit code 1 when nobody answers."""
    rows = asyncio.run(_services(target(args), args.wait_s))
    if args.output == "json":
        print(json.dumps([dict(zip(HEADER, row, strict=True)) for row in rows], indent=2))
    elif rows:
        print("\n".join(columns([HEADER, *rows], indent="")))
    else:
        print("nobody answers")
    return 0 if rows else 1


async def _services(mesh: Target, wait_s: float) -> list[tuple[str, ...]]:
    nc = await mesh.connect("catenary-services")
    try:
        return sorted(
            (one.name, one.metadata.get("instance", one.id), one.version, one.metadata.get("namespace", ""))
            for one in await answers(nc, wait_s)
        )
    finally:
        await nc.close()


async def answers(nc: Client, wait_s: float = WAIT_S) -> list[Info]:
    """Who answers to `$SRV.INFO`, until nobody has for `wait_s`."""
    inbox = nc.new_inbox()
    subscription = await nc.subscribe(inbox)
    await nc.publish(EVERYONE, reply=inbox)
    infos: list[Info] = []
    while True:
        try:
            message = await subscription.next_msg(wait_s)
        except (NatsError, TimeoutError):
            return infos
        if not message.data:  # the broker itself answers that nobody listens
            return []
        infos.append(msgspec.json.decode(message.data, type=Info))
