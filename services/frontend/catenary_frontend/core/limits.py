"""How much one key may do. Rule: whoever is refused is told the moment from which the same request is let in.

Requests and tokens flow back evenly, a minute's worth at most. Tokens are known when a turn has ended: a turn is let in
while the account is not overdrawn, and what it used is taken off then, so that a long answer is paid for by waiting.
"""

from dataclasses import dataclass
from math import ceil

from catenary_protocols.errors import CapacityError, RequestError

MINUTE = 60.0
TURN_S = 1.0
"""When a place for a turn gets free cannot be known; this is when to look again."""


@dataclass(slots=True)
class Bucket:
    """So much a minute. Times in seconds, of any clock.

    Attributes:
        limit: None for no limit.
    """

    limit: int | None
    level: float
    at: float

    def fill(self, now: float) -> None:
        """Let flow back what time has brought."""
        if self.limit is not None:
            self.level = min(self.limit, self.level + (now - self.at) * self.limit / MINUTE)
        self.at = now

    def wait(self, least: float) -> float:
        """Seconds until the level is at `least`; 0 when it is."""
        return 0.0 if self.limit is None else max(0.0, (least - self.level) * MINUTE / self.limit)


class Limits:
    """What one key has left."""

    def __init__(self, now: float) -> None:
        self._requests = Bucket(None, 0, now)
        self._tokens = Bucket(None, 0, now)
        self._turns: int | None = None
        self.running = 0

    def set(self, now: float, requests: int | None, tokens: int | None, turns: int | None) -> None:
        """The limits from now on; what was used stays used."""
        for bucket, limit in ((self._requests, requests), (self._tokens, tokens)):
            bucket.fill(now)
            if limit is not None:
                bucket.level = float(limit) if bucket.limit is None else min(bucket.level, limit)
            bucket.limit = limit
        self._turns = turns

    def request(self, now: float) -> None:
        """Count a request; raises `CapacityError`."""
        self._requests.fill(now)
        self._refuse("requests", self._requests, self._requests.wait(1))
        self._requests.level -= 1

    def begin(self, now: float, turns: int) -> None:
        """Count turns that begin; raises `CapacityError`, or `RequestError` for more than there can be at a time."""
        if self._turns is not None and turns > self._turns:
            raise RequestError(f"this key may have {self._turns} turns at a time", code="permission_denied", field="n")
        self._tokens.fill(now)
        self._refuse("tokens", self._tokens, self._tokens.wait(1))
        if self._turns is not None and self.running + turns > self._turns:
            raise CapacityError(
                f"this key may have {self._turns} turns at a time, and has {self.running}",
                code="rate_limit_exceeded",
                retry_after=TURN_S,
            )
        self.running += turns

    def end(self, now: float, turns: int, tokens: int) -> None:
        """Turns are over, and have used so many tokens."""
        self.running -= turns
        self._tokens.fill(now)
        self._tokens.level -= tokens

    @staticmethod
    def _refuse(what: str, bucket: Bucket, wait: float) -> None:
        if wait <= 0:
            return
        raise CapacityError(
            f"this key may use {bucket.limit} {what} a minute; the next in {wait:.1f} s",
            code="rate_limit_exceeded",
            retry_after=wait,
            numbers={
                f"limit-{what}": bucket.limit or 0,
                f"remaining-{what}": max(0, int(bucket.level)),
                f"reset-{what}": ceil(wait),
            },
        )
