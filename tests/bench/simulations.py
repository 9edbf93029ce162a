"""`make simulations`: docs/simulations anew, each generated workload under each policy, over five seeds.

What is written is measured: medians over the seeds, in how many of them ours was first, and by how much it was or was
not. Takes some five minutes of one core.
"""

import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from multiprocessing import Pool
from pathlib import Path

from catenary_cli.simulate import COMPARED
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

Run = tuple[str, str, int]
"""Workload, policy, seed."""


def main() -> int:
    """Write the page and the pictures."""
    runs: list[Run] = [(name, policy, seed) for name in WORKLOADS for policy in COMPARED for seed in SEEDS]
    with Pool(os.cpu_count()) as pool:
        asked = dict(zip(runs, pool.imap(_play, runs), strict=True))
    FOLDER.mkdir(exist_ok=True)
    sections = [_section(name, asked) for name in WORKLOADS]
    page = "\n".join((HEAD, _firsts(asked), "", *sections))
    (FOLDER / "README.md").write_text(page)
    return 0


def _play(run: Run) -> list[Asked]:
    workload, policy, seed = run
    return play(generate(workload, sessions=None, seed=seed), Shape(workers=WORKERS, policy=policy), seed)


def _firsts(asked: dict[Run, list[Asked]]) -> str:
    """One line for each workload: where ours is first, and how far from the best other."""
    header = [cell for figure in JUDGED.values() for cell in (f"{figure}: first in", "beside the best other")]
    rows = []
    for name in WORKLOADS:
        row = [f"[{name}](#{name})"]
        by_policy = {policy: [summarise(asked[name, policy, seed], WORKERS) for seed in SEEDS] for policy in COMPARED}
        for figure in JUDGED:
            ours, *others = ([getattr(one, figure) for one in by_policy[policy]] for policy in COMPARED)
            first = sum(all(ours[seed] < other[seed] for other in others) for seed in SEEDS)
            beside = statistics.median(ours) / min(statistics.median(other) for other in others)
            row += [f"{first} of {len(SEEDS)}", f"{beside - 1:+.1%}"]
        rows.append(row)
    return "\n".join(_markdown(["workload", *header], rows))


def _section(name: str, asked: dict[Run, list[Asked]]) -> str:
    """A workload's table and picture."""
    policies = {policy: policy_report([asked[name, policy, seed] for seed in SEEDS], WORKERS) for policy in COMPARED}
    command = f"catenary simulate {name} --runs={len(SEEDS)}"
    report = Report(workload=name, workers=WORKERS, runs=len(SEEDS), made_with=command, policies=policies)
    plot(report, FOLDER / f"{name}.png")
    header, *rows = table(report)
    about = WORKLOADS[name].about
    lines = [f"## {name}", "", f"{about[0].upper()}{about[1:]}: {WORKLOADS[name].sessions} sessions.", ""]
    lines += ["```console", f"$ {command} --plot {name}.png", "```", ""]
    lines += [*_markdown(header, rows), "", f"![{name}]({name}.png)", ""]
    return "\n".join(lines)


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(header)} |"
    yield f"| {' | '.join('---' for _ in header)} |"
    for row in rows:
        yield f"| {' | '.join(row)} |"


if __name__ == "__main__":
    sys.exit(main())
