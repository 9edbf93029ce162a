"""`catenary up`: the whole mesh until Ctrl-C, which drains it; a second Ctrl-C kills."""

import argparse
import asyncio
import signal
import sys

from catenary_cli.config import check
from catenary_cli.follow import follow
from catenary_cli.mesh import running
from catenary_cli.options import Flags, resolve
from catenary_cli.welcome import welcome

ABOUT = "Run the whole mesh on this machine until Ctrl-C."
EXAMPLE = "catenary up --engine llamacpp --model FILE.gguf"
KILLED = 130


def add(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    defaults = Flags()
    parser.add_argument(
        "--config", default="", help="catenary.toml to read (env CATENARY_CONFIG; default ./catenary.toml)"
    )
    parser.add_argument("--host", default="", help="address of the HTTP APIs (default 127.0.0.1)")
    parser.add_argument("--port", type=int, help="port of the HTTP APIs, 0 for any free one (default 8000)")
    parser.add_argument("--tls-cert", default="", help="certificate of the HTTP APIs (default: plain HTTP)")
    parser.add_argument("--tls-key", default="", help="key of that certificate")
    parser.add_argument("--workers", type=int, help="workers of each model (default 2, or the file's)")
    parser.add_argument("--engine", default="", help="engine of the workers (default sim, or the file's)")
    parser.add_argument("--model", default="", help="serve this model alone: GGUF file, model directory or hub id")
    parser.add_argument("--model-path", default="", help="model directory whose vocabulary a GGUF file is to have")
    parser.add_argument("--time-scale", type=float, help="simulator: 1 is real time, 0 as fast as the machine goes")
    parser.add_argument(
        "--nats", default="", help="URL of a broker to use (env CATENARY_NATS; default: one of our own)"
    )
    parser.add_argument(
        "--nats-port", type=int, default=defaults.nats_port, help="port of our own broker, if free (4222)"
    )
    parser.add_argument("--namespace", default="", help="first tokens of every subject (default catenary.v1)")
    parser.add_argument("--data-dir", default="", help="where files and logs are kept (default .data)")
    parser.add_argument("--sim-script", action="store_true", help="let tests tell the simulator what to say")
    parser.add_argument("--ready-s", type=float, default=defaults.ready_s, help="seconds to become ready (60)")
    parser.add_argument("-v", "--verbose", action="store_true", help="show the services' logs here")


def run(args: argparse.Namespace) -> int:
    """Run it."""
    return asyncio.run(_up(Flags(**vars(args))))


async def _up(flags: Flags) -> int:
    asked, killed = asyncio.Event(), asyncio.Event()
    options = resolve(flags)
    check(options)
    async with running(options, _say) as mesh:

        def interrupt() -> None:
            if asked.is_set():
                killed.set()
                mesh.kill()
            asked.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, interrupt)
        print(welcome(mesh), flush=True)
        following = asyncio.create_task(follow(mesh.children)) if flags.verbose else None
        await asked.wait()
        _say("draining; Ctrl-C again kills")
    if following:
        following.cancel()
    return KILLED if killed.is_set() else 0


def _say(line: str) -> None:
    print(f"catenary: {line}", file=sys.stderr, flush=True)
