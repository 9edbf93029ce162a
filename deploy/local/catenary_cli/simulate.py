"""`catenary simulate`: routing policies over a trace, on a virtual clock."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec
from catenary_protocols.errors import RequestError
from catenary_router.core.placement import POLICIES
from catenary_worker.engines.sim.settings import SimSettings

from catenary_cli.simulation.files import BLOCK_TOKENS, read_trace
from catenary_cli.simulation.mesh import Shape
from catenary_cli.simulation.play import OnEnd, play
from catenary_cli.simulation.plot import plot
from catenary_cli.simulation.report import PolicyReport, Report, policy_report, table
from catenary_cli.simulation.trace import Trace
from catenary_cli.simulation.workloads import WORKLOADS, described, generate
from catenary_cli.welcome import columns

ABOUT = "Compare routing policies over a trace: the router's own code and simulated engines on a virtual clock."
EXAMPLE = "catenary simulate agents --workers 8 --policy kv,round_robin"
COMPARED = tuple(name for name in POLICIES if name != "direct")
BAR = 24
UNTOLD = "-untold"
"""Ends the name of a row without retention."""


def add(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    engine = SimSettings()
    parser.add_argument(
        "workload",
        nargs="?",
        choices=tuple(WORKLOADS),
        default="agents",
        help="; ".join(described()) + "; default agents",
    )
    parser.add_argument("--trace", default="", metavar="FILE", help="requests from a JSONL file, as Mooncake has them")
    parser.add_argument(
        "--trace-block", type=int, default=BLOCK_TOKENS, help=f"tokens of a hash id of the trace ({BLOCK_TOKENS})"
    )
    parser.add_argument("--speed", type=float, default=1.0, help="play the trace so many times as fast (1)")
    parser.add_argument("--limit", type=int, default=None, help="only so many lines of the trace")
    parser.add_argument("--sessions", type=int, default=None, help="sessions of a generated workload")
    parser.add_argument("--workers", type=int, default=4, help="workers (4)")
    parser.add_argument("--blocks", type=int, default=engine.blocks, help=f"KV blocks of a worker ({engine.blocks})")
    parser.add_argument(
        "--block-size", type=int, default=engine.block_size, help=f"tokens of a KV block ({engine.block_size})"
    )
    parser.add_argument(
        "--preset", default=engine.preset, help=f"speed of the engine: dynamo or roofline ({engine.preset})"
    )
    parser.add_argument("--policy", default=",".join(COMPARED), help=f"policies to compare ({','.join(COMPARED)})")
    parser.add_argument(
        "--retention",
        choices=("on", "off", "both"),
        default="on",
        help="whether engines hear how long a session will be away in tools; both: rows with and without (on)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of all chance (0)")
    parser.add_argument("--runs", type=int, default=1, help="runs with other seeds; figures are medians (1)")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="how to print (table)")
    parser.add_argument("--plot", default="", metavar="FILE", help="also write a PNG (needs matplotlib)")


def run(args: argparse.Namespace) -> int:
    """Simulate every policy and report."""
    policies = _policies(args.policy)
    for name in ("workers", "runs", "trace_block"):
        if getattr(args, name) < 1:
            raise _wrong(name, f"{getattr(args, name)}; at least 1 is needed")
    if args.speed <= 0:
        raise _wrong("speed", f"{args.speed:g}; it must be above 0")
    engine = SimSettings.read({"blocks": args.blocks, "block_size": args.block_size, "preset": args.preset})
    told = {"on": (True,), "off": (False,), "both": (True, False)}[args.retention]
    shapes = [
        Shape(workers=args.workers, engine=engine, policy=policy, retention=retention)
        for policy in policies
        for retention in told
    ]
    reports = {_label(shape): _measure(args, shape) for shape in shapes}
    report = Report(
        workload=Path(args.trace).name if args.trace else args.workload,
        workers=args.workers,
        runs=args.runs,
        made_with=_command(args),
        policies=reports,
    )
    if args.plot:
        plot(report, Path(args.plot))
    if args.output == "json":
        print(msgspec.json.format(msgspec.json.encode(report)).decode())
    else:
        print("\n".join(columns(table(report), indent="")))
    return 0


def _label(shape: Shape) -> str:
    return shape.policy if shape.retention else f"{shape.policy}{UNTOLD}"


def _measure(args: argparse.Namespace, shape: Shape) -> PolicyReport:
    runs = []
    for seed in range(args.seed, args.seed + args.runs):
        trace = _trace(args, seed)
        runs.append(play(trace, shape, seed, _progress(_label(shape), trace.turns)))
    return policy_report(runs, shape.workers)


def _trace(args: argparse.Namespace, seed: int) -> Trace:
    if args.trace:
        return read_trace(Path(args.trace), block_tokens=args.trace_block, speed=args.speed, limit=args.limit)
    return generate(args.workload, sessions=args.sessions, seed=seed)


def _policies(names: str) -> Sequence[str]:
    found = [name.strip() for name in names.split(",") if name.strip()]
    for name in found:
        if name not in POLICIES:
            raise _wrong("policy", f"{name!r} is none; known: {', '.join(POLICIES)}")
    return found or COMPARED


def _wrong(name: str, why: str) -> RequestError:
    return RequestError(f"--{name.replace('_', '-')}: {why}", code="invalid_value", field=name)


def _command(args: argparse.Namespace) -> str:
    """What to type to get the same."""
    parser = argparse.ArgumentParser()
    add(parser)
    said = [(args.trace and f"--trace={args.trace}") or args.workload]
    for name, value in vars(args).items():
        if name not in {"workload", "trace", "output", "plot"} and value != parser.get_default(name):
            said.append(f"--{name.replace('_', '-')}={value}")
    return shlex.join(["catenary", "simulate", *said])


def _progress(policy: str, turns: int) -> OnEnd:
    """A bar on the terminal; nothing where there is none."""
    return partial(_draw, policy, turns, max(1, turns // 200)) if sys.stderr.isatty() else lambda _: None


def _draw(policy: str, turns: int, every: int, ended: int) -> None:
    if ended % every and ended < turns:
        return
    full = BAR * ended // turns
    end = "\r\x1b[K" if ended == turns else ""
    print(f"\r{policy:<19} {'█' * full}{'░' * (BAR - full)} {ended:,} of {turns:,} turns", end=end, file=sys.stderr)
