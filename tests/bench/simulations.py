"""`make simulations`: docs/simulations anew, each generated workload under each policy, over five seeds.

What is written is measured: medians over the seeds, in how many of them ours was first, and by how much it was or was
not; and what it is worth that engines hear how long agents are away. Takes some ten minutes of one core.
"""

import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from multiprocessing import Pool
from pathlib import Path

from catenary_cli.simulate import COMPARED, UNTOLD
from catenary_cli.simulation.mesh import Asked, Shape
from catenary_cli.simulation.play import play
from catenary_cli.simulation.plot import plot
from catenary_cli.simulation.report import Report, policy_report, summarise, table
from catenary_cli.simulation.workloads import WORKLOADS, generate

FOLDER = Path(__file__).parents[2] / "docs" / "simulations"
SEEDS = range(5)
WORKERS = 4
JUDGED = {"ttft_mean_ms": "mean", "ttft_p50_ms": "p50", "ttft_p99_ms": "p99"}
HEAD = f"""# Policies compared

Written by `make simulations`: {WORKERS} workers of 8,192 blocks of 16 tokens, the `dynamo` timing, medians over {len(SEEDS)}
seeds. What the columns tell stands in [how to simulate](../how-to/simulate.md). *First in* counts the seeds in which
`kv` was better than all four others, each of them at its best; *beside the best other* is the median of `kv` over the
lowest median of another policy.
"""

COMPARED_IN = tuple(name for name in WORKLOADS if name != "strangers")
TOLD_IN = {"strangers": 1, "agents": WORKERS}
"""Where retention is told and not, on so many workers."""
Run = tuple[str, Shape, int]
"""Workload, mesh, seed."""


def main() -> int:
    """Write the page and the pictures."""
    shapes = [(name, _shape(policy)) for name in COMPARED_IN for policy in COMPARED]
    shapes += [(name, one) for name, workers in TOLD_IN.items() for one in _told(workers)]
    runs: list[Run] = [(name, shape, seed) for name, shape in dict.fromkeys(shapes) for seed in SEEDS]
    with Pool(os.cpu_count()) as pool:
        asked = dict(zip(runs, pool.imap(_play, runs), strict=True))
    FOLDER.mkdir(exist_ok=True)
    sections = [_section(name, asked) for name in COMPARED_IN]
    page = "\n".join((HEAD, _firsts(asked), "", *sections, _retention(asked)))
    (FOLDER / "README.md").write_text(page)
    return 0


def _shape(policy: str) -> Shape:
    return Shape(workers=WORKERS, policy=policy)


def _told(workers: int) -> tuple[Shape, Shape]:
    return Shape(workers=workers), Shape(workers=workers, retention=False)


def _play(run: Run) -> list[Asked]:
    workload, shape, seed = run
    return play(generate(workload, sessions=None, seed=seed), shape, seed)


def _runs(asked: dict[Run, list[Asked]], name: str, shape: Shape) -> list[list[Asked]]:
    return [asked[name, shape, seed] for seed in SEEDS]


def _firsts(asked: dict[Run, list[Asked]]) -> str:
    """One line for each workload: where ours is first, and how far from the best other."""
    header = [cell for figure in JUDGED.values() for cell in (f"{figure}: first in", "beside the best other")]
    rows = []
    for name in COMPARED_IN:
        row = [f"[{name}](#{name})"]
        by_policy = {
            policy: [summarise(one, WORKERS) for one in _runs(asked, name, _shape(policy))] for policy in COMPARED
        }
        for figure in JUDGED:
            ours, *others = ([getattr(one, figure) for one in by_policy[policy]] for policy in COMPARED)
            first = sum(all(ours[seed] < other[seed] for other in others) for seed in SEEDS)
            beside = statistics.median(ours) / min(statistics.median(other) for other in others)
            row += [f"{first} of {len(SEEDS)}", f"{beside - 1:+.1%}"]
        rows.append(row)
    return "\n".join(_markdown(["workload", *header], rows))


def _section(name: str, asked: dict[Run, list[Asked]]) -> str:
    """A workload's table and picture."""
    policies = {policy: policy_report(_runs(asked, name, _shape(policy)), WORKERS) for policy in COMPARED}
    command = f"catenary simulate {name} --runs={len(SEEDS)}"
    report = Report(workload=name, workers=WORKERS, runs=len(SEEDS), made_with=command, policies=policies)
    plot(report, FOLDER / f"{name}.png")
    header, *rows = table(report)
    about = WORKLOADS[name].about
    lines = [f"## {name}", "", f"{about[0].upper()}{about[1:]}: {WORKLOADS[name].sessions} sessions.", ""]
    lines += ["```console", f"$ {command} --plot {name}.png", "```", ""]
    lines += [*_markdown(header, rows), "", f"![{name}]({name}.png)", ""]
    return "\n".join(lines)


def _retention(asked: dict[Run, list[Asked]]) -> str:
    """What it is worth that engines are told."""
    lines = [
        "## retention",
        "",
        "What it is worth that engines hear how long a session that calls tools stays away.",
        "",
    ]
    for name, workers in TOLD_IN.items():
        told, untold = (policy_report(_runs(asked, name, shape), workers) for shape in _told(workers))
        command = f"catenary simulate {name} --workers={workers} --policy=kv --runs={len(SEEDS)} --retention=both"
        policies = {"kv": told, f"kv{UNTOLD}": untold}
        report = Report(workload=name, workers=workers, runs=len(SEEDS), made_with=command, policies=policies)
        header, *rows = table(report)
        lines += [f"{name}, {workers} worker{'s'[: workers - 1]}:", "", "```console", f"$ {command}", "```", ""]
        lines += [*_markdown(header, rows), ""]
    return "\n".join(lines)


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(header)} |"
    yield f"| {' | '.join('---' for _ in header)} |"
    for row in rows:
        yield f"| {' | '.join(row)} |"


if __name__ == "__main__":
    sys.exit(main())
