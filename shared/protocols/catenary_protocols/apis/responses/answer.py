"""The answer: items, the response that holds them, and what its stream's events carry."""

from typing import Literal

from msgspec import UNSET, Raw, Struct, UnsetType

from catenary_protocols.apis.likely import TokenLogprobs
from catenary_protocols.turn_events import Usage

Status = Literal["in_progress", "completed", "incomplete"]


class OutputText(Struct, frozen=True, kw_only=True, tag_field="type", tag="output_text"):
    """Visible text."""

    text: str
    annotations: list[Raw] = []
    logprobs: list[TokenLogprobs] = []


class ReasoningText(Struct, frozen=True, kw_only=True, tag_field="type", tag="reasoning_text"):
    """What the model thought, as it thought it."""

    text: str


class SummaryText(Struct, frozen=True, kw_only=True, tag_field="type", tag="summary_text"):
    """What the model thought, for clients that show summaries: the same text."""

    text: str


class MessageItem(Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    """Text of the model."""

    id: str
    status: Status
    content: list[OutputText]
    role: Literal["assistant"] = "assistant"


class ReasoningItem(Struct, frozen=True, kw_only=True, tag_field="type", tag="reasoning"):
    """A thought. `encrypted_content` restores it when it is sent back; null until the item is done."""

    id: str
    status: Status
    summary: list[SummaryText]
    content: list[ReasoningText]
    encrypted_content: str | None


class FunctionCallItem(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="function_call"):
    """A call. `arguments` is JSON text."""

    id: str
    status: Status
    call_id: str
    name: str
    arguments: str
    namespace: str | None = None


class CustomCallItem(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="custom_tool_call"):
    """A call of a tool that takes text."""

    id: str
    status: Status
    call_id: str
    name: str
    input: str
    namespace: str | None = None


OutputItem = MessageItem | ReasoningItem | FunctionCallItem | CustomCallItem


class InputDetails(Struct, frozen=True, kw_only=True):
    """`cached_tokens`: what the engine reused of the prompt."""

    cached_tokens: int


class OutputDetails(Struct, frozen=True, kw_only=True):
    """`reasoning_tokens`: how much of the output was thought."""

    reasoning_tokens: int


class ResponseUsage(Struct, frozen=True, kw_only=True):
    """Token counts."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseError(Struct, frozen=True, kw_only=True):
    """Why a response failed."""

    code: str
    message: str


class IncompleteDetails(Struct, frozen=True, kw_only=True):
    """Why a response ended early."""

    reason: Literal["max_output_tokens", "content_filter"]


class Response(Struct, frozen=True, kw_only=True, tag_field="object", tag="response"):
    """A response: body of an answer that is not streamed, and part of the events that begin and end a stream."""

    id: str
    created_at: int
    model: str
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    output: list[OutputItem]
    usage: ResponseUsage | None
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: Raw
    store: bool
    temperature: float | None
    text: Raw
    tool_choice: Raw
    tools: Raw
    top_p: float | None
    top_logprobs: int = 0
    truncation: str
    user: str | None
    metadata: Raw
    background: bool = False


class StreamEvent(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event of a stream; which fields it has, its type says.

    Numbers grow by one from 0 and are the same whenever a response is told again; a sign of life repeats the last one.
    """

    type: str
    response: Response | UnsetType = UNSET
    item_id: str | UnsetType = UNSET
    output_index: int | UnsetType = UNSET
    content_index: int | UnsetType = UNSET
    summary_index: int | UnsetType = UNSET
    item: OutputItem | UnsetType = UNSET
    part: OutputText | SummaryText | UnsetType = UNSET
    text: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    input: str | UnsetType = UNSET
    logprobs: list[TokenLogprobs] | UnsetType = UNSET
    delta: str | UnsetType = UNSET
    sequence_number: int


class DeletedResponse(Struct, frozen=True, kw_only=True, tag_field="object", tag="response"):
    """Answer to `DELETE`."""

    id: str
    deleted: Literal[True] = True


class InputTokens(Struct, frozen=True, kw_only=True, tag_field="object", tag="response.input_tokens"):
    """Exact length of a prompt, in tokens."""

    input_tokens: int


class ItemList(Struct, frozen=True, kw_only=True, tag_field="object", tag="list"):
    """A page of input items."""

    data: list[Raw]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ToolCallDispatch(Struct, frozen=True, kw_only=True):
    """Side event `tool_call_dispatch`: a call, complete, before the stream's own events say so."""

    output_index: int
    item: FunctionCallItem | CustomCallItem


class ToolResultDispatch(Struct, frozen=True, kw_only=True):
    """Side event `tool_result`: what a call that the mesh ran returned."""

    call_id: str
    name: str
    output: str
    is_error: bool


def usage_of(usage: Usage) -> ResponseUsage:
    """Counts as Responses tells them."""
    return ResponseUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=InputDetails(cached_tokens=usage.cached_tokens),
        output_tokens=usage.completion_tokens,
        output_tokens_details=OutputDetails(reasoning_tokens=usage.reasoning_tokens),
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
    )
