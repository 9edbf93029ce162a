"""One tool being served: its consumer, its slots, its runs. From a delivery to the acknowledgement.

The order inside a run is what makes a crash harmless: run, publish the result, wait until the broker has it, then
acknowledge. Whoever dies before the last step leaves the call to be delivered again, and whoever gets it then finds the
result. An `at_most_once` tool is acknowledged, and the acknowledgement confirmed, before it runs.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any

import structlog
from catenary_protocols.bus.codec import Decoder, UndecodableError
from catenary_protocols.bus.tool_plane import ToolCall, ToolResult
from catenary_protocols.errors import ErrorInfo
from catenary_runtime import semconv, telemetry
from catenary_runtime.bus import Bus
from catenary_runtime.provision import ensure_consumer
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js.errors import NotFoundError

from catenary_tool_dispatch import metrics
from catenary_tool_dispatch.answers import Answers
from catenary_tool_dispatch.approvals import Approvals
from catenary_tool_dispatch.core.ledger import Event, Ledger
from catenary_tool_dispatch.core.policy import REFUSALS, Delivery, Verdict, budget, decide
from catenary_tool_dispatch.executors import Executor, Invocation, Outcome
from catenary_tool_dispatch.pull import Puller
from catenary_tool_dispatch.registry import Tool

log = structlog.get_logger()
Spawn = Callable[[Coroutine[Any, Any, None], str], object]
decode_call = Decoder(ToolCall, json=True)
ACK, NAK, TERM, PROGRESS = b"+ACK", b"-NAK", b"+TERM", b"+WPI"
_CONFIRM_S = 2.0
_WAITING_LIMIT = 256


@dataclass(slots=True)
class Run:
    """A call that is being run here.

    Attributes:
        msg: its newest delivery, which is acknowledged in the end.
        held: the delivery is ours until we acknowledge it, so that progress is due.
        ended: why the work was cancelled, if it was: `cancelled`, `answered` (by somebody else) or `drained`.
    """

    call: ToolCall
    invocation: Invocation
    msg: Msg
    approval: bool
    held: bool = True
    waiting: bool = False
    started_at: float = 0.0
    ended: str = ""
    work: asyncio.Task[Outcome | None] | None = None


@dataclass(slots=True)
class Desk:
    """What the lanes of one instance share."""

    bus: Bus
    ledger: Ledger
    answers: Answers
    approvals: Approvals
    spawn: Spawn


class Lane:
    """See the module."""

    def __init__(self, tool: Tool, executor: Executor, desk: Desk) -> None:
        self.tool = tool
        self.name = tool.spec.name
        self.draining = False
        self.runs: dict[str, Run] = {}
        self._executor = executor
        self._desk = desk
        self._slots = asyncio.Semaphore(tool.spec.concurrency)
        self._taken = 0
        self._open = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._last_attempt = 0
        self._progress_s = 1.0
        self._told_at = 0.0
        self._consumer = desk.bus.subjects.executor_consumer(self.name)
        self.puller = Puller(desk.bus, self._consumer, bind=self._bind, on_message=self._on_message, room=self._room)

    # --- pulling ------------------------------------------------------------------------------------------------

    async def _bind(self) -> str:
        """The durable consumer that all executors of this tool share, with its rules."""
        bus = self._desk.bus
        try:
            info = await bus.js.consumer_info(bus.subjects.tool_stream, self._consumer)
        except NotFoundError:
            await ensure_consumer(bus.js, bus.subjects, self.name)
            info = await bus.js.consumer_info(bus.subjects.tool_stream, self._consumer)
        waits = info.config.backoff or [info.config.ack_wait or 30.0]
        self._progress_s = min(waits) / 3
        self._last_attempt = info.config.max_deliver or 0
        return self._consumer

    def _room(self) -> int:
        if self.draining:
            return 0
        waiting = sum(run.waiting for run in self.runs.values()) if self.tool.spec.approval else 0
        return min(self.tool.spec.concurrency - self._taken, _WAITING_LIMIT - waiting)

    def tick(self, now: float) -> None:
        """Tell the broker what still runs. `now` is loop time."""
        self.puller.check()
        if now - self._told_at >= self._progress_s:
            self._told_at = now
            for run in self.runs.values():
                if run.held:
                    self._say(run.msg, PROGRESS)

    def _say(self, msg: Msg, word: bytes) -> None:
        self._desk.bus.publish_now(msg.reply, word)

    def _on_message(self, msg: Msg) -> None:
        if self.draining:
            self._say(msg, NAK)
            return
        self._taken += 1
        self._open += 1
        self._idle.clear()
        self._desk.spawn(self._take(msg), f"call {self.name}")

    async def _take(self, msg: Msg) -> None:
        try:
            await self._handle(msg)
        finally:
            self._taken -= 1
            self._open -= 1
            if not self._open:
                self._idle.set()
            self.puller.refill()

    # --- one delivery -------------------------------------------------------------------------------------------

    async def _handle(self, msg: Msg) -> None:
        desk = self._desk
        try:
            call = self._decode(msg.data)
        except UndecodableError as error:
            await desk.answers.bury(self.name, msg.data, f"seq-{msg.metadata.sequence.stream}", error.message)
            self._say(msg, TERM)
            return
        raw = bytes(call.arguments)
        arguments = self.tool.check(raw)
        delivery = Delivery(
            call=call,
            attempt=msg.metadata.num_delivered,
            last_attempt=self._last_attempt,
            state=desk.ledger.state(call.key),
            problem=arguments.problem,
            approval=self.tool.spec.approval,
        )
        verdict = decide(delivery, time.time())
        metrics.VERDICTS.labels(tool=self.name, verdict=verdict.value).inc()
        match verdict:
            case Verdict.RUN | Verdict.AWAIT_APPROVAL:
                run = Run(call, Invocation(call.key, arguments.values, raw), msg, delivery.approval)
                await self._run(run, again=delivery.attempt > 1)
            case Verdict.ALREADY_RUNNING:
                self.runs[call.key].msg = msg
            case Verdict.DUPLICATE:
                self._say(msg, ACK)
            case _:
                if verdict is Verdict.DEAD:
                    await desk.answers.bury(self.name, msg.data, call.key, f"delivered {delivery.attempt} times")
                code, message = REFUSALS[verdict]
                await desk.answers.refuse(call.key, self.name, code, message, arguments.problem)
                self._say(msg, ACK)

    def _decode(self, data: bytes) -> ToolCall:
        call = decode_call(data)
        if call.tool != self.name or call.run_by != "mesh":
            raise UndecodableError(f"a {call.run_by} call of {call.tool!r} is out of place here")
        return call

    async def _run(self, run: Run, *, again: bool) -> None:
        desk, key = self._desk, run.call.key
        desk.ledger.move(Event.START, key, tool=self.name, deadline=run.call.deadline)
        self.runs[key] = run
        try:
            if again and await desk.answers.first(self.name, key) is not None:
                desk.ledger.move(Event.FINISH, key)
                self._say(run.msg, ACK)
                return
            outcome = await self._work(run)
            if outcome is None:
                desk.ledger.move(Event.RELEASE, key)
                if run.held:
                    self._say(run.msg, NAK)
                return
            if run.ended != "answered":
                await desk.answers.publish(self._result(run, outcome))
            if run.held:
                self._say(run.msg, ACK)
        except asyncio.CancelledError:
            desk.ledger.move(Event.RELEASE, key)
            if run.held:
                self._say(run.msg, NAK)
            raise
        finally:
            del self.runs[key]

    async def _work(self, run: Run) -> Outcome | None:
        """What came of it; None when the call goes back to the broker."""
        async with asyncio.TaskGroup() as scope:
            run.work = scope.create_task(self._perform(run), name=f"work {self.name}")
            if run.ended:
                run.work.cancel()
        if not run.work.cancelled():
            return run.work.result()
        if run.ended == "drained" and run.held:
            return None
        if run.ended == "drained":
            return Outcome(code="failed", message="the executor was shut down")
        code, message = REFUSALS[Verdict.CANCELLED]
        return Outcome(code=code, message=message)

    # --- the work -----------------------------------------------------------------------------------------------

    async def _perform(self, run: Run) -> Outcome | None:
        if run.approval:
            refusal = await self._await_approval(run)
            if refusal is not None:
                return refusal
        async with self._slots:
            if self.tool.spec.at_most_once and not await self._confirm(run):
                return None
            return await self._execute(run)

    async def _await_approval(self, run: Run) -> Outcome | None:
        """None for yes. A call that waits holds no slot."""
        left = run.call.deadline - time.time() if run.call.deadline else None
        self._wait(run, waiting=True)
        try:
            async with asyncio.timeout(left):
                approval = await self._desk.approvals.wait(run.call.key)
        except TimeoutError:
            return Outcome(code="expired", message="nobody approved the call before its deadline")
        finally:
            self._wait(run, waiting=False)
        if approval.approved:
            return None
        return Outcome(approval.reason, code="denied", message="the call was not approved")

    def _wait(self, run: Run, *, waiting: bool) -> None:
        run.waiting = waiting
        self._taken += -1 if waiting else 1
        self.puller.refill()

    async def _confirm(self, run: Run) -> bool:
        """Acknowledge now, and be sure of it; otherwise the call must not run here."""
        try:
            await run.msg.ack_sync(timeout=_CONFIRM_S)
        except (NatsError, TimeoutError):
            return False
        run.held = False
        return True

    async def _execute(self, run: Run) -> Outcome:
        call, spec = run.call, self.tool.spec
        run.started_at = time.time()
        if call.published_at and not run.approval and run.msg.metadata.num_delivered == 1:
            metrics.DISPATCH_SECONDS.observe(max(run.started_at - call.published_at, 0.0))
        limit = budget(call, spec.timeout_s, run.started_at)
        if not limit.seconds:
            return Outcome(code=limit.code, message="the deadline of this call was over before it could run")
        attributes = {
            semconv.OPERATION: "execute_tool",
            semconv.TOOL_NAME: spec.name,
            semconv.TOOL_CALL_ID: call.id,
            semconv.TOOL_TYPE: "function",
            semconv.CALL_KEY: call.key,
            semconv.TURN_ID: call.turn_id,
        }
        span = telemetry.start(f"execute_tool {spec.name}", telemetry.extract(run.msg.headers), attributes)
        code = "cancelled"
        try:
            with metrics.RUNNING.labels(tool=spec.name).track_inprogress():
                outcome = await self._executor.run(run.invocation, limit.seconds)
            if outcome.code == "timeout":
                outcome = replace(outcome, code=limit.code)
            code = outcome.code
            return outcome
        finally:
            seconds = time.time() - run.started_at
            metrics.SECONDS.labels(tool=spec.name, outcome=code or "ok").observe(seconds)
            span.set_attribute(semconv.TOOL_OUTCOME, code or "ok")
            if code:
                telemetry.fail(span, code)
            span.end()
            log.info("toolcall.done", tool=spec.name, key=call.key, outcome=code or "ok", ms=round(seconds * 1e3, 2))

    def _result(self, run: Run, outcome: Outcome) -> ToolResult:
        error = ErrorInfo(code=outcome.code, message=outcome.message, retry=False) if outcome.code else None
        return ToolResult(
            key=run.call.key,
            tool=self.name,
            output=outcome.output or outcome.message,
            error=error,
            turn_id=run.call.turn_id,
            executor=self._desk.bus.instance,
            started_at=run.started_at,
            duration_ms=(time.time() - run.started_at) * 1e3 if run.started_at else 0.0,
            truncated=outcome.truncated,
        )

    # --- from outside -------------------------------------------------------------------------------------------

    def end(self, key: str, why: str) -> None:
        """Stop a run, if it is still at work here: its turn was `cancelled`, or somebody else has `answered`."""
        run = self.runs.get(key)
        if run is not None and (run.work is None or not run.work.done()):
            run.ended = why
            if run.work is not None:
                run.work.cancel()

    async def drain(self) -> None:
        """Take no more, give back what only waits for a person, and wait for what runs."""
        self.draining = True
        await self.puller.stop()
        for key, run in list(self.runs.items()):
            if run.waiting:
                self.end(key, "drained")
        await self._idle.wait()
