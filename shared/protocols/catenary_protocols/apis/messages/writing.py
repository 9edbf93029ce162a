"""Content blocks of an answer while they are written: bytes for the stream, and the block that they tell.

A delta costs one concatenation: all that stands around its text is the same for a whole block and built once.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

import msgspec
from msgspec import Raw

from catenary_protocols.apis.messages.answer import (
    AnswerBlock,
    BlockDelta,
    BlockNews,
    BlockStart,
    BlockStop,
    Event,
    InputDelta,
    SignatureDelta,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolUseBlock,
)
from catenary_protocols.apis.messages.cut import whole_part
from catenary_protocols.apis.sse import named

_encode = msgspec.json.Encoder().encode


def written(value: Event) -> bytes:
    """An event, under its own name."""
    return named(str(type(value).__struct_config__.tag), value)


class Writing(ABC):
    """A block that has begun. `start` is its first event."""

    def __init__(self, index: int, opened: AnswerBlock, empty: BlockNews) -> None:
        self._index = index
        self.start = written(BlockStart(index=index, content_block=opened))
        self._before, _, self._after = written(BlockDelta(index=index, delta=empty)).partition(b'""')
        self._pieces: list[str] = []

    def add(self, text: str) -> bytes:
        """More of it; the event that says so."""
        self._pieces.append(text)
        return self._before + _encode(text) + self._after

    def stop(self) -> bytes:
        """The last events."""
        return written(BlockStop(index=self._index))

    @abstractmethod
    def block(self) -> AnswerBlock:
        """What was written, once stopped."""

    @property
    def _text(self) -> str:
        return "".join(self._pieces)


class WritingText(Writing):
    """Text."""

    def __init__(self, index: int) -> None:
        super().__init__(index, TextBlock(), TextDelta(text=""))

    def block(self) -> TextBlock:
        """The text."""
        return TextBlock(text=self._text)


class WritingThinking(Writing):
    """Thinking; with `omit` only its signature is told."""

    def __init__(self, index: int, seal: Callable[[str], str], *, omit: bool) -> None:
        super().__init__(index, ThinkingBlock(), ThinkingDelta(thinking=""))
        self._seal = seal
        self._omit = omit
        self._signature = ""

    def add(self, text: str) -> bytes:
        """More thinking."""
        told = super().add(text)
        return b"" if self._omit else told

    def stop(self) -> bytes:
        """The signature, and the end."""
        self._signature = self._seal(self._text)
        news = BlockDelta(index=self._index, delta=SignatureDelta(signature=self._signature))
        return written(news) + super().stop()

    def block(self) -> ThinkingBlock:
        """The thinking."""
        return ThinkingBlock(thinking="" if self._omit else self._text, signature=self._signature)


class WritingCall(Writing):
    """A call. `call` is its index among the calls of the turn.

    Attributes:
        size: characters of its arguments so far.
        complete: the arguments are whole.
    """

    def __init__(self, index: int, call: int, id_: str, name: str) -> None:
        super().__init__(index, ToolUseBlock(id=id_, name=name, input={}), InputDelta(partial_json=""))
        self.call = call
        self.size = 0
        self.complete = False
        self._id = id_
        self._name = name

    def add(self, text: str) -> bytes:
        """More arguments."""
        self.size += len(text)
        return super().add(text)

    def block(self) -> ToolUseBlock:
        """The call; of one that was cut, as much of its input as readers of the stream have."""
        text = self._text if self.complete else whole_part(self._text)
        return ToolUseBlock(id=self._id, name=self._name, input=Raw(text.encode()))
