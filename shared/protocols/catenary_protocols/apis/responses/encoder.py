"""Turn events → the events of a response, and the response itself: what was told is what `body` tells.

Items follow one another: what a model would say while a call is open waits until that call is complete.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import msgspec

from catenary_protocols.apis.responses.answer import (
    IncompleteDetails,
    OutputItem,
    Response,
    ResponseError,
    ResponseUsage,
    Status,
    ToolCallDispatch,
    ToolResultDispatch,
    usage_of,
)
from catenary_protocols.apis.responses.assembly import Call, Message, OpenItem, Thought, Writer
from catenary_protocols.apis.responses.failures import failure_of
from catenary_protocols.apis.responses.read import ResponsesDraft
from catenary_protocols.errors import ErrorInfo
from catenary_protocols.turn_events import (
    ArgumentsDelta,
    CallBegun,
    CallComplete,
    CallCut,
    Failed,
    Finished,
    Malformed,
    ReasoningDelta,
    TextDelta,
    ToolResulted,
    TurnEvent,
)

_encode = msgspec.json.Encoder().encode
PREFIX = "resp_"
"""Before a turn's id: the id of its response."""
_CANCELLED = ErrorInfo(code="cancelled", message="the turn was cancelled")
_OF_CALL = (ArgumentsDelta, CallComplete, CallCut)
_WAITS = (TextDelta, ReasoningDelta, Malformed, CallBegun, *_OF_CALL)


