"""Which worker a session lives on, and how full of sessions each worker is.

The rule: a session is at home where it ran last; its footprint there is its prompt without what it found already
there. Engines tell how many blocks running turns hold, not how many sleeping sessions will want again: this does.
"""

from collections import OrderedDict
from dataclasses import dataclass

AWAY_S = 600.0
"""A session silent for so long is not expected back."""
LIMIT = 65_536


@dataclass(slots=True)
class _Home:
    worker: str
    shared: int
    tokens: int
    at: float


class Homes:
    """Sessions by worker."""

    def __init__(self) -> None:
        self._homes: OrderedDict[str, _Home] = OrderedDict()
        self._tokens: dict[str, int] = {}

    def tokens(self, worker: str) -> int:
        """Footprint of all sessions at home there."""
        return self._tokens.get(worker, 0)

    def of(self, session: str) -> str:
        """The worker a session lives on; "" when it has none."""
        home = self._homes.get(session)
        return home.worker if home is not None else ""

    def kept(self, session: str) -> dict[str, int]:
        """Tokens of the session's last prompt on the worker it lives on: what it finds there, for all we know."""
        home = self._homes.get(session)
        return {home.worker: home.shared + home.tokens} if home is not None else {}

    def placed(self, session: str, worker: str, prompt_tokens: int, found_tokens: int, now: float) -> None:
        """A turn of the session was placed there, where it found so many tokens."""
        home = self._homes.get(session)
        if home is not None and home.worker != worker:
            self._leave(session)
            home = None
        if home is None:
            home = self._homes[session] = _Home(worker, found_tokens, 0, now)
        self._homes.move_to_end(session)
        tokens = max(0, prompt_tokens - home.shared)
        self._tokens[worker] = self.tokens(worker) + tokens - home.tokens
        home.tokens, home.at = tokens, now
        self._expire(now)

    def gone(self, worker: str) -> None:
        """The worker is dead: its sessions have no home."""
        for session in [one for one, home in self._homes.items() if home.worker == worker]:
            self._leave(session)
        self._tokens.pop(worker, None)

    def _expire(self, now: float) -> None:
        while self._homes:
            session, home = next(iter(self._homes.items()))
            if len(self._homes) <= LIMIT and now - home.at <= AWAY_S:
                return
            self._leave(session)

    def _leave(self, session: str) -> None:
        home = self._homes.pop(session)
        self._tokens[home.worker] -= home.tokens
