"""What became ready, until the worker takes it: one delta a turn, KV events in order."""

import asyncio
from collections.abc import AsyncIterator, Callable

from catenary_protocols.errors import EngineError

from catenary_worker.engines.base import Delta, EngineLoad, KvEvent, Step


class Steps:
    """Written by many, read by one.

    Attributes:
        broken: why the engine cannot go on.
    """

    def __init__(self) -> None:
        self._deltas: dict[tuple[str, int], Delta] = {}
        self._kv: list[KvEvent] = []
        self.broken: EngineError | None = None
        self._closed = False
        self._wake = asyncio.Event()

    def add(self, delta: Delta) -> None:
        """Joined to what the turn has already got in this step."""
        key = (delta.turn_id, delta.attempt)
        before = self._deltas.get(key)
        self._deltas[key] = delta if before is None else _joined(before, delta)
        self._wake.set()

    def add_kv(self, events: list[KvEvent]) -> None:
        """KV events, after all earlier ones."""
        self._kv += events
        self._wake.set()

    def fail(self, error: EngineError) -> None:
        """The engine is broken; the first reason counts."""
        self.broken = self.broken or error
        self._wake.set()

    def close(self) -> None:
        """No more will come."""
        self._closed = True
        self._wake.set()

    async def read(self, load: Callable[[], EngineLoad]) -> AsyncIterator[Step]:
        """Every step. Raises the `EngineError` of `fail` after what came before it."""
        while True:
            await self._wake.wait()
            await asyncio.sleep(0)  # whatever is ready in this tick of the loop belongs to the same step
            self._wake.clear()
            if self._deltas or self._kv:
                deltas, kv = list(self._deltas.values()), self._kv
                self._deltas, self._kv = {}, []
                self._wake.set()
                yield Step(deltas, kv, load())
            elif self.broken is not None:
                raise self.broken
            elif self._closed:
                return


def _joined(first: Delta, second: Delta) -> Delta:
    return Delta(
        first.turn_id,
        first.attempt,
        first.offset,
        first.tokens + second.tokens,
        first.started or second.started,
        second.finish,
        second.error,
        second.stop_token,
        first.logprobs + second.logprobs,
        second.handoff,
    )
