"""Calls that wait for a person's yes. An answer may come before its call; it is kept for it, within bounds."""

import asyncio

from catenary_protocols.bus.tool_plane import Approval

_EARLY_LIMIT = 10_000


class Approvals:
    """Answers by call key."""

    def __init__(self) -> None:
        self._early: dict[str, Approval] = {}
        self._waiting: dict[str, asyncio.Future[Approval]] = {}

    def give(self, approval: Approval) -> None:
        """An answer has come. The first one counts."""
        waiting = self._waiting.get(approval.key)
        if waiting is None:
            self._early.setdefault(approval.key, approval)
            if len(self._early) > _EARLY_LIMIT:
                del self._early[next(iter(self._early))]
        elif not waiting.done():
            waiting.set_result(approval)

    async def wait(self, key: str) -> Approval:
        """The answer for a call, when it comes."""
        early = self._early.pop(key, None)
        if early is not None:
            return early
        waiting: asyncio.Future[Approval] = asyncio.get_running_loop().create_future()
        self._waiting[key] = waiting
        try:
            return await waiting
        finally:
            del self._waiting[key]
