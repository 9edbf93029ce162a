"""Rendezvous hashing: a key picks the same live instance everywhere, and few keys move when one leaves."""

from collections.abc import Iterable

import xxhash


def pick(key: str, instances: Iterable[str]) -> str | None:
    """The instance for a key, or None when there is none."""
    return next(iter(ranked(key, instances)), None)


def ranked(key: str, instances: Iterable[str]) -> list[str]:
    """All instances, the best for the key first: the second takes over when the first dies."""
    return sorted(instances, key=lambda one: (xxhash.xxh3_64_intdigest(f"{key}\0{one}".encode()), one), reverse=True)
