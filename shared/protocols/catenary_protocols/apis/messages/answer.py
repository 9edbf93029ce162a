"""The answer: a whole message, and the events of a stream. Also what the served OpenAPI document shows."""

from typing import Any, Literal

from msgspec import UNSET, Raw, Struct, UnsetType

from catenary_protocols.turn_events import FinishReason, Usage

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"]

_REASONS: dict[FinishReason, StopReason] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}


class OutputDetails(Struct, frozen=True, kw_only=True):
    """`thinking_tokens`: how much of the output was thought."""

    thinking_tokens: int


class MessagesUsage(Struct, frozen=True, kw_only=True):
    """Token counts. Those of the input add up: what was read from the cache is not in `input_tokens`."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: OutputDetails | UnsetType = UNSET


class ThinkingBlock(Struct, frozen=True, kw_only=True, tag_field="type", tag="thinking"):
    """What the model thought. `signature` brings it back whole, also where `thinking` is left out."""

    thinking: str = ""
    signature: str = ""


class TextBlock(Struct, frozen=True, kw_only=True, tag_field="type", tag="text"):
    """Text."""

    text: str = ""


class ToolUseBlock(Struct, frozen=True, kw_only=True, tag_field="type", tag="tool_use"):
    """A call."""

    id: str
    name: str
    input: Raw | dict[str, Any]


AnswerBlock = ThinkingBlock | TextBlock | ToolUseBlock


class MessagesAnswer(Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    """Body of an answer that is not streamed. At the start of a stream it is empty, and the reason null."""

    id: str
    model: str
    content: list[AnswerBlock]
    usage: MessagesUsage
    role: Literal["assistant"] = "assistant"
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None


# --- events of a stream: the name of each is its `type` ------------------------------------------------------------


class Event(Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of all events."""


class MessageStart(Event, frozen=True, tag="message_start"):
    """The first event."""

    message: MessagesAnswer


class Ping(Event, frozen=True, tag="ping"):
    """A sign of life."""


class BlockStart(Event, frozen=True, tag="content_block_start"):
    """Block `index` begins; the one before has stopped."""

    index: int
    content_block: AnswerBlock


class ThinkingDelta(Struct, frozen=True, kw_only=True, tag_field="type", tag="thinking_delta"):
    """More thinking."""

    thinking: str


class SignatureDelta(Struct, frozen=True, kw_only=True, tag_field="type", tag="signature_delta"):
    """The signature, before its block stops."""

    signature: str


class TextDelta(Struct, frozen=True, kw_only=True, tag_field="type", tag="text_delta"):
    """More text."""

    text: str


class InputDelta(Struct, frozen=True, kw_only=True, tag_field="type", tag="input_json_delta"):
    """More of a call's input: a piece of JSON text."""

    partial_json: str


BlockNews = ThinkingDelta | SignatureDelta | TextDelta | InputDelta


class BlockDelta(Event, frozen=True, tag="content_block_delta"):
    """More of block `index`."""

    index: int
    delta: BlockNews


class BlockStop(Event, frozen=True, tag="content_block_stop"):
    """Block `index` is over. A call in it can be run if its input is whole JSON text; a limit may have cut it."""

    index: int


class Stop(Struct, frozen=True, kw_only=True):
    """Why the model stopped."""

    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(Event, frozen=True, tag="message_delta"):
    """The model stopped; the final counts."""

    delta: Stop
    usage: MessagesUsage


class MessageStop(Event, frozen=True, tag="message_stop"):
    """The last event."""


class ToolCallDispatched(Event, frozen=True, tag="tool_call_dispatch"):
    """Side event: a call, complete."""

    tool_use: ToolUseBlock


class ToolResultDispatched(Event, frozen=True, tag="tool_result"):
    """Side event: what a call that the mesh ran returned."""

    tool_use_id: str
    name: str
    content: str
    is_error: bool


class TokenCountAnswer(Struct, frozen=True, kw_only=True):
    """Body of an answer of `count_tokens`: exact length of the prompt."""

    input_tokens: int


def usage_of(usage: Usage, *, final: bool) -> MessagesUsage:
    """Counts as Messages tells them."""
    return MessagesUsage(
        input_tokens=usage.prompt_tokens - usage.cached_tokens,
        cache_creation_input_tokens=0,
        cache_read_input_tokens=usage.cached_tokens,
        output_tokens=usage.completion_tokens,
        output_tokens_details=OutputDetails(thinking_tokens=usage.reasoning_tokens) if final else UNSET,
    )


def stop_of(reason: FinishReason, stop: str) -> Stop:
    """The reason as Messages tells it, for all but `cancelled`; a stop string that matched goes first."""
    if stop and reason == "stop":
        return Stop(stop_reason="stop_sequence", stop_sequence=stop)
    return Stop(stop_reason=_REASONS[reason], stop_sequence=None)
