"""The items of a response, each from its `added` to its `done` event. At most one of them is open."""

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from catenary_protocols.apis.likely import Held, told
from catenary_protocols.apis.responses.answer import (
    CustomCallItem,
    FunctionCallItem,
    MessageItem,
    OutputItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
    Status,
    StreamEvent,
    SummaryText,
)
from catenary_protocols.apis.responses.freeform import Freeform
from catenary_protocols.apis.responses.tools import Declared
from catenary_protocols.apis.sealed import Sealed
from catenary_protocols.apis.sse import named
from catenary_protocols.turn_events import VisibleToken

_encode = msgspec.json.Encoder().encode


class Writer:
    """Numbers events and makes bytes of them, but for those that the client has: the ones up to number `after`."""

    __slots__ = ("_after", "_number", "_out")

    def __init__(self, after: int = -1) -> None:
        self._after = after
        self._number = 0
        self._out: list[bytes] = []

    def event(self, kind: str, **fields: Any) -> None:
        """The next event; `fields` are those of `StreamEvent`."""
        self._put(named(kind, StreamEvent(type=kind, sequence_number=self._number, **fields)))

    def skip(self, number: int) -> None:
        """The next event has a number above this one."""
        self._number = max(self._number, number + 1)

    def _put(self, data: bytes) -> None:
        if self._number > self._after:
            self._out.append(data)
        self._number += 1

    def again(self, kind: str, **fields: Any) -> None:
        """An event that is none of its own: it has the number of the last one."""
        self._out.append(named(kind, StreamEvent(type=kind, sequence_number=self._number - 1, **fields)))

    def aside(self, name: str, value: msgspec.Struct) -> None:
        """A side event; it has no number."""
        if self._number > self._after:
            self._out.append(named(name, value))

    def delta(self, before: bytes, text: str) -> None:
        """The next event: one that was `framed`, with this delta."""
        self._put(b'%b%b,"sequence_number":%d}\n\n' % (before, _encode(text), self._number))

    def flush(self) -> bytes:
        """The bytes since the last time."""
        out, self._out = self._out, []
        return b"".join(out)


def framed(kind: str, **fields: Any) -> bytes:
    """What of a delta's event stands before the delta; built once for an item."""
    return (
        named(kind, StreamEvent(type=kind, delta="", sequence_number=0, **fields)).partition(b'"delta":')[0]
        + b'"delta":'
    )


class OpenItem(Protocol):
    """An item on its way."""

    def add(self, text: str) -> None:
        """More of it."""

    def item(self, status: Status) -> OutputItem:
        """It, as far as it has come."""

    def close(self, status: Status) -> OutputItem:
        """The end: writes its last events."""


class Message:
    """Text."""

    def __init__(self, writer: Writer, id_: str, index: int) -> None:
        self._writer = writer
        self._id = id_
        self._place: Mapping[str, Any] = {"item_id": id_, "output_index": index, "content_index": 0}
        self._text: list[str] = []
        self._likely = Held()
        self._before = framed("response.output_text.delta", logprobs=[], **self._place)
        added = MessageItem(id=id_, status="in_progress", content=[])
        writer.event("response.output_item.added", output_index=index, item=added)
        writer.event("response.content_part.added", part=OutputText(text=""), **self._place)

    def add(self, text: str, tokens: tuple[VisibleToken, ...] = ()) -> None:
        """More of it; `tokens` begin to show in it."""
        self._text.append(text)
        if not tokens:
            self._writer.delta(self._before, text)
            return
        self._likely.add(tokens)
        self._writer.event("response.output_text.delta", delta=text, logprobs=told(tokens), **self._place)

    def item(self, status: Status) -> MessageItem:
        """It, as far as it has come."""
        part = OutputText(text="".join(self._text), logprobs=self._likely.told())
        return MessageItem(id=self._id, status=status, content=[part])

    def close(self, status: Status) -> MessageItem:
        """The end."""
        item = self.item(status)
        part = item.content[0]
        self._writer.event("response.output_text.done", text=part.text, logprobs=part.logprobs, **self._place)
        self._writer.event("response.content_part.done", part=part, **self._place)
        self._writer.event("response.output_item.done", output_index=self._place["output_index"], item=item)
        return item


