"""One tool being served: its consumer, its deliveries, its runs. From a delivery to the acknowledgement.

The order inside a run is what makes a crash harmless: run, publish the result, wait until the broker has it, then
acknowledge. Whoever dies before the last step leaves the call to be delivered again, and whoever gets it then finds the
result. An `at_most_once` tool is acknowledged, and the acknowledgement confirmed, before it runs.

A delivery is ours until the broker's wait is over without a sign of life. Who was frozen for longer begins nothing with
what it finds on waking up: somebody else may have it.
"""

import asyncio
import time

from catenary_protocols.bus.codec import UndecodableError
from catenary_runtime.provision import ensure_consumer
from nats.aio.msg import Msg
from nats.js.errors import NotFoundError

from catenary_tool_dispatch import metrics
from catenary_tool_dispatch.core.ledger import Event
from catenary_tool_dispatch.core.policy import REFUSALS, Delivery, Verdict, decide
from catenary_tool_dispatch.desk import Desk
from catenary_tool_dispatch.executors import Executor, Invocation
from catenary_tool_dispatch.pull import Puller
from catenary_tool_dispatch.reading import key_of, read_call
from catenary_tool_dispatch.runs import Run, Runner
from catenary_tool_dispatch.specs import Tool

ACK, NAK, TERM, PROGRESS = b"+ACK", b"-NAK", b"+TERM", b"+WPI"
_WAITING_LIMIT = 256
_OURS = 0.8
"""Part of the broker's wait during which we are sure that a delivery is ours: it counts from before we got it."""
_DOUBT_S = 0.5
"""After a freeze, deliveries are left alone for so long: they may have lain in a buffer."""


class Lane:
    """See the module. `tool` may be replaced by another version of itself."""

    def __init__(self, tool: Tool, executor: Executor, desk: Desk) -> None:
        self.name = tool.spec.name
        self.tool = tool
        self._executor = executor
        self._desk = desk
        self._runs: dict[str, Run] = {}
        self._open = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._draining = False
        self._last_attempt = 0
        self._wait_s = 30.0
        self._told_at = 0.0
        self._loop = asyncio.get_running_loop()
        self._ticked_at = self._loop.time()
        self._doubt_until = 0.0
        self._consumer = desk.bus.subjects.executor_consumer(self.name)
        self.puller = Puller(desk.bus, self._consumer, bind=self._bind, on_message=self._on_message, room=self._room)
        self._runner = Runner(tool.spec, executor, desk, self.puller.refill)

    # --- pulling ------------------------------------------------------------------------------------------------

    async def _bind(self) -> str:
        """The durable consumer that all executors of this tool share, with its rules."""
        bus = self._desk.bus
        try:
            info = await bus.js.consumer_info(bus.subjects.tool_stream, self._consumer)
        except NotFoundError:
            await ensure_consumer(bus.js, bus.subjects, self.name)
            info = await bus.js.consumer_info(bus.subjects.tool_stream, self._consumer)
        self._wait_s = min(info.config.backoff or [info.config.ack_wait or self._wait_s])
        self._last_attempt = info.config.max_deliver or 0
        return self._consumer

    def _room(self) -> int:
        if self._draining:
            return 0
        waiting = self._runner.waiting
        return min(self.tool.spec.concurrency - (self._open - waiting), _WAITING_LIMIT - waiting)

    def tick(self, now: float) -> None:
        """Give the broker signs of life of what runs. `now` is loop time; call it a few times a second."""
        if now - self._ticked_at > self._wait_s * _OURS:
            self._doubt_until = now + _DOUBT_S
        self._ticked_at = now
        self.puller.check()
        if now - self._told_at >= self._wait_s / 3:
            self._told_at = now
            for run in self._runs.values():
                if run.held and now < run.ours_until:
                    self._say(run.msg, PROGRESS)
                    run.ours_until = now + self._wait_s * _OURS

    def _say(self, msg: Msg, word: bytes) -> None:
        self._desk.bus.publish_now(msg.reply, word)

    def _on_message(self, msg: Msg) -> None:
        if self._draining:
            self._say(msg, NAK)
        elif self._loop.time() >= self._doubt_until:
            self._open += 1
            self._idle.clear()
            self._desk.spawn(self._take(msg), f"call {self.name}")

    async def _take(self, msg: Msg) -> None:
        try:
            await self._handle(msg)
        finally:
            self._open -= 1
            if not self._open:
                self._idle.set()
            self.puller.refill()

    # --- one delivery -------------------------------------------------------------------------------------------

    async def _handle(self, msg: Msg) -> None:
        desk = self._desk
        try:
            call = read_call(msg.data)
        except UndecodableError as error:
            await self._put_aside(msg, error.message, key_of(msg.headers))
            return
        if call.tool != self.name or call.run_by != "mesh":
            await self._put_aside(msg, f"a {call.run_by} call of {call.tool!r} is out of place here")
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
                ours_until = self._loop.time() + self._wait_s * _OURS
                run = Run(call, Invocation(call.key, arguments.values, raw), msg, ours_until)
                await self._run(run, again=delivery.attempt > 1)
            case Verdict.ALREADY_RUNNING:
                here = self._runs.get(call.key)
                if here is not None:  # else another tool's call has this key: whoever gave it gets one result
                    here.msg, here.ours_until = msg, self._loop.time() + self._wait_s * _OURS
            case Verdict.DUPLICATE:
                self._say(msg, ACK)
            case _:
                if verdict is Verdict.DEAD:
                    await desk.answers.bury(self.name, msg.data, call.key, f"delivered {delivery.attempt} times")
                code, message = REFUSALS[verdict]
                await desk.answers.refuse(call.key, self.name, code, message, arguments.problem)
                self._say(msg, ACK)

    async def _put_aside(self, msg: Msg, reason: str, key: str = "") -> None:
        """What cannot be a call of this tool goes to the dead letters; one that its id names has its result, too."""
        answers = self._desk.answers
        await answers.bury(self.name, msg.data, key or f"seq-{msg.metadata.sequence.stream}", reason)
        if key:
            await answers.refuse(key, self.name, *REFUSALS[Verdict.INVALID], "the arguments cannot be read")
        self._say(msg, TERM)

    async def _run(self, run: Run, *, again: bool) -> None:
        desk, key = self._desk, run.call.key
        desk.ledger.move(Event.START, key, tool=self.name, deadline=run.call.deadline)
        self._runs[key] = run
        word = NAK
        try:
            if again and await desk.answers.first(self.name, key) is not None:
                desk.ledger.move(Event.FINISH, key)
                word = ACK
                return
            outcome = await self._runner.work(run)
            if outcome is not None and run.ended != "answered":
                await desk.answers.publish(self._runner.result(run, outcome))
            word = ACK if outcome is not None else NAK
        finally:
            desk.ledger.move(Event.RELEASE, key)
            if run.held and (word is ACK or self._loop.time() < run.ours_until):
                self._say(run.msg, word)
            del self._runs[key]

    # --- from outside -------------------------------------------------------------------------------------------

    def end(self, key: str, why: str) -> None:
        """Stop a run, if it is here: its turn was `cancelled`, or somebody else has `answered`."""
        if run := self._runs.get(key):
            run.end(why)

    async def drain(self) -> None:
        """Take no more, give back what only waits for a person, and wait for what runs."""
        self._draining = True
        await self.puller.stop()
        for run in list(self._runs.values()):
            if run.waiting:
                run.end("drained")
        await self._idle.wait()
        await self._executor.close()
