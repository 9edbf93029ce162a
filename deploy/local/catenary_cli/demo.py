"""`catenary demo`: an agent's two turns as a timeline, then eight sessions that come back to their KV blocks."""

import argparse
import asyncio
import sys
import tempfile
from dataclasses import replace

from catenary_cli.mesh import running
from catenary_cli.options import Flags, resolve
from catenary_cli.sessions import SESSIONS, run_sessions
from catenary_cli.target import Target, add_target, target
from catenary_cli.timeline import run_agent

ABOUT = "Start a mesh on free ports, or take the one named with --api, and show that tools run while its model talks."
EXAMPLE = "catenary demo --time-scale 2"


def add(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    parser.add_argument("--workers", type=int, default=2, help="workers (2)")
    parser.add_argument("--time-scale", type=float, default=1.0, help="simulator: 1 is real time (1)")
    parser.add_argument("--sessions", type=int, default=SESSIONS, help=f"sessions that come back ({SESSIONS})")
    add_target(parser, "one of its own")


def run(args: argparse.Namespace) -> int:
    """Exit code 0 when the tool overlapped and every session came back to its blocks."""
    if args.api:
        return asyncio.run(_show(target(args), args.sessions))
    flags = Flags(workers=args.workers, time_scale=args.time_scale, port=0, nats_port=0)
    return asyncio.run(_demo(flags, args.sessions))


async def _demo(flags: Flags, sessions: int) -> int:
    with tempfile.TemporaryDirectory(prefix="catenary-demo-") as folder:
        async with running(resolve(replace(flags, data_dir=folder)), _say) as mesh:
            options = mesh.options
            there = Target(options=options, api=mesh.api, broker=mesh.broker, subjects=options.subjects)
            return await _show(there, sessions)


async def _show(mesh: Target, sessions: int) -> int:
    overlapped = await run_agent(mesh)
    came_back = await run_sessions(mesh, sessions)
    return 0 if overlapped and came_back else 1


def _say(line: str) -> None:
    print(f"catenary: {line}", file=sys.stderr)
