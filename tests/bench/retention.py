"""What retention is worth: the simulation's `strangers` on one engine; agents and strangers apart.

Twelve agents fit into the cache, if the strangers' prompts, which nobody asks for again, do not push them out while they
wait for their tools. Told how long the tools usually take, the engine keeps the agents' blocks ahead of the strangers'.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from catenary_cli.simulation.mesh import Shape
from catenary_cli.simulation.play import play
from catenary_cli.simulation.workloads import generate

if TYPE_CHECKING:
    from catenary_cli.simulation.mesh import Asked

SEED = 0


def measure() -> dict[str, Any]:
    """Of agents and strangers, with and without."""
    return {name: summary(retention=told) for name, told in (("without", False), ("with", True))}


def summary(*, retention: bool) -> dict[str, float]:
    """The same traffic whether blocks are retained or not."""
    asked = play(generate("strangers", sessions=None, seed=SEED), Shape(workers=1, retention=retention), SEED)
    agents = [one for one in asked if one.session.startswith("agent")]
    strangers = [one for one in asked if not one.session.startswith("agent")]
    return {
        "agents_cached": round(sum(one.cached for one in agents) / sum(one.prompt for one in agents), 3),
        "agents_ttft_ms": round(statistics.mean(waits(agents)), 1),
        "agents_ttft_p99_ms": round(waits(agents)[int(0.99 * len(agents))], 1),
        "strangers_ttft_ms": round(statistics.mean(waits(strangers)), 1),
    }


def waits(asked: list[Asked]) -> list[float]:
    """Times to first token, the shortest first."""
    return sorted(1000 * one.first_token_s for one in asked)
