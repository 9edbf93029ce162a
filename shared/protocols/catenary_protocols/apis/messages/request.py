"""The request as it comes: every field that is read, with its limits. What is not here is ignored."""

from typing import Annotated, Literal

from msgspec import Meta, Raw, field

from catenary_protocols.apis.messages.blocks import Content, TextParam
from catenary_protocols.apis.nvext import NvExt, Tokens
from catenary_protocols.apis.tools import JsonObject, Name
from catenary_protocols.wire import Wire

StopSequence = Annotated[str, Meta(min_length=1, max_length=1024)]


class TurnMessage(Wire, frozen=True):
    """One message. `system` in the midst of a conversation stays where it stands."""

    role: Literal["user", "assistant", "system"]
    content: Content


class MessagesTool(Wire, frozen=True):
    """A tool of the client's. `defer_loading`: the model hears of it where a `tool_reference` names it."""

    name: Name
    type: str | None = None
    description: str | None = None
    input_schema: JsonObject = field(default_factory=Raw)
    strict: bool | None = None
    defer_loading: bool | None = None


class Choice(Wire, frozen=True):
    """Whether and what the model must call; `name` is for type `tool`."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingConfig(Wire, frozen=True):
    """Whether the model thinks. `display: "omitted"` leaves the text to the signature; a budget does not bind."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    display: str | None = None


class OutputFormat(Wire, frozen=True):
    """The form of the final text."""

    type: Literal["json_schema"]
    schema: JsonObject


class OutputConfig(Wire, frozen=True):
    """`effort`: how hard to think, from low to max."""

    effort: str | None = None
    format: OutputFormat | None = None


class Metadata(Wire, frozen=True):
    """`user_id`: an id, or JSON text of an object that holds ids."""

    user_id: str | None = None


class McpServer(Wire, frozen=True):
    """A server that the API's own provider would call."""

    name: str = ""


class CountRequest(Wire, frozen=True):
    """Body of `POST /v1/messages/count_tokens`: all that a prompt is made of."""

    model: Annotated[str, Meta(min_length=1)]
    messages: Annotated[list[TurnMessage], Meta(min_length=1)]
    system: str | list[TextParam] | None = None
    tools: list[MessagesTool] | None = None
    tool_choice: Choice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    mcp_servers: list[McpServer] | None = None


class MessagesRequest(CountRequest, frozen=True, kw_only=True):
    """Body of `POST /v1/messages`. `output_format` is the older form of `output_config.format`."""

    max_tokens: Tokens
    stream: bool | None = None
    stop_sequences: Annotated[list[StopSequence], Meta(max_length=64)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    metadata: Metadata | None = None
    output_format: OutputFormat | None = None
    nvext: NvExt | None = None
