"""What `generate_async` and the streams of events and statistics return."""

import asyncio
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from catenary_worker.engines.base import Delta


class Result:
    """Yields itself; its output grows."""

    def __init__(self, number: int, sampling: Any, cancel: Callable[[], object]) -> None:
        asyncio.get_running_loop()  # without one, the original's results cannot be awaited
        self.request_id = number
        self.outputs = [SimpleNamespace(token_ids=[], finish_reason=None, stop_reason=None, request_perf_metrics=None)]
        self.finished = False
        self.cached_tokens = 0
        self.aborts = 0
        self._sampling = sampling
        self._cancel = cancel
        self._queue: asyncio.Queue[Delta | Exception] = asyncio.Queue()

    def abort(self) -> None:
        """Asynchronous: a last response follows."""
        self.aborts += 1
        self._cancel()

    def put(self, response: Delta | Exception) -> None:
        """What the executor says of this request."""
        self._queue.put_nowait(response)

    def __aiter__(self) -> "Result":
        return self

    async def __anext__(self) -> "Result":
        if self.finished:
            raise StopAsyncIteration
        response = await self._queue.get()
        if isinstance(response, Exception):
            self.finished = True
            raise response
        output = self.outputs[0]
        output.token_ids = [*output.token_ids, *response.tokens]
        self.finished = response.finish is not None
        output.finish_reason = response.finish
        if response.stop_token and response.tokens[-1] != self._sampling.end_id:
            output.stop_reason = response.tokens[-1]
            if not self._sampling.include_stop_str_in_output:
                output.token_ids = output.token_ids[:-1]
        return self


class Stream:
    """The older versions' iterator over events or statistics: over when it was quiet, until a request comes."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[str] = asyncio.Queue()
        self.done = False
        self._timeout = 0.0

    def within(self, timeout: float) -> "Stream":
        """The same iterator; it ends at the first wait that is longer."""
        self._timeout = timeout
        return self

    def mark_undone(self) -> None:
        """It goes on."""
        self.done = False

    def __aiter__(self) -> "Stream":
        return self

    async def __anext__(self) -> object:
        if self.done:
            raise StopAsyncIteration
        try:
            return json.loads(await asyncio.wait_for(self.queue.get(), self._timeout))
        except TimeoutError:
            self.done = True
            raise StopAsyncIteration from None