class Thought:
    """A thought: told as its own text and, for clients that look there, as its summary."""

    def __init__(self, writer: Writer, id_: str, index: int, sealed: Sealed) -> None:
        self._writer = writer
        self._sealed = sealed
        self._id = id_
        self._text: list[str] = []
        self._summary: Mapping[str, Any] = {"item_id": id_, "output_index": index, "summary_index": 0}
        self._content: Mapping[str, Any] = {"item_id": id_, "output_index": index, "content_index": 0}
        self._before = (
            framed("response.reasoning_summary_text.delta", **self._summary),
            framed("response.reasoning_text.delta", **self._content),
        )
        added = ReasoningItem(id=id_, status="in_progress", summary=[], content=[], encrypted_content=None)
        writer.event("response.output_item.added", output_index=index, item=added)
        writer.event("response.reasoning_summary_part.added", part=SummaryText(text=""), **self._summary)

    def add(self, text: str) -> None:
        """More of it."""
        self._text.append(text)
        for before in self._before:
            self._writer.delta(before, text)

    def item(self, status: Status) -> ReasoningItem:
        """It, as far as it has come."""
        text = "".join(self._text)
        return ReasoningItem(
            id=self._id,
            status=status,
            summary=[SummaryText(text=text)],
            content=[ReasoningText(text=text)],
            encrypted_content=self._sealed.seal(text),
        )

    def close(self, status: Status) -> ReasoningItem:
        """The end."""
        item, writer = self.item(status), self._writer
        writer.event("response.reasoning_summary_text.done", text=item.summary[0].text, **self._summary)
        writer.event("response.reasoning_summary_part.done", part=item.summary[0], **self._summary)
        writer.event("response.reasoning_text.done", text=item.content[0].text, **self._content)
        writer.event("response.output_item.done", output_index=self._content["output_index"], item=item)
        return item


class Call:
    """A call. Its deltas are those of its arguments, or of the text in them for a custom tool.

    One that is cut is never done, since clients run what is done, whatever its status. The end of the response tells
    that it is incomplete.
    """

    def __init__(self, writer: Writer, id_: str, index: int, call_id: str, declared: Declared) -> None:
        self._writer = writer
        self._id = id_
        self._declared = declared
        self._arguments: list[str] = []
        self._size = 0
        self._place: Mapping[str, Any] = {"item_id": id_, "output_index": index}
        self._freeform = Freeform() if declared.custom else None
        kind = "custom_tool_call_input" if declared.custom else "function_call_arguments"
        self._before = framed(f"response.{kind}.delta", **self._place)
        self.call_id = call_id
        writer.event("response.output_item.added", output_index=index, item=self.item("in_progress"))

    def add(self, text: str) -> None:
        """More of it."""
        self._arguments.append(text)
        self._size += len(text)
        self._tell(text if self._freeform is None else self._freeform.feed(text))

    def fill(self, arguments: str) -> None:
        """Add what of the arguments did not come as deltas."""
        if self._size < len(arguments):
            self.add(arguments[self._size :])
        if self._freeform is not None:
            self._tell(self._freeform.close())

    def item(self, status: Status) -> FunctionCallItem | CustomCallItem:
        """It, as far as it has come."""
        declared = self._declared
        if self._freeform is not None:
            return CustomCallItem(
                id=self._id,
                status=status,
                call_id=self.call_id,
                name=declared.name,
                namespace=declared.namespace,
                input=self._freeform.text,
            )
        return FunctionCallItem(
            id=self._id,
            status=status,
            call_id=self.call_id,
            name=declared.name,
            namespace=declared.namespace,
            arguments="".join(self._arguments),
        )

    def close(self, status: Status) -> FunctionCallItem | CustomCallItem:
        """The end."""
        item = self.item(status)
        if status == "completed":
            self._told(item)
            self._writer.event("response.output_item.done", output_index=self._place["output_index"], item=item)
        return item

    def _tell(self, text: str) -> None:
        if text:
            self._writer.delta(self._before, text)

    def _told(self, item: FunctionCallItem | CustomCallItem) -> None:
        if isinstance(item, CustomCallItem):
            self._writer.event("response.custom_tool_call_input.done", input=item.input, **self._place)
        else:
            self._writer.event(
                "response.function_call_arguments.done", name=item.name, arguments=item.arguments, **self._place
            )
