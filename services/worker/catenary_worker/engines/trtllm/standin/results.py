"""What `generate_async` and the streams of events and statistics return."""

import asyncio
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from catenary_worker.engines.base import Delta


def likely(token: int, count: int) -> dict[int, SimpleNamespace]:
    """The likeliest ids at a token's place, and the token itself, which was the second of them."""
    ids = [token + 1, token, *(token + further for further in range(2, count + 2))]
    ranked = {one: SimpleNamespace(logprob=-0.5 * rank, rank=rank) for rank, one in enumerate(ids, 1)}
    return {one: ranked[one] for one in {token, *ids[:count]}}


class Result:
    """Yields itself; its output grows."""

    def __init__(self, number: int, sampling: Any, cancel: Callable[[], object]) -> None:
        asyncio.get_running_loop()  # without one, the original's results cannot be awaited
        self.request_id = number
        output = SimpleNamespace(token_ids=[], logprobs=[], finish_reason=None, stop_reason=None)
        output.request_perf_metrics = output.disaggregated_params = None
        self.outputs = [output]
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
        if count := self._sampling.logprobs:
            output.logprobs = [*output.logprobs, *(likely(token, count) for token in response.tokens)]
        self.finished = response.finish is not None
        output.finish_reason = response.finish
        if output.disaggregated_params is not None and response.finish == "length":
            output.finish_reason = "not_finished"
        if response.stop_token and response.tokens[-1] != self._sampling.end_id:
            output.stop_reason = response.tokens[-1]
            if not self._sampling.include_stop_str_in_output:
                output.token_ids = output.token_ids[:-1]
                output.logprobs = output.logprobs[:-1]
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
