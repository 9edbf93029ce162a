"""Paces steps in real time. Due times are absolute, so that late wake-ups do not add up."""

import asyncio

_CATCH_UP_S = 0.05
"""A machine that was away for longer than this goes on from now instead of hurrying after."""


class Pace:
    """`scale` 1 is real time, 0.5 twice as fast, 0 as fast as the machine goes."""

    def __init__(self, scale: float) -> None:
        self._scale = scale
        self._due = 0.0

    def rest(self) -> None:
        """Nothing runs: the next step begins when it begins."""
        self._due = 0.0

    async def take(self, seconds: float) -> None:
        """Return when a step that takes so long is over; lets other tasks run in any case."""
        now = asyncio.get_running_loop().time()
        self._due = max(self._due, now - _CATCH_UP_S if self._due else now) + seconds * self._scale
        await asyncio.sleep(max(0.0, self._due - now))
