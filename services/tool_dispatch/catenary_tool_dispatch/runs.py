"""One run of a tool: somebody's yes if it needs one, a slot, the acknowledgement if that comes first, the tool."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog
from catenary_protocols.bus.tool_plane import ToolCall, ToolResult
from catenary_protocols.errors import ErrorInfo
from catenary_runtime import semconv, telemetry
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from opentelemetry.trace import use_span

from catenary_tool_dispatch import metrics
from catenary_tool_dispatch.core.policy import REFUSALS, Verdict, budget
from catenary_tool_dispatch.desk import Desk
from catenary_tool_dispatch.executors import Executor, Invocation, Outcome
from catenary_tool_dispatch.executors.base import UNAVAILABLE
from catenary_tool_dispatch.specs import ToolSpec

log = structlog.get_logger()
_CONFIRM_S = 2.0


@dataclass(slots=True)
class Run:
    """A call that is being run here.

    Attributes:
        msg: its newest delivery, which is acknowledged in the end.
        ours_until: loop time until which nobody else is given the call: the last sign of life, and a wait.
        held: not acknowledged yet, so that signs of life are due.
        ended: why the work was cancelled, if it was: `cancelled`, `answered` (by somebody else) or `drained`.
    """

    call: ToolCall
    invocation: Invocation
    msg: Msg
    ours_until: float
    held: bool = True
    waiting: bool = False
    started_at: float = 0.0
    ended: str = ""
    work: asyncio.Task[Outcome | None] | None = None

    def end(self, why: str) -> None:
        """Stop the work, if it is still going on."""
        if self.work is None or not self.work.done():
            self.ended = why
            if self.work is not None:
                self.work.cancel()


class Runner:
    """Runs the calls of one tool.

    Attributes:
        waiting: how many calls wait for a person; they hold no slot. `on_change` is called when it changes.
    """

    def __init__(self, spec: ToolSpec, executor: Executor, desk: Desk, on_change: Callable[[], None]) -> None:
        self.waiting = 0
        self._spec = spec
        self._executor = executor
        self._desk = desk
        self._on_change = on_change
        self._slots = asyncio.Semaphore(spec.concurrency)

    async def work(self, run: Run) -> Outcome | None:
        """What came of it; None when the call goes back to the broker."""
        async with asyncio.TaskGroup() as scope:
            run.work = scope.create_task(self._perform(run), name=f"work {self._spec.name}")
            if run.ended:
                run.work.cancel()
        if not run.work.cancelled():
            return run.work.result()
        if run.ended == "drained":
            return None
        code, message = REFUSALS[Verdict.CANCELLED]
        return Outcome(code=code, message=message)

    def result(self, run: Run, outcome: Outcome) -> ToolResult:
        """The outcome as it is published."""
        error = ErrorInfo(code=outcome.code, message=outcome.message, retry=False) if outcome.code else None
        return ToolResult(
            key=run.call.key,
            tool=run.call.tool,
            output=outcome.output or outcome.message,
            error=error,
            turn_id=run.call.turn_id,
            executor=self._desk.bus.instance,
            started_at=run.started_at,
            duration_ms=(time.time() - run.started_at) * 1e3 if run.started_at else 0.0,
            truncated=outcome.truncated,
        )

    async def _perform(self, run: Run) -> Outcome | None:
        if self._spec.approval:
            refusal = await self._await_approval(run)
            if refusal is not None:
                return refusal
        async with self._slots:
            if self._spec.at_most_once and not await self._confirm(run):
                return None
            if asyncio.get_running_loop().time() >= run.ours_until:
                return None
            return await self._execute(run)

    async def _await_approval(self, run: Run) -> Outcome | None:
        """None for yes."""
        left = run.call.deadline - time.time() if run.call.deadline else None
        self._wait(run, 1)
        try:
            async with asyncio.timeout(left):
                approval = await self._desk.approvals.wait(run.call.key)
        except TimeoutError:
            return Outcome(code="expired", message="nobody approved the call before its deadline")
        finally:
            self._wait(run, -1)
        if approval.approved:
            return None
        return Outcome(approval.reason, code="denied", message="the call was not approved")

    def _wait(self, run: Run, more: int) -> None:
        run.waiting = more > 0
        self.waiting += more
        self._on_change()

    async def _confirm(self, run: Run) -> bool:
        """Acknowledge now, and be sure of it; otherwise the call must not run here."""
        try:
            await run.msg.ack_sync(timeout=_CONFIRM_S)
        except (NatsError, TimeoutError):
            return False
        run.held = False
        return True

    async def _execute(self, run: Run) -> Outcome | None:
        call, name = run.call, self._spec.name
        run.started_at = time.time()
        if call.published_at and not self._spec.approval and run.msg.metadata.num_delivered == 1:
            metrics.DISPATCH_SECONDS.observe(max(run.started_at - call.published_at, 0.0))
        limit = budget(call, self._spec.timeout_s, run.started_at)
        if not limit.seconds:
            code, message = REFUSALS[Verdict.EXPIRED]
            return Outcome(code=code, message=message)
        attributes = {
            semconv.OPERATION: "execute_tool",
            semconv.TOOL_NAME: name,
            semconv.TOOL_CALL_ID: call.id,
            semconv.TOOL_TYPE: "function",
            semconv.CALL_KEY: call.key,
            semconv.TURN_ID: call.turn_id,
        }
        span = telemetry.start(f"execute_tool {name}", telemetry.extract(run.msg.headers), attributes)
        code = "cancelled"
        try:
            with (
                metrics.RUNNING.labels(tool=name).track_inprogress(),
                use_span(span, record_exception=False, set_status_on_exception=False),
            ):
                outcome = await self._executor.run(run.invocation, limit.seconds)
            if outcome.code == "timeout":
                outcome = replace(outcome, code=limit.code)
            code = outcome.code
            if code == UNAVAILABLE:
                return None if run.held else replace(outcome, code="failed")
            return outcome
        finally:
            seconds = time.time() - run.started_at
            metrics.SECONDS.labels(tool=name, outcome=code or "ok").observe(seconds)
            span.set_attribute(semconv.TOOL_OUTCOME, code or "ok")
            if code:
                telemetry.fail(span, code)
            span.end()
            log.info("toolcall.done", tool=name, key=call.key, outcome=code or "ok", ms=round(seconds * 1e3, 2))
