"""The request as it comes: every field that is read, with its limits. What is not here is ignored.

Items and tools of a kind that is not listed in `ITEMS` or `TOOLS` are kept and echoed, and the model does not see them.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Raw, field

from catenary_protocols.apis.nvext import NvExt, Tokens
from catenary_protocols.apis.sampling import Alternatives
from catenary_protocols.apis.tools import JsonObject, Name
from catenary_protocols.wire import Wire


def _any_of(*names: str) -> Meta:
    refs = [{"$ref": f"#/components/schemas/{name}"} for name in names]
    return Meta(extra_json_schema={"anyOf": [*refs, {"type": "object"}]})


# --- content --------------------------------------------------------------------------------------------------------


class Content(Wire, frozen=True):
    """A piece of a message, an output or a thought; `type` says which field holds it. Unknown types are skipped."""

    type: str
    text: str = ""
    refusal: str = ""
    image_url: str | None = None
    file_id: str | None = None
    detail: str | None = None


Contents = str | list[Content]

# --- input items ----------------------------------------------------------------------------------------------------


class MessageIn(Wire, frozen=True):
    """A message of anybody."""

    role: Literal["user", "assistant", "system", "developer"]
    content: Contents


class ReasoningIn(Wire, frozen=True):
    """What the model thought, sent back: sealed, or in the clear."""

    summary: list[Content] | None = None
    content: list[Content] | None = None
    encrypted_content: str | None = None


class FunctionCallIn(Wire, frozen=True):
    """A call that the model made, sent back."""

    call_id: str
    name: str
    arguments: str
    namespace: str | None = None


class CustomCallIn(Wire, frozen=True):
    """A call with free text that the model made, sent back."""

    call_id: str
    name: str
    input: str
    namespace: str | None = None


class OutputIn(Wire, frozen=True):
    """The result of a call."""

    call_id: str
    output: Contents


class ReferenceIn(Wire, frozen=True):
    """Stands for an item of the response before."""

    id: str


class ItemKind(Wire, frozen=True):
    """What of an item says how to read it. An item without a type is a message."""

    type: str = "message"
    id: str | None = None
    call_id: str | None = None


ItemIn = MessageIn | ReasoningIn | FunctionCallIn | CustomCallIn | OutputIn | ReferenceIn
ITEMS: dict[str, type[ItemIn]] = {
    "message": MessageIn,
    "reasoning": ReasoningIn,
    "function_call": FunctionCallIn,
    "function_call_output": OutputIn,
    "custom_tool_call": CustomCallIn,
    "custom_tool_call_output": OutputIn,
    "item_reference": ReferenceIn,
}
Item = Annotated[Raw, _any_of(*dict.fromkeys(kind.__name__ for kind in ITEMS.values()))]

# --- tools ----------------------------------------------------------------------------------------------------------


class ToolKind(Wire, frozen=True):
    """What of a tool says how to read it."""

    type: str


class FunctionToolIn(Wire, frozen=True):
    """A function the model may call. `parameters` is the JSON Schema of its arguments."""

    name: Name
    description: str | None = None
    parameters: JsonObject = field(default_factory=Raw)
    strict: bool | None = None


class ToolFormat(Wire, frozen=True):
    """What a custom tool's input looks like: free text, or text of a grammar."""

    type: str = "text"
    syntax: str | None = None
    definition: str | None = None


class CustomToolIn(Wire, frozen=True):
    """A tool that takes text instead of arguments."""

    name: Name
    description: str | None = None
    format: ToolFormat | None = None


class NamespaceIn(Wire, frozen=True):
    """Tools under one name; a call of one says the namespace too."""

    name: Name
    tools: "list[ToolIn]"
    description: str | None = None


TOOLS: dict[str, type[FunctionToolIn | CustomToolIn | NamespaceIn]] = {
    "function": FunctionToolIn,
    "custom": CustomToolIn,
    "namespace": NamespaceIn,
}
ToolIn = Annotated[Raw, _any_of(*(kind.__name__ for kind in TOOLS.values()))]


class ChosenTool(Wire, frozen=True):
    """A tool choice that is more than a word: one tool, or some (`allowed_tools`)."""

    type: str
    name: str | None = None
    mode: Literal["auto", "required"] | None = None
    tools: "list[ChosenTool] | None" = None


# --- the rest -------------------------------------------------------------------------------------------------------


class ReasoningOptions(Wire, frozen=True):
    """How hard to think."""

    effort: str | None = None


class TextFormat(Wire, frozen=True):
    """The form of the final text."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    schema: JsonObject = field(default_factory=Raw)


class TextOptions(Wire, frozen=True):
    """What the text is like. `verbosity` is passed over, and said to be."""

    format: TextFormat | None = None
    verbosity: Any = None


class ResponsesRequest(Wire, frozen=True):
    """Body of `POST /v1/responses`.

    `max_tool_calls` counts calls of tools that the API's own provider would run; there are none here, so it is passed
    over, and said to be.
    """

    model: str
    input: str | list[Item] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[ToolIn] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChosenTool | None = None
    parallel_tool_calls: bool | None = None
    stream: bool | None = None
    store: bool | None = None
    background: bool | None = None
    max_tool_calls: Any = None
    include: list[str] | None = None
    max_output_tokens: Tokens | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_logprobs: Alternatives | None = None
    reasoning: ReasoningOptions | None = None
    text: TextOptions | None = None
    truncation: Literal["auto", "disabled"] | None = None
    conversation: Any = None
    prompt: Any = None
    nvext: NvExt | None = None
    prompt_cache_key: str | None = None
    user: str | None = None
    metadata: dict[str, Any] | None = None


class Echo(Wire, frozen=True):
    """What a response repeats of its request, as the client spelled it."""

    tools: Raw = field(default_factory=lambda: Raw(b"[]"))
    tool_choice: Raw = field(default_factory=lambda: Raw(b'"auto"'))
    reasoning: Raw = field(default_factory=lambda: Raw(b'{"effort":null,"summary":null}'))
    text: Raw = field(default_factory=lambda: Raw(b'{"format":{"type":"text"}}'))
    metadata: Raw = field(default_factory=lambda: Raw(b"{}"))
