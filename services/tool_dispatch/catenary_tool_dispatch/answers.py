"""Results and dead letters onto the stream. The rule: a call has one result; who comes second is a duplicate, or late.

`Nats-Msg-Id` makes the first result of a key win. One that finds its call expired goes out under an id of its own,
marked as late, for whoever studies what happened.
"""

import asyncio

import structlog
from catenary_protocols.bus.codec import UndecodableError, encode_json
from catenary_protocols.bus.tool_plane import ToolResult
from catenary_protocols.errors import ErrorInfo
from catenary_protocols.ids import turn_of_call
from catenary_runtime.bus import Bus
from msgspec.structs import replace
from nats.errors import Error as NatsError
from nats.js.api import PubAck
from nats.js.errors import NotFoundError

from catenary_tool_dispatch.core.ledger import Event, Ledger, State
from catenary_tool_dispatch.metrics import DEAD_LETTERS, RESULTS
from catenary_tool_dispatch.reading import read_result

log = structlog.get_logger()
_ACK_S = 2.0
_AGAIN_S = 0.2
_DEAD_LIMIT = 7 * 1024 * 1024


class Answers:
    """See the module. Publishing keeps on until the broker has it, or the caller is cancelled."""

    def __init__(self, bus: Bus, ledger: Ledger) -> None:
        self._bus = bus
        self._ledger = ledger

    async def refuse(self, key: str, tool: str, code: str, message: str, output: str = "") -> None:
        """End a call that is not run."""
        error = ErrorInfo(code=code, message=message, retry=False)
        await self.publish(
            ToolResult(
                key=key,
                tool=tool,
                output=output or message,
                error=error,
                turn_id=turn_of_call(key),
                executor=self._bus.instance,
            )
        )

    async def publish(self, result: ToolResult) -> None:
        """Publish a result; marked as late when the call has expired, dropped when it has another result."""
        outcome = result.error.code if result.error else "ok"
        RESULTS.labels(outcome=outcome).inc()
        expired = self._ledger.state(result.key) is State.EXPIRED
        if outcome == "expired":
            self._ledger.move(Event.EXPIRE, result.key)
            await self._store(result, f"result:{result.key}")
            return
        if not expired:
            self._ledger.move(Event.FINISH, result.key)
            if await self._store(result, f"result:{result.key}"):
                return
            first = await self.first(result.tool, result.key)
            expired = first is not None and first.error is not None and first.error.code == "expired"
        if expired:
            await self._store(replace(result, late=True), f"result:{result.key}:late")

    async def first(self, tool: str, key: str) -> ToolResult | None:
        """The result of this call that is on the stream, if there is one; a late one does not count."""
        data = await self._last(self._bus.subjects.to("tool_result", tool=tool, key=key))
        if data is None:
            return None
        try:
            result = read_result(data)
        except UndecodableError:
            return ToolResult(key=key, tool=tool)  # who wrote it has answered
        if result.late:
            return replace(result, error=ErrorInfo(code="expired", message="the deadline was over"))
        return result

    async def bury(self, tool: str, data: bytes, name: str, reason: str) -> None:
        """Put a call aside, as it came while it fits; `name` identifies it, `reason` is kept in a header."""
        DEAD_LETTERS.inc()
        log.warning("toolcall.dead", tool=tool, call=name, reason=reason)
        headers = {"Nats-Msg-Id": f"dead:{name}", "Catenary-Reason": reason}
        await self._send(self._bus.subjects.to("tool_dead", tool=tool), data[:_DEAD_LIMIT], headers)

    async def consumer_exists(self, tool: str) -> bool:
        """Whether anybody has made a consumer for this tool."""
        subjects = self._bus.subjects
        try:
            await self._bus.js.consumer_info(subjects.tool_stream, subjects.executor_consumer(tool))
        except NotFoundError:
            return False
        return True

    async def _store(self, result: ToolResult, name: str) -> bool:
        """Whether it was the first under this id."""
        subject = self._bus.subjects.to("tool_result", tool=result.tool, key=result.key)
        return not (await self._send(subject, encode_json(result), {"Nats-Msg-Id": name})).duplicate

    async def _last(self, subject: str) -> bytes | None:
        while True:
            try:
                message = await self._bus.js.get_last_msg(self._bus.subjects.tool_stream, subject, direct=True)
            except NotFoundError:
                return None
            except (NatsError, TimeoutError) as error:
                log.warning("answer.not_read", subject=subject, error=str(error) or type(error).__name__)
                await asyncio.sleep(_AGAIN_S)
            else:
                return message.data or b""

    async def _send(self, subject: str, data: bytes, headers: dict[str, str]) -> PubAck:
        while True:
            if self._bus.connected:
                try:
                    return await self._bus.js.publish(subject, data, timeout=_ACK_S, headers=headers)
                except (NatsError, TimeoutError) as error:
                    log.warning("answer.not_stored", subject=subject, error=str(error) or type(error).__name__)
            await asyncio.sleep(_AGAIN_S)
