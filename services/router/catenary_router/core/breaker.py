"""Whether to ask the kv-indexer at all.

The rule: after three failures in a row nobody is kept waiting for it (turns are placed by load, and by where their
sessions live), and one question a second probes whether it is back.
"""

from dataclasses import dataclass

FAILURES = 3
PROBE_S = 1.0


@dataclass(slots=True)
class Breaker:
    """Counts failures in a row; see the module."""

    failures: int = 0
    probed_at: float = 0.0

    @property
    def open(self) -> bool:
        """Nobody asks, but for probes."""
        return self.failures >= FAILURES

    def allows(self, now: float) -> bool:
        """Whether this question may be asked; a question that is allowed while open is the probe."""
        if self.open:
            if now - self.probed_at < PROBE_S:
                return False
            self.probed_at = now
        return True

    def succeeded(self) -> None:
        """An answer came in time."""
        self.failures = 0

    def failed(self, now: float) -> None:
        """None came."""
        self.failures += 1
        self.probed_at = now
