"""The policy by its name: ours, or a plug-in's (entry points `catenary.policies`, each a `PolicyFactory`)."""

import random
from importlib.metadata import entry_points

from catenary_protocols.errors import RequestError

from catenary_router.core.cost import Weights
from catenary_router.core.placement import POLICIES, Policy, PolicyFactory

GROUP = "catenary.policies"


def policy_named(name: str, weights: Weights, rng: random.Random) -> Policy:
    """Make the policy; raises `RequestError` (field `policy`) that lists the known ones."""
    installed = {point.name: point for point in entry_points(group=GROUP)}
    if name in POLICIES:
        return POLICIES[name](weights, rng)
    if name not in installed:
        known = ", ".join(sorted({*POLICIES, *installed}))
        raise RequestError(f"unknown policy {name!r}; known: {known}", code="unsupported", field="policy")
    factory: PolicyFactory = installed[name].load()
    return factory(weights, rng)
