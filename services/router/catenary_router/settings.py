"""What can be set."""

from dataclasses import dataclass

from catenary_runtime.config import Settings, option

from catenary_router.policies import check_policy


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSettings(Settings):
    """The router's settings. Everything is on by default."""

    policy: str = option(
        "kv",
        "kv, kv_dynamo, round_robin, least_loaded, random, direct, or an installed plug-in's name.",
        check=check_policy,
    )
    queue_limit: int = option(2000, "Turns that may wait for room; the next is refused with a retry-after.")
    queue_wait_s: float = option(120.0, "Seconds a turn waits at most.")
    backlog_s: float = option(1.0, "Seconds of queued prefill from which a worker that has turns has no room for more.")
    overlap_timeout_s: float = option(0.1, "Seconds to wait for the kv-indexer before placing without it.")
    harm: float = option(1.0, "Weight of the delay a turn's prefill causes to others, against its own.")
    decode: float = option(1.0, "Weight of a worker's running turns, in milliseconds each.")
    crowding: float = option(2.0, "Weight of taking cache space from sessions that live on a worker.")
