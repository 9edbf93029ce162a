"""The standard streams of an MCP server: a process, and a message a line, none longer than is kept.

The SDK's own transport keeps a line until it ends, and one that never does would fill the memory. Here a line over the
bound is dropped as it comes. If it was the answer to a call, which its beginning or end tells, that call fails.
"""

import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from subprocess import PIPE
from typing import TextIO, TypeVar

import anyio
import mcp_types as types
import structlog
from anyio.abc import ByteReceiveStream, ByteSendStream, ObjectReceiveStream, ObjectSendStream, Process
from mcp.os.posix.utilities import terminate_posix_process_tree
from mcp.shared.message import SessionMessage

log = structlog.get_logger()
TOO_LONG = -32001
"""JSON-RPC code of an answer that was dropped: one of those left to implementations."""
_FLUSH_S, _GRACE_S = 0.5, 2.0
_ENDS = 128
"""Bytes of a dropped line's beginning and end that are kept."""
_ID_FIRST = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d+)\s*,')
_ID_LAST = re.compile(rb',\s*"id"\s*:\s*(\d+)\s*\}\s*$')
_Gone = (anyio.ClosedResourceError, anyio.BrokenResourceError, OSError)
_Received = SessionMessage | Exception
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Overlong:
    """A line that was dropped: how it began and ended."""

    head: bytes
    tail: bytes

    @property
    def answers(self) -> int | None:
        """The request that it was the answer to, where its first or last field tells."""
        found = _ID_FIRST.match(self.head) or _ID_LAST.search(self.tail)
        return int(found[1]) if found else None


class Lines:
    """Bytes in, lines out; holds no more than `most` bytes and what was fed last."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept = bytearray()
        self._head: bytes | None = None

    def feed(self, data: bytes) -> Iterator[bytes | Overlong]:
        """The lines that are whole now."""
        *ended, begun = data.split(b"\n")
        for part in ended:
            self._add(part)
            yield bytes(self._kept) if self._head is None else Overlong(self._head, bytes(self._kept))
            self._kept, self._head = bytearray(), None
        self._add(begun)

    def _add(self, part: bytes) -> None:
        self._kept += part
        if self._head is None and len(self._kept) > self._most:
            self._head = bytes(self._kept[:_ENDS])
        if self._head is not None:
            del self._kept[:-_ENDS]


@asynccontextmanager
async def stdio(
    command: Sequence[str], environment: Mapping[str, str], errlog: TextIO, most: int
) -> AsyncIterator[tuple[ObjectReceiveStream[_Received], ObjectSendStream[SessionMessage]]]:
    """A transport for the SDK's client. The process ends with the block: asked to, then made to, with its children.

    Raises:
        OSError: it cannot be started.
    """
    try:
        process = await anyio.open_process(
            command, stdin=PIPE, stdout=PIPE, stderr=errlog, env=environment, start_new_session=True
        )
    except OSError as error:
        error.filename = command[0]  # uvloop leaves it out
        raise
    into_session, received = anyio.create_memory_object_stream[_Received](0)
    sent, out_of_session = anyio.create_memory_object_stream[SessionMessage](0)
    written = anyio.Event()

    async def write() -> None:
        await _write(out_of_session, _given(process.stdin))
        await into_session.aclose()  # nothing can be said any more: the session is over
        written.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_read, _given(process.stdout), into_session, most)
        tasks.start_soon(write)
        try:
            yield received, sent
        finally:
            with anyio.CancelScope(shield=True):
                received.close()
                sent.close()
                with anyio.move_on_after(_FLUSH_S):
                    await written.wait()
                await _end(process)
            tasks.cancel_scope.cancel()


async def _read(stdout: ByteReceiveStream, into_session: ObjectSendStream[_Received], most: int) -> None:
    lines = Lines(most)
    with suppress(*_Gone):
        async with into_session:
            async for data in stdout:
                for line in lines.feed(data):
                    if (message := _message(line, most)) is not None:
                        with suppress(*_Gone):  # no session any more: read on, so that the server is not held up
                            await into_session.send(message)


async def _write(out_of_session: ObjectReceiveStream[SessionMessage], stdin: ByteSendStream) -> None:
    with suppress(*_Gone):
        async with out_of_session:
            async for one in out_of_session:
                await stdin.send(one.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")


def _message(line: bytes | Overlong, most: int) -> _Received | None:
    if isinstance(line, bytes):
        try:
            return SessionMessage(types.jsonrpc_message_adapter.validate_json(line, by_name=False))
        except ValueError as error:
            return error
    log.warning("mcp.message_dropped", over_bytes=most, answer=line.answers is not None)
    if line.answers is None:
        return None
    why = types.ErrorData(code=TOO_LONG, message=f"the answer has more than {most} bytes")
    return SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=line.answers, error=why))


async def _end(process: Process) -> None:
    """Its stdin ends, which asks it to; then its whole group is made to."""
    with suppress(*_Gone):
        await _given(process.stdin).aclose()
    with anyio.move_on_after(_GRACE_S) as asked:
        await process.wait()  # for its pipes, too: a child that holds them is not left behind
    if asked.cancelled_caught:
        await terminate_posix_process_tree(process, _GRACE_S)
    with anyio.move_on_after(_GRACE_S):
        await process.aclose()


def _given(pipe: T | None) -> T:
    if pipe is None:
        raise RuntimeError("the process was started without pipes")
    return pipe
