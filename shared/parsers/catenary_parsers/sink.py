"""Where readers put what they find: neighbouring text joined, white space settled, calls numbered.

White space that touches a call or a thinking marker belongs to the framing and is dropped; all other is text.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Literal

from catenary_parsers.events import (
    ArgumentsDelta,
    Malformed,
    ReasoningDelta,
    TextDelta,
    ToolCallBegun,
    ToolCallComplete,
    ToolCallCut,
)
from catenary_parsers.lexer import SPACE
from catenary_parsers.strings import escaped

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from catenary_parsers.events import Event, Json

_SYMBOL = re.compile("[\ud800-\udfff]")
_Kind = Literal["text", "reasoning", "arguments", ""]


class Sink:
    """The events of one turn, in order."""

    __slots__ = (
        "_arguments",
        "_awaited",
        "_events",
        "_id",
        "_ids",
        "_kind",
        "_name",
        "_open",
        "_pending",
        "_ready",
        "_saved",
        "_space",
        "_spaced",
        "_spellings",
        "_touching",
        "fresh",
        "index",
        "unconverted",
    )

    def __init__(self, spellings: Mapping[str, str]) -> None:
        self._spellings = spellings
        self._events: list[Event] = []
        self._kind: _Kind = ""
        self._pending: list[str] = []
        self._space: list[str] = []
        self._spaced: _Kind = "text"
        self._touching = False
        self._open = False
        self._name = ""
        self._id = ""
        self._ids: set[str] = set()
        self._arguments: list[str] = []
        self._ready: list[Event] = []
        self._saved: tuple[list[str], bool, bool, int] | None = None
        self._awaited: Container[str] = ()
        self.fresh: bool = True
        """Whether no text came since the last marker."""
        self.index: int = -1
        """The last call's index."""
        self.unconverted: list[str] = []

    def take(self) -> list[Event]:
        """The events since the last `take`."""
        if self._saved is not None:
            events, self._ready = self._ready, []
            return events
        if self._pending:
            self._flush()
        events, self._events = self._events, []
        return events

    def hold(self, names: Container[str]) -> None:
        """Show nothing of what comes until `release`, or until a call to one of `names` begins."""
        self._flush()
        self._saved = (list(self._space), self._touching, self.fresh, self.index)
        self._ready, self._events = self._events, []
        self._awaited = names

    @property
    def is_held(self) -> bool:
        """Whether events are held."""
        return self._saved is not None

    def release(self) -> None:
        """Show what was held."""
        self._events = self._ready + self._events
        self._saved, self._ready = None, []

    def drop(self) -> None:
        """Forget what was held, as if it had not been read."""
        if self._saved is not None:
            self._space, self._touching, self.fresh, self.index = self._saved
        self._events, self._ready = self._ready, []
        self._pending, self._kind = [], ""
        self._saved, self._open = None, False

    def spell(self, text: str) -> str:
        """`text` with each control token as the model's vocabulary spells it."""
        if text.isascii():
            return text
        return _SYMBOL.sub(lambda found: self._spellings.get(found.group(), ""), text)

    def text(self, piece: str) -> None:
        """More of the answer."""
        self._prose("text", piece)

    def reasoning(self, piece: str) -> None:
        """More thinking."""
        self._prose("reasoning", piece)

    def boundary(self) -> None:
        """A marker stands here: white space on both sides of it is framing."""
        self._space.clear()
        self._touching = self.fresh = True

    def begin(self, name: str, call_id: str = "") -> None:
        """A call with this name begins. An id that an earlier call has is none."""
        self._flush()
        self.boundary()
        self.index += 1
        self._open = True
        self._name = self.spell(name)
        self._id = "" if call_id in self._ids else self.spell(call_id)
        self._ids.add(call_id)
        self._arguments = []
        self.unconverted = []
        self._events.append(ToolCallBegun(self.index, self._id, self._name))
        if self._saved is not None and name in self._awaited:
            self.release()

    @property
    def is_open(self) -> bool:
        """Whether a call has begun and not ended."""
        return self._open

    def arguments(self, piece: str) -> None:
        """More JSON text of the open call's arguments."""
        if not piece.isascii():
            piece = _SYMBOL.sub(lambda found: escaped(self._spellings.get(found.group(), "")), piece)
        self._arguments.append(piece)
        self._pending.append(piece)
        self._kind = "arguments"

    def complete(self, *, at_close: bool = False) -> None:
        """The open call is certain. One without arguments has an empty object."""
        if not self._arguments:
            self.arguments("{}")
        self._flush()
        self._open = False
        self.boundary()
        arguments = "".join(self._arguments)
        value: Json = json.loads(arguments)
        self._events.append(
            ToolCallComplete(self.index, self._id, self._name, arguments, value, at_close, tuple(self.unconverted))
        )

    def cut(self) -> None:
        """The open call, if there is one, will never be complete."""
        if self._open:
            self._flush()
            self._open = False
            self._events.append(ToolCallCut(self.index, "".join(self._arguments)))

    def malformed(self, raw: str, reason: str) -> None:
        """Text in the place of a call; its white space is text too, and so is what stands before it."""
        if self._open:
            self.cut()
        else:
            self.end()
        self._flush()
        self._touching = False
        self._events.append(Malformed(self.spell(raw), reason))

    def end(self) -> None:
        """No marker follows the text so far: white space behind it is text."""
        if self._space and not self._touching:
            if self._kind != self._spaced:
                self._flush()
                self._kind = self._spaced
            self._pending.extend(self._space)
        self._space.clear()

    def _prose(self, kind: Literal["text", "reasoning"], piece: str) -> None:
        if not piece.isascii():
            piece = self.spell(piece)
        if self._touching:
            piece = piece.lstrip(SPACE)
            if not piece:
                return
            self._touching = False
        self._spaced = kind
        body = piece.rstrip(SPACE)
        if not body:
            self._space.append(piece)
            return
        if self._kind != kind:
            self._flush()
            self._kind = kind
        if self._space:
            self._pending.extend(self._space)
            self._space.clear()
        self.fresh = False
        self._pending.append(body)
        if len(body) < len(piece):
            self._space.append(piece[len(body) :])

    def _flush(self) -> None:
        if not self._pending:
            return
        text = self._pending[0] if len(self._pending) == 1 else "".join(self._pending)
        self._pending = []
        if self._kind == "arguments":
            self._events.append(ArgumentsDelta(self.index, text))
        elif self._kind == "text":
            self._events.append(TextDelta(text))
        else:
            self._events.append(ReasoningDelta(text))
