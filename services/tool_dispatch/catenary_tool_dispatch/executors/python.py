"""Python callables: coroutine functions on the loop, functions each in a thread of its own.

Python cannot end a thread. One that is not back in time is *abandoned*: its call fails with `timeout`, its slot is
free, and it is counted until it returns. A tool with as many abandoned threads as it has slots gets no more until one
comes back, so that a hanging tool costs its own slots and nothing of anybody else's. The threads are daemons and keep
no process from ending. Code that must be killed belongs in a command.
"""

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import structlog
from catenary_protocols.errors import ToolError

from catenary_tool_dispatch.executors.base import Invocation, Outcome, bounded, text_of
from catenary_tool_dispatch.metrics import ABANDONED

log = structlog.get_logger()


def resolve(target: str) -> Callable[..., object]:
    """The callable that `module:callable` names; raises `ToolError`."""
    module, _, name = target.partition(":")
    try:
        found = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise ToolError(f"{target!r} cannot be loaded: {error}") from error
    if not callable(found):
        raise ToolError(f"{target!r} is not callable")
    return found


class PythonExecutor:
    """See the module. `limit` bounds the abandoned threads, `max_output` the bytes of output."""

    def __init__(self, tool: str, function: Callable[..., object], *, limit: int, max_output: int) -> None:
        self._tool = tool
        self._function = function
        self._coroutine = inspect.iscoroutinefunction(function)
        self._limit = limit
        self._max_output = max_output
        self.abandoned = 0

    async def run(self, invocation: Invocation, seconds: float) -> Outcome:
        """Call it with the arguments by keyword."""
        if self.abandoned >= self._limit:
            return Outcome(code="overloaded", message=f"{self.abandoned} earlier runs of this tool never came back")
        if self._coroutine:
            return await self._on_loop(invocation, seconds)
        return await self._in_thread(invocation, seconds)

    async def close(self) -> None:
        """Nothing is kept between runs."""

    async def _on_loop(self, invocation: Invocation, seconds: float) -> Outcome:
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                return self._returned(await self._function(**invocation.values))  # type: ignore[misc]  # a coroutine
        except (Exception, SystemExit) as error:  # noqa: BLE001  # the boundary around foreign code
            return _late(seconds) if limit.expired() else _raised(error)

    async def _in_thread(self, invocation: Invocation, seconds: float) -> Outcome:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Outcome] = loop.create_future()

        def deliver(outcome: Outcome) -> None:
            if future.done():
                self._came_back()
            else:
                future.set_result(outcome)

        def work() -> None:
            outcome = self._call(invocation.values)
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(deliver, outcome)

        threading.Thread(target=work, name=f"tool-{self._tool}", daemon=True).start()
        try:
            async with asyncio.timeout(seconds):
                return await future
        except TimeoutError:
            self._abandon(invocation.key)
            return _late(seconds)
        except asyncio.CancelledError:
            self._abandon(invocation.key)
            raise

    def _call(self, values: Mapping[str, Any]) -> Outcome:
        try:
            return self._returned(self._function(**values))
        except (Exception, SystemExit) as error:  # noqa: BLE001  # the boundary around foreign code
            return _raised(error)

    def _returned(self, value: object) -> Outcome:
        output, truncated = bounded(text_of(value).encode(), self._max_output)
        return Outcome(output, truncated=truncated)

    def _abandon(self, key: str) -> None:
        self.abandoned += 1
        ABANDONED.labels(tool=self._tool).inc()
        log.warning("tool.thread_abandoned", tool=self._tool, key=key, abandoned=self.abandoned)

    def _came_back(self) -> None:
        self.abandoned -= 1
        ABANDONED.labels(tool=self._tool).dec()


def _late(seconds: float) -> Outcome:
    return Outcome(code="timeout", message=f"the tool did not come back in {seconds:.3g} s")


def _raised(error: Exception | SystemExit) -> Outcome:
    """`ToolError` speaks to the model; of any other exception only the type is told."""
    if isinstance(error, ToolError):
        return Outcome(text_of(error.message), code="failed", message="the tool refused the call")
    return Outcome(code="failed", message=f"the tool raised {type(error).__name__}")
