"""What a parser says: seven events, in the order in which the model wrote them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

CloseReason: TypeAlias = Literal["stop", "length", "cancelled", "error"]
"""Why the model's output ended: by itself, at the token limit, by the caller, by a fault."""

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
"""A parsed JSON value."""


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of the model's thinking."""

    text: str


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallBegun:
    """A call's name is whole. Indexes count from 0 over the turn; `id` is the model's own call id or empty."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    """More JSON text of the arguments of call `index`."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallComplete:
    """A call is certain.

    `arguments` is valid JSON text, the join of the call's deltas, and `value` what it says: a dict, unless the model
    gave something else in place of an object. `decided_at_close` marks a call that only the end of the output made one:
    nobody should run it unasked. `unconverted` names the parameters whose text does not convert to what the schema asks
    for, and therefore stayed strings.
    """

    index: int
    id: str
    name: str
    arguments: str
    value: Json
    decided_at_close: bool = False
    unconverted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolCallCut:
    """A begun call will never be complete; `arguments` is the JSON text so far, which need not be closed."""

    index: int
    arguments: str


@dataclass(frozen=True, slots=True)
class Malformed:
    """Text in the place of a call that is none: `raw` without the format's markers, and why it is no call."""

    raw: str
    reason: str


Event: TypeAlias = (
    ReasoningDelta | TextDelta | ToolCallBegun | ArgumentsDelta | ToolCallComplete | ToolCallCut | Malformed
)
