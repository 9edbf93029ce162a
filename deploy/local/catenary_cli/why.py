"""`catenary why`: the workers a turn could have run on, and what spoke for the one it got."""

import argparse
import http.client
import json
from collections.abc import Iterator
from datetime import datetime
from urllib.parse import quote, urlsplit

import msgspec
from catenary_protocols.errors import CatenaryError
from catenary_router.core.history import Decision

from catenary_cli.mesh import STATE
from catenary_cli.options import Flags, resolve
from catenary_cli.welcome import columns

ABOUT = "Tell why a turn runs where it does: every worker considered, its overlap, its queue, its cost."
EXAMPLE = "catenary why 01K3B9Z5T7XW2M4Q8R6V0N1C5D"
HEADER = ("worker", "cost", "overlap", "turns", "queued ms")
REASONS = {
    "only": "no other worker had room",
    "overlap": "it held most of the prompt",
    "load": "another held more of the prompt but was too busy",
    "session": "nobody held any of the prompt; the session lives there",
    "cold": "nobody held any of the prompt; it was the cheapest",
}
TIMEOUT_S = 5.0


def add(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    parser.add_argument("turn", help="turn id, from the response header x-catenary-turn-id")
    parser.add_argument("--router", default="", metavar="URL", help="admin URL of a router (those of the mesh here)")
    parser.add_argument("--data-dir", default="", help="data directory of the mesh that runs here (default .data)")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="how to print (table)")


def run(args: argparse.Namespace) -> int:
    """Print each placement of the turn; exit code 1 when no router remembers it."""
    routers = [args.router] if args.router else list(_routers(args.data_dir))
    found = [decision for url in routers for decision in _ask(url, args.turn)]
    if args.output == "json":
        print(msgspec.json.format(msgspec.json.encode(found)).decode())
    elif found:
        print("\n\n".join(map(_told, found)))
    else:
        print(f"no router remembers {args.turn}")
    return 0 if found else 1


def _routers(data_dir: str) -> Iterator[str]:
    path = resolve(Flags(data_dir=data_dir)).data_dir / STATE
    try:
        state = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise CatenaryError(f"no mesh runs in {path.parent}; name a router with --router", code="not_found") from error
    yield from (one["url"] for one in state["processes"] if one["service"] == "router")


def _ask(url: str, turn_id: str) -> list[Decision]:
    where = urlsplit(url)
    connection = http.client.HTTPConnection(where.netloc, timeout=TIMEOUT_S)
    try:
        connection.request("GET", f"/placements/{quote(turn_id, safe='')}")
        return msgspec.json.decode(connection.getresponse().read(), type=list[Decision])
    except (OSError, http.client.HTTPException, msgspec.DecodeError) as error:
        raise CatenaryError(f"the router at {url} does not tell: {error}", code="disconnected") from error
    finally:
        connection.close()


def _told(one: Decision) -> str:
    at = datetime.fromtimestamp(one.at).astimezone().isoformat(timespec="milliseconds")
    rows = [
        (of.worker, f"{of.cost:,.1f}", f"{of.overlap} of {one.blocks} blocks", str(of.turns), f"{of.queued_ms:,.1f}")
        for of in one.considered
    ]
    return "\n".join(
        [
            f"{one.turn_id} attempt {one.attempt}: {one.worker}, since {REASONS.get(one.reason, one.reason)}",
            f"  {one.prompt_tokens:,} prompt tokens, placed by {one.policy} at {at} after {1000 * one.waited_s:.1f} ms",
            *columns([HEADER, *rows]),
        ]
    )
