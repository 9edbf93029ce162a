"""What happens on the tool plane beside our own runs: open calls, others' results, cancels, approvals, dead letters.

The watch reads the stream in its order, from a while before it started, so that an instance knows what was answered,
cancelled and left open before it pulls its first call. Every instance watches; what they publish twice is a duplicate.
"""

import asyncio
import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime

import structlog
from catenary_protocols.bus.codec import UndecodableError
from catenary_protocols.bus.tool_plane import ToolCall
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from catenary_tool_dispatch.core.ledger import Event, State
from catenary_tool_dispatch.core.policy import REFUSALS, Delivery, Verdict, decide
from catenary_tool_dispatch.desk import Desk
from catenary_tool_dispatch.lane import Lane
from catenary_tool_dispatch.pull import Puller
from catenary_tool_dispatch.reading import read_approval, read_call, read_cancel, read_result

log = structlog.get_logger()
_BATCH = 256
_GONE_AFTER_S = 60.0
_KNOWN_S = 10.0
_MAX_DELIVERIES = "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES"


class Watch:
    """See the module. `history_s` is how far back it reads when it starts."""

    def __init__(self, desk: Desk, lanes: Mapping[str, Lane], history_s: float) -> None:
        self.caught_up = asyncio.Event()
        self.desk = desk
        self._lanes = lanes
        self._history_s = history_s
        self._next_sequence = 0
        self._changed = asyncio.Event()
        self._served_until: dict[str, float] = {}
        self._readers = {
            "tool_call": self._on_call,
            "tool_result": self._on_result,
            "tool_cancel": self._on_cancel,
            "tool_approve": self._on_approval,
        }
        self.puller = Puller(desk.bus, "watch", bind=self._bind, on_message=self._on_message, room=lambda: _BATCH)

    async def start(self) -> None:
        """Hear of calls that an executor of anybody's was given too often."""
        stream = self.desk.bus.subjects.tool_stream
        await self.desk.bus.subscribe(f"{_MAX_DELIVERIES}.{stream}.*", self._on_given_up)

    # --- reading the stream -------------------------------------------------------------------------------------

    async def _bind(self) -> str:
        """A consumer of our own that goes on where the last one ended, or begins `history_s` ago."""
        subjects, js = self.desk.bus.subjects, self.desk.bus.js
        if (await js.stream_info(subjects.tool_stream)).state.last_seq + 1 < self._next_sequence:
            self._next_sequence = 0  # another stream of this name: it was made anew
        config = ConsumerConfig(
            ack_policy=AckPolicy.NONE,
            filter_subjects=[
                subjects.to(channel, run_by="mesh") if channel == "tool_call" else subjects.to(channel)
                for channel in self._readers
            ],
            inactive_threshold=_GONE_AFTER_S,
            mem_storage=True,
        )
        if self._next_sequence:
            config.deliver_policy, config.opt_start_seq = DeliverPolicy.BY_START_SEQUENCE, self._next_sequence
        else:
            config.deliver_policy = DeliverPolicy.BY_START_TIME
            config.opt_start_time = datetime.fromtimestamp(time.time() - self._history_s, UTC)
        info = await js.add_consumer(subjects.tool_stream, config)
        if not info.num_pending:
            self.caught_up.set()
        return info.name

    def _on_message(self, msg: Msg) -> None:
        metadata = msg.metadata
        self._next_sequence = metadata.sequence.stream + 1
        try:
            for channel, read in self._readers.items():
                names = self.desk.bus.subjects.match(channel, msg.subject)
                if names is not None:
                    read(msg, names)
        finally:
            if not metadata.num_pending:
                self.caught_up.set()

    def _on_call(self, msg: Msg, names: dict[str, str]) -> None:
        call = read_call(msg.data)
        if names["run_by"] != "mesh":
            return
        if self.desk.ledger.move(Event.SEE, call.key, tool=call.tool, deadline=call.deadline):
            self._changed.set()
            if call.tool not in self._lanes:
                self.desk.spawn(self._answer_for_nobody(call), "unknown tool")

    def _on_result(self, msg: Msg, names: dict[str, str]) -> None:
        result = read_result(msg.data)
        expired = result.late or (result.error is not None and result.error.code == "expired")
        if self.desk.ledger.move(Event.EXPIRE if expired else Event.FINISH, names["key"]):
            self._end(names, "answered")

    def _on_cancel(self, msg: Msg, names: dict[str, str]) -> None:
        read_cancel(msg.data)
        if self.desk.ledger.move(Event.CANCEL, names["key"]):
            self._end(names, "cancelled")

    def _on_approval(self, msg: Msg, names: dict[str, str]) -> None:
        approval = read_approval(msg.data)
        if approval.key == names["key"]:
            self.desk.approvals.give(approval)

    def _end(self, names: dict[str, str], why: str) -> None:
        lane = self._lanes.get(names["tool"])
        if lane is not None:
            lane.end(names["key"], why)

    # --- answering where nobody does ----------------------------------------------------------------------------

    async def expire(self) -> None:
        """At its deadline, a call that nobody answered has its result: expired. Runs until cancelled."""
        await self.caught_up.wait()
        desk = self.desk
        while True:
            self._changed.clear()
            for call in desk.ledger.due(time.time()):
                desk.spawn(desk.answers.refuse(call.key, call.tool, *REFUSALS[Verdict.EXPIRED]), "expire")
            deadline = desk.ledger.next_deadline()
            try:
                async with asyncio.timeout(None if deadline is None else deadline - time.time()):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _answer_for_nobody(self, call: ToolCall) -> None:
        """A call of a tool that neither we nor anybody else has a consumer for is answered at once."""
        await self.caught_up.wait()
        desk = self.desk
        if desk.ledger.state(call.key) is not State.SEEN or await self._served(call.tool):
            return
        delivery = Delivery(call, state=desk.ledger.state(call.key), registered=False)
        refusal = REFUSALS.get(decide(delivery, time.time()))
        if refusal is not None:
            await desk.answers.refuse(call.key, call.tool, *refusal)

    async def _served(self, tool: str) -> bool:
        now = asyncio.get_running_loop().time()
        if self._served_until.get(tool, 0.0) < now:
            try:
                if not await self.desk.answers.consumer_exists(tool):
                    return False
            except (NatsError, TimeoutError):
                return True  # not known just now; the deadline will tell
            if len(self._served_until) > _BATCH:
                self._served_until.clear()
            self._served_until[tool] = now + _KNOWN_S
        return True

    def _on_given_up(self, msg: Msg) -> None:
        advisory = json.loads(msg.data)
        tool = self.desk.bus.subjects.tool_of_consumer(str(advisory["consumer"]))
        if tool is not None:
            self.desk.spawn(self._give_up(tool, int(advisory["stream_seq"])), "dead letter")

    async def _give_up(self, tool: str, sequence: int) -> None:
        """The broker has delivered a call for the last time and got no acknowledgement."""
        desk = self.desk
        try:
            stored = await desk.bus.js.get_msg(desk.bus.subjects.tool_stream, sequence)
        except (NatsError, TimeoutError):
            return
        data = stored.data or b""
        try:
            call = read_call(data)
        except UndecodableError as error:
            await desk.answers.bury(tool, data, f"seq-{sequence}", error.message)
            return
        if desk.ledger.state(call.key) in {State.SEEN, None}:
            await desk.answers.bury(tool, data, call.key, "given up by the broker")
            await desk.answers.refuse(call.key, tool, *REFUSALS[Verdict.DEAD])
