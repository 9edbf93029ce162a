"""Turn events → events of a message stream, and the whole message from the same blocks.

Blocks come strictly one after another: whatever a turn tells while a call is being written waits until the call is
whole, and goes out at once then. `message_start` waits for `Started`, since it tells how much of the prompt was cached.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

import msgspec
from msgspec import Raw

from catenary_protocols.apis.error_bodies import anthropic_error
from catenary_protocols.apis.messages.answer import (
    AnswerBlock,
    MessageDelta,
    MessagesAnswer,
    MessageStart,
    MessageStop,
    Ping,
    Stop,
    ToolCallDispatched,
    ToolResultDispatched,
    ToolUseBlock,
    stop_of,
    usage_of,
)
from catenary_protocols.apis.messages.read import MessagesDraft
from catenary_protocols.apis.messages.writing import Writing, WritingCall, WritingText, WritingThinking, written
from catenary_protocols.apis.sealed import Sealed
from catenary_protocols.errors import ErrorInfo
from catenary_protocols.turn_events import (
    Accepted,
    ArgumentsDelta,
    CallBegun,
    CallComplete,
    CallCut,
    Failed,
    Finished,
    Malformed,
    ReasoningDelta,
    Started,
    TextDelta,
    ToolResulted,
    TurnEvent,
    Usage,
)

W = TypeVar("W", bound=Writing)

_encode = msgspec.json.Encoder().encode
_PING = written(Ping())
_CANCELLED = ErrorInfo(code="cancelled", message="the turn was cancelled")
_OF_CALLS = (ArgumentsDelta, CallComplete, CallCut)


class MessagesEncoder:
    """`api.Encoder` of Messages."""

    def __init__(self, sealed: Sealed, draft: MessagesDraft, turn_id: str, _created: int) -> None:
        self._sealed = sealed
        self._id = f"msg_{turn_id}"
        self._model = draft.model
        self._thinking = draft.thinking
        self._dispatch = draft.tool_dispatch
        self._begun = False
        self._usage = Usage()
        self._stop: Stop | None = None
        self._content: list[AnswerBlock] = []
        self._writing: Writing | None = None
        self._call: WritingCall | None = None
        self._blocks = 0
        self._begun_calls: set[int] = set()
        self._waiting: list[TurnEvent] = []
        self._dispatched: dict[str, str] = {}
        self._out: list[bytes] = []

    def feed(self, events: Sequence[TurnEvent]) -> bytes:
        """Events of the stream for these events of the turn."""
        for one in events:
            if self._dispatch and isinstance(one, CallComplete):
                self._dispatch_call(one)
            self._take(one)
        return self._flush()

    def heartbeat(self) -> bytes:
        """A `ping`, which may stand before `message_start` too."""
        return _PING

    def body(self) -> bytes:
        """The message."""
        return _encode(self._message(final=True))

    # --- one event ----------------------------------------------------------------------------------------------

    def _take(self, one: TurnEvent) -> None:
        write = self._WRITE.get(type(one))
        if write is None:
            return
        call = self._call
        if call is not None and type(one) in self._IN_BLOCKS and not _is_of(call, one):
            self._waiting.append(one)
        else:
            write(self, one)

    def _accepted(self, item: Accepted) -> None:
        self._usage = Usage(prompt_tokens=item.prompt_tokens)

    def _started(self, item: Started) -> None:
        self._usage = msgspec.structs.replace(self._usage, cached_tokens=item.cached_tokens)
        self._begin()

    def _text(self, item: TextDelta) -> None:
        if item.text:
            writing = self._writing
            if type(writing) is not WritingText:
                writing = self._open(WritingText(self._blocks))
            self._out.append(writing.add(item.text))

    def _malformed(self, item: Malformed) -> None:
        self._text(TextDelta(text=item.raw))

    def _reasoning(self, item: ReasoningDelta) -> None:
        if item.text and self._thinking != "hidden":
            writing = self._writing
            if type(writing) is not WritingThinking:
                omit = self._thinking == "sealed"
                writing = self._open(WritingThinking(self._blocks, self._sealed.seal, omit=omit))
            self._out.append(writing.add(item.text))

    def _call_begun(self, item: CallBegun) -> None:
        if item.index not in self._begun_calls:
            self._begun_calls.add(item.index)
            self._call = self._open(WritingCall(self._blocks, item.index, item.id, item.name))

    def _arguments(self, item: ArgumentsDelta) -> None:
        if self._call is not None and item.text:
            self._out.append(self._call.add(item.text))

    def _call_complete(self, item: CallComplete) -> None:
        self._call_begun(CallBegun(index=item.index, id=item.id, name=item.name))
        self._call_ended(item, complete=True)

    def _call_cut(self, item: CallCut) -> None:
        self._call_ended(item, complete=False)

    def _call_ended(self, item: CallComplete | CallCut, *, complete: bool) -> None:
        call = self._call
        if call is not None:
            self._arguments(ArgumentsDelta(index=item.index, text=item.arguments[call.size :]))
            call.complete = complete
            self._close()

    def _result(self, item: ToolResulted) -> None:
        id_ = self._dispatched.get(item.key)
        if id_ is not None:
            result = ToolResultDispatched(tool_use_id=id_, name=item.name, content=item.output, is_error=item.is_error)
            self._out.append(written(result))

    def _finish(self, item: Finished) -> None:
        if item.reason == "cancelled":
            self._fail(Failed(error=_CANCELLED))
            return
        self._begin()
        while self._writing is not None:
            self._close()
        self._usage = item.usage
        self._stop = stop_of(item.reason, item.stop)
        self._out += (
            written(MessageDelta(delta=self._stop, usage=usage_of(self._usage, final=True))),
            written(MessageStop()),
        )

    def _fail(self, item: Failed) -> None:
        self._out += (b"event: error\ndata: ", anthropic_error(item.error), b"\n\n")

    # --- blocks -------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            self._out += (written(MessageStart(message=self._message(final=False))), _PING)

    def _open(self, writing: W) -> W:
        self._close()
        self._begin()
        self._writing = writing
        self._blocks += 1
        self._out.append(writing.start)
        return writing

    def _close(self) -> None:
        """Stop the open block; what waited for a call to stop is next."""
        writing, self._writing, self._call = self._writing, None, None
        if writing is None:
            return
        self._out.append(writing.stop())
        self._content.append(writing.block())
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            self._take(one)

    # --- bytes --------------------------------------------------------------------------------------------------

    def _flush(self) -> bytes:
        out, self._out = self._out, []
        return b"".join(out)

    def _message(self, *, final: bool) -> MessagesAnswer:
        return MessagesAnswer(
            id=self._id,
            model=self._model,
            content=self._content if final else [],
            usage=usage_of(self._usage, final=final),
            stop_reason=self._stop.stop_reason if self._stop else None,
            stop_sequence=self._stop.stop_sequence if self._stop else None,
        )

    def _dispatch_call(self, call: CallComplete) -> None:
        """Tell of a complete call at once, wherever its block stands."""
        self._begin()
        self._dispatched[call.key] = call.id
        use = ToolUseBlock(id=call.id, name=call.name, input=Raw(call.arguments.encode()))
        self._out.append(written(ToolCallDispatched(tool_use=use)))

    _WRITE: ClassVar[dict[type, Callable[["MessagesEncoder", Any], None]]] = {
        Accepted: _accepted,
        Started: _started,
        TextDelta: _text,
        ReasoningDelta: _reasoning,
        Malformed: _malformed,
        CallBegun: _call_begun,
        ArgumentsDelta: _arguments,
        CallComplete: _call_complete,
        CallCut: _call_cut,
        ToolResulted: _result,
        Finished: _finish,
        Failed: _fail,
    }
    _IN_BLOCKS: ClassVar[frozenset[type]] = frozenset(
        {TextDelta, ReasoningDelta, Malformed, CallBegun, ArgumentsDelta, CallComplete, CallCut}
    )


def _is_of(call: WritingCall, one: TurnEvent) -> bool:
    return isinstance(one, _OF_CALLS) and one.index == call.call
