"""The policy by its name: ours, or a plug-in's (entry points `catenary.policies`, each a `PolicyFactory`)."""

import random
from importlib.metadata import entry_points

from catenary_router.core.cost import Weights
from catenary_router.core.placement import POLICIES, Policy, PolicyFactory

GROUP = "catenary.policies"


def check_policy(name: str) -> None:
    """Raises `ValueError`, which lists the known ones, for a policy that is not there."""
    known = {*POLICIES, *entry_points(group=GROUP).names}
    if name not in known:
        raise ValueError(f"unknown policy {name!r}; known: {', '.join(sorted(known))}")


def policy_named(name: str, weights: Weights, rng: random.Random) -> Policy:
    """Make a policy that is there."""
    factory: PolicyFactory = POLICIES.get(name) or entry_points(group=GROUP)[name].load()
    return factory(weights, rng)
