"""The answer: a whole completion, and the chunks of a stream. Also what the served OpenAPI document shows."""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from catenary_protocols.apis.likely import TokenLogprobs
from catenary_protocols.turn_events import Usage

Reason = Literal["stop", "length", "tool_calls", "function_call", "content_filter"]


class PromptDetails(Struct, frozen=True, kw_only=True):
    """`cached_tokens`: what the engine reused of the prompt."""

    cached_tokens: int


class CompletionDetails(Struct, frozen=True, kw_only=True):
    """`reasoning_tokens`: how much of the completion was thought."""

    reasoning_tokens: int


class ChatUsage(Struct, frozen=True, kw_only=True):
    """Token counts."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class Function(Struct, frozen=True, kw_only=True):
    """What is called. `arguments` is JSON text."""

    name: str
    arguments: str


class ToolCall(Struct, frozen=True, kw_only=True, tag_field="type", tag="function"):
    """A call. In a stream it has its `index`."""

    id: str
    function: Function
    index: int | UnsetType = UNSET


class ChatAnswer(Struct, frozen=True, kw_only=True):
    """What the model said. `function_call`: its call, for a request that declared `functions`."""

    content: str | None
    role: Literal["assistant"] = "assistant"
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET
    function_call: Function | UnsetType = UNSET


class ChatLogprobs(Struct, frozen=True, kw_only=True):
    """How likely the tokens of the visible text were."""

    content: list[TokenLogprobs]
    refusal: None = None


class ChatChoice(Struct, frozen=True, kw_only=True):
    """One answer."""

    index: int
    message: ChatAnswer
    finish_reason: Reason
    logprobs: ChatLogprobs | None = None


class ChatCompletion(Struct, frozen=True, kw_only=True, tag_field="object", tag="chat.completion"):
    """Body of an answer that is not streamed."""

    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: ChatUsage


class FunctionDelta(Struct, frozen=True, kw_only=True):
    """More of a call: its name at first, then pieces of its arguments."""

    arguments: str
    name: str | UnsetType = UNSET


class ToolCallDelta(Struct, frozen=True, kw_only=True):
    """More of the call `index`. Id and type come once, with the name."""

    index: int
    function: FunctionDelta
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


class ChatDelta(Struct, frozen=True, kw_only=True):
    """What is new. The role comes once, first."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET
    function_call: FunctionDelta | UnsetType = UNSET


class ChunkChoice(Struct, frozen=True, kw_only=True):
    """The news of one choice. `logprobs` are of the tokens that begin in its text, where the request asks for them."""

    index: int
    delta: ChatDelta
    finish_reason: Reason | None = None
    logprobs: ChatLogprobs | UnsetType = UNSET


class ChatChunk(Struct, frozen=True, kw_only=True, tag_field="object", tag="chat.completion.chunk"):
    """One event of a stream. The usage chunk has no choices."""

    id: str
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: ChatUsage | UnsetType = UNSET


class ToolCallDispatch(Struct, frozen=True, kw_only=True):
    """Side event `tool_call_dispatch`: a call, complete, before the stream's own delta that completes it."""

    choice_index: int
    tool_call: ToolCall


class ToolResultDispatch(Struct, frozen=True, kw_only=True):
    """Side event `tool_result`: what a call that the mesh ran returned."""

    choice_index: int
    index: int
    tool_call_id: str
    name: str
    content: str
    is_error: bool


def usage_of(usage: Usage) -> ChatUsage:
    """Counts as Chat tells them."""
    return ChatUsage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        prompt_tokens_details=PromptDetails(cached_tokens=usage.cached_tokens),
        completion_tokens_details=CompletionDetails(reasoning_tokens=usage.reasoning_tokens),
    )
