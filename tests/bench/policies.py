"""How routing policies compare, on a virtual clock: what `catenary simulate` says of the two workloads of `load.py`."""

from __future__ import annotations

from typing import Any

import msgspec
from catenary_cli.simulation.mesh import Shape
from catenary_cli.simulation.play import play
from catenary_cli.simulation.report import policy_report
from catenary_cli.simulation.workloads import generate
from catenary_router.core.placement import POLICIES

RUNS = 3
WORKERS = 4
WORKLOADS = ("shared_prompts", "kv_pressure")


def measure() -> dict[str, Any]:
    """By workload and policy: medians of runs."""
    return {name: {policy: summary(name, policy) for policy in POLICIES} for name in WORKLOADS}


def summary(workload: str, policy: str) -> dict[str, float]:
    """Hit ratio, times to first token, balance, fairness."""
    shape = Shape(workers=WORKERS, policy=policy)
    runs = [play(generate(workload, sessions=None, seed=seed), shape, seed) for seed in range(RUNS)]
    return msgspec.structs.asdict(policy_report(runs, WORKERS).summary)