class ResponsesEncoder:
    """`api.Encoder` of Responses. `after`: the number of the last event that its client has had from another one."""

    def __init__(self, draft: ResponsesDraft, turn_id: str, created: int, *, after: int = -1) -> None:
        request, echo = draft.request, draft.echo
        self._draft = draft
        self._turn_id = turn_id
        self._writer = Writer(after)
        self._begun = False
        self._output: list[OutputItem] = []
        self._open: OpenItem | None = None
        self._call: int | None = None
        self._calls: dict[int, str] = {}
        self._keys: dict[str, int] = {}
        self._waiting: list[TurnEvent] = []
        self._response = Response(
            id=PREFIX + turn_id,
            created_at=created,
            model=draft.model,
            status="in_progress",
            output=[],
            usage=None,
            error=None,
            incomplete_details=None,
            instructions=request.instructions,
            max_output_tokens=request.max_output_tokens,
            parallel_tool_calls=draft.conversation.parallel_calls,
            previous_response_id=request.previous_response_id,
            reasoning=echo.reasoning,
            store=draft.store,
            temperature=request.temperature,
            text=echo.text,
            tool_choice=echo.tool_choice,
            tools=echo.tools,
            top_p=request.top_p,
            top_logprobs=request.top_logprobs or 0,
            truncation=request.truncation or "disabled",
            user=request.user,
            metadata=echo.metadata,
        )

    def feed(self, events: Sequence[TurnEvent]) -> bytes:
        """Events of the response for these events of the turn."""
        self._begin()
        for one in events:
            self._take(one)
        return self._writer.flush()

    def heartbeat(self) -> bytes:
        """`response.in_progress` once more; the first one opens the stream."""
        if self._begun:
            self._writer.again("response.in_progress", response=self._response)
        self._begin()
        return self._writer.flush()

    def body(self) -> bytes:
        """The response."""
        return _encode(self._response)

    # --- one event ----------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            self._writer.event("response.created", response=self._response)
            self._writer.event("response.in_progress", response=self._response)

    def _take(self, one: TurnEvent) -> None:
        write = self._WRITE.get(type(one))
        if write is None:
            return
        if self._call is not None and isinstance(one, _WAITS) and getattr(one, "index", None) != self._call:
            self._waiting.append(one)
        else:
            write(self, one)

    def _text(self, item: TextDelta) -> None:
        if not item.text:
            return
        if not isinstance(self._open, Message):
            self._close()
            self._open = Message(self._writer, f"msg_{self._suffix}", len(self._output))
        self._open.add(item.text, item.tokens)

    def _reasoning(self, item: ReasoningDelta) -> None:
        if not item.text:
            return
        if not isinstance(self._open, Thought):
            self._close()
            self._open = Thought(self._writer, f"rs_{self._suffix}", len(self._output), self._draft.sealed)
        self._open.add(item.text)

    def _malformed(self, item: Malformed) -> None:
        self._text(TextDelta(text=item.raw))

    def _call_begun(self, item: CallBegun) -> None:
        if item.index in self._calls:
            return
        self._close()
        declared = self._draft.toolbox.declared(item.name)
        id_ = f"{'ctc' if declared.custom else 'fc'}_{self._suffix}"
        self._open = Call(self._writer, id_, len(self._output), item.id, declared)
        self._call = item.index
        self._calls[item.index] = item.id

    def _arguments(self, item: ArgumentsDelta) -> None:
        if isinstance(self._open, Call):
            self._open.add(item.text)

    def _call_complete(self, item: CallComplete) -> None:
        if item.index not in self._calls:
            self._call_begun(CallBegun(index=item.index, id=item.id, name=item.name))
        call = self._open
        if not isinstance(call, Call):
            return
        call.fill(item.arguments)
        self._keys[item.key] = item.index
        if self._draft.tool_dispatch:
            dispatch = ToolCallDispatch(output_index=len(self._output), item=call.item("completed"))
            self._writer.aside("tool_call_dispatch", dispatch)
        self._end_of_call("completed")

    def _call_cut(self, item: CallCut) -> None:
        if isinstance(self._open, Call):
            self._open.fill(item.arguments)
            self._end_of_call("incomplete")

    def _end_of_call(self, status: Status) -> None:
        self._close(status)
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            self._take(one)

    def _result(self, item: ToolResulted) -> None:
        index = self._keys.get(item.key) if self._draft.tool_dispatch and item.key else None
        if index is not None:
            result = ToolResultDispatch(
                call_id=self._calls[index], name=item.name, output=item.output, is_error=item.is_error
            )
            self._writer.aside("tool_result", result)

    # --- the end ------------------------------------------------------------------------------------------------

    def _finish(self, item: Finished) -> None:
        if item.reason == "cancelled":
            self._fail(Failed(error=_CANCELLED, usage=item.usage))
            return
        while self._call is not None:
            self._end_of_call("incomplete")
        early = item.reason in {"length", "content_filter"}
        self._close("incomplete" if early else "completed")
        if early:
            reason: Any = "max_output_tokens" if item.reason == "length" else "content_filter"
            self._end("incomplete", usage_of(item.usage), incomplete_details=IncompleteDetails(reason=reason))
        else:
            self._end("completed", usage_of(item.usage))

    def _fail(self, item: Failed) -> None:
        if self._open is not None:
            self._output.append(self._open.item("incomplete"))
        self._end("failed", usage_of(item.usage), error=failure_of(item.error))

    def _end(
        self,
        status: Any,
        usage: ResponseUsage,
        *,
        error: ResponseError | None = None,
        incomplete_details: IncompleteDetails | None = None,
    ) -> None:
        self._response = msgspec.structs.replace(
            self._response,
            status=status,
            output=self._output,
            usage=usage,
            error=error,
            incomplete_details=incomplete_details,
        )
        self._writer.event(f"response.{status}", response=self._response)

    def _close(self, status: Status = "completed") -> None:
        if self._open is not None:
            self._output.append(self._open.close(status))
            self._open = self._call = None

    @property
    def _suffix(self) -> str:
        return f"{self._turn_id}_{len(self._output)}"

    _WRITE: ClassVar[dict[type, Callable[["ResponsesEncoder", Any], None]]] = {
        TextDelta: _text,
        ReasoningDelta: _reasoning,
        ArgumentsDelta: _arguments,
        CallBegun: _call_begun,
        CallComplete: _call_complete,
        CallCut: _call_cut,
        Malformed: _malformed,
        ToolResulted: _result,
        Finished: _finish,
        Failed: _fail,
    }
