"""`catenary provision`: make the streams, buckets and consumers that services bind to."""

import argparse
import asyncio

from catenary_runtime.bus import connect_once
from catenary_runtime.provision import provision
from catenary_runtime.tls import broker_tls

from catenary_cli.mesh import broker_of
from catenary_cli.options import Flags, Options, resolve

ABOUT = "Make what JetStream must hold before services start; safe to repeat."
EXAMPLE = "catenary provision --tool search --tool send_mail"


def add(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    parser.add_argument(
        "--config", default="", help="catenary.toml to read (env CATENARY_CONFIG; default ./catenary.toml)"
    )
    parser.add_argument("--nats", default="", help="broker URL (env CATENARY_NATS; default: the mesh that runs here)")
    parser.add_argument("--namespace", default="", help="first tokens of every subject (default catenary.v1)")
    parser.add_argument("--data-dir", default="", help="data directory of the mesh that runs here (default .data)")
    parser.add_argument(
        "--tool",
        action="append",
        default=[],
        metavar="NAME",
        help="make `exec-NAME`, which executors of NAME pull from",
    )


def run(args: argparse.Namespace) -> int:
    """Do it and say what was made."""
    tools = tuple(args.tool)
    del args.tool
    for line in asyncio.run(_provision(resolve(Flags(**vars(args))), tools)):
        print(line)
    return 0


async def _provision(options: Options, tools: tuple[str, ...]) -> list[str]:
    nc = await connect_once(broker_of(options), "catenary-provision", tls=broker_tls(options.common))
    try:
        return await provision(nc.jetstream(), options.subjects, dict.fromkeys((*options.tools, *tools)))
    finally:
        await nc.close()
