"""Turn events → chunks, and the whole completion from the same events: what was written is what `body` tells.

A delta costs one concatenation: all that stands around the text of a chunk is the same for a whole turn and built once.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import msgspec
from msgspec import UNSET, UnsetType

from catenary_protocols.apis.chat.answer import (
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    ChunkChoice,
    Function,
    FunctionDelta,
    Reason,
    ToolCall,
    ToolCallDelta,
    ToolCallDispatch,
    ToolResultDispatch,
    usage_of,
)
from catenary_protocols.apis.chat.assembly import Call, Choice
from catenary_protocols.apis.chat.read import ChatDraft
from catenary_protocols.apis.error_bodies import openai_error
from catenary_protocols.apis.likely import told
from catenary_protocols.apis.sse import DONE, event, named
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
    Usage,
)

_encode = msgspec.json.Encoder().encode
_OPEN = ChatDelta(role="assistant", content="")
_GAP = ChatDelta(content="")
_CANCELLED = ErrorInfo(code="cancelled", message="the turn was cancelled")


class ChatEncoder:
    """`api.Encoder` of Chat Completions."""

    def __init__(self, draft: ChatDraft, turn_id: str, created: int) -> None:
        self._id = f"chatcmpl-{turn_id}"
        self._created = created
        self._model = draft.model
        self._include_usage = draft.include_usage
        self._dispatch = draft.tool_dispatch
        self._functions = draft.functions
        self._likely = draft.sampling.logprobs is not None
        self._running = set(range(draft.choices))
        self._choices: dict[int, Choice] = {}
        self._completing: dict[tuple[int, int], CallComplete] = {}
        self._out: list[bytes] = []
        self._usage = usage_of(Usage())

    def feed(self, events: Sequence[TurnEvent]) -> bytes:
        """Chunks for these events."""
        if self._dispatch:
            self._completing = {(one.choice, one.index): one for one in events if isinstance(one, CallComplete)}
        for one in events:
            write = self._WRITE.get(type(one))
            if write is not None:
                write(self, one)
        return self._flush()

    def heartbeat(self) -> bytes:
        """A chunk with an empty delta; the first one opens the answer."""
        if self._choices:
            self._chunk(0, ChatDelta())
        else:
            self._choice(0)
        return self._flush()

    def body(self) -> bytes:
        """The completion."""
        choices = [
            ChatChoice(
                index=index,
                message=choice.answer(functions=self._functions),
                finish_reason=choice.reason,
                logprobs=choice.logprobs() if self._likely else None,
            )
            for index, choice in sorted(self._choices.items())
        ]
        return _encode(
            ChatCompletion(id=self._id, created=self._created, model=self._model, choices=choices, usage=self._usage)
        )

    # --- one event ----------------------------------------------------------------------------------------------

    def _text(self, item: TextDelta) -> None:
        choice = self._choice(item.choice)
        choice.text.append(item.text)
        if item.tokens:
            choice.likely.add(item.tokens)
            likely = ChatLogprobs(content=told(item.tokens))
            self._chunk(item.choice, ChatDelta(content=item.text), logprobs=likely)
            return
        self._out.append(choice.text_before + _encode(item.text) + choice.after)

    def _reasoning(self, item: ReasoningDelta) -> None:
        choice = self._choice(item.choice)
        choice.reasoning.append(item.text)
        self._out.append(choice.reasoning_before + _encode(item.text) + choice.after)

    def _malformed(self, item: Malformed) -> None:
        self._text(TextDelta(text=item.raw, choice=item.choice))

    def _call_begun(self, item: CallBegun) -> None:
        self._choice(item.choice).calls[item.index] = Call(item.id, item.name)
        self._dispatch_call(item.choice, item.index)
        begun = FunctionDelta(name=item.name, arguments="")
        self._call_delta(item.choice, ToolCallDelta(index=item.index, id=item.id, type="function", function=begun))

    def _arguments(self, item: ArgumentsDelta) -> None:
        call = self._choice(item.choice).calls.get(item.index)
        if call is None:
            return  # a call that nobody began comes whole, with `CallComplete`
        call.add(item.text)
        self._dispatch_call(item.choice, item.index)
        self._call_delta(item.choice, ToolCallDelta(index=item.index, function=FunctionDelta(arguments=item.text)))

    def _call_complete(self, item: CallComplete) -> None:
        calls = self._choice(item.choice).calls
        if item.index not in calls:
            self._call_begun(CallBegun(index=item.index, id=item.id, name=item.name, choice=item.choice))
        calls[item.index].key = item.key
        self._dispatch_call(item.choice, item.index)
        self._call_rest(item)

    def _call_rest(self, item: CallComplete | CallCut) -> None:
        """Write what of a call's arguments did not come as deltas."""
        call = self._choice(item.choice).calls.get(item.index)
        if call and call.size < len(item.arguments):
            self._arguments(ArgumentsDelta(index=item.index, text=item.arguments[call.size :], choice=item.choice))

    def _result(self, item: ToolResulted) -> None:
        for choice_index, choice in self._choices.items() if self._dispatch else ():
            for index, call in choice.calls.items():
                if call.key == item.key:
                    result = ToolResultDispatch(
                        choice_index=choice_index,
                        index=index,
                        tool_call_id=call.id,
                        name=item.name,
                        content=item.output,
                        is_error=item.is_error,
                    )
                    self._out.append(named("tool_result", result))

    def _finish(self, item: Finished) -> None:
        if item.reason == "cancelled":
            self._fail(Failed(error=_CANCELLED))
            return
        choice = self._choice(item.choice)
        choice.reason = "function_call" if self._functions and item.reason == "tool_calls" else item.reason
        self._usage = usage_of(item.usage)
        self._chunk(item.choice, ChatDelta(), choice.reason)
        self._running.discard(item.choice)
        if self._running:
            return
        if self._include_usage:
            last = ChatChunk(id=self._id, created=self._created, model=self._model, choices=[], usage=self._usage)
            self._out.append(event(last))
        self._out.append(DONE)

    def _fail(self, item: Failed) -> None:
        self._out += (b"data: ", openai_error(item.error), b"\n\n", DONE)

    # --- bytes --------------------------------------------------------------------------------------------------

    def _flush(self) -> bytes:
        out, self._out = self._out, []
        return b"".join(out)

    def _choice(self, index: int) -> Choice:
        choice = self._choices.get(index)
        if choice is None:
            if index:
                self._choice(index - 1)  # clients count choices as they begin
            before, _, after = self._framed(index, _GAP).partition(b'"content":""')
            choice = self._choices[index] = Choice(before, after)
            self._chunk(index, _OPEN)
        return choice

    def _framed(
        self,
        index: int,
        delta: ChatDelta,
        reason: Reason | None = None,
        logprobs: ChatLogprobs | UnsetType = UNSET,
    ) -> bytes:
        choice = ChunkChoice(index=index, delta=delta, finish_reason=reason, logprobs=logprobs)
        return event(ChatChunk(id=self._id, created=self._created, model=self._model, choices=[choice]))

    def _chunk(
        self,
        index: int,
        delta: ChatDelta,
        reason: Reason | None = None,
        logprobs: ChatLogprobs | UnsetType = UNSET,
    ) -> None:
        self._out.append(self._framed(index, delta, reason, logprobs))

    def _call_delta(self, index: int, delta: ToolCallDelta) -> None:
        if self._functions:
            self._chunk(index, ChatDelta(function_call=delta.function))
        else:
            self._chunk(index, ChatDelta(tool_calls=[delta]))

    def _dispatch_call(self, choice: int, index: int) -> None:
        """Tell of a call that these events complete, before the first delta of it among them."""
        whole = self._completing.pop((choice, index), None)
        if whole is not None:
            function = Function(name=whole.name, arguments=whole.arguments)
            call = ToolCall(id=whole.id, index=index, function=function)
            self._out.append(named("tool_call_dispatch", ToolCallDispatch(choice_index=choice, tool_call=call)))

    _WRITE: ClassVar[dict[type, Callable[["ChatEncoder", Any], None]]] = {
        TextDelta: _text,
        ReasoningDelta: _reasoning,
        ArgumentsDelta: _arguments,
        CallBegun: _call_begun,
        CallComplete: _call_complete,
        CallCut: _call_rest,
        Malformed: _malformed,
        ToolResulted: _result,
        Finished: _finish,
        Failed: _fail,
    }
