"""What can be set."""

from dataclasses import dataclass

from catenary_runtime.config import Settings, option


@dataclass(frozen=True, slots=True, kw_only=True)
class KvIndexerSettings(Settings):
    """The kv-indexer's settings."""

    round_s: float = option(0.05, "Seconds between two rounds of cleaning up, while there is something to clean.")
