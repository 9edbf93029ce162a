"""The request as it comes: every field that is read, with its limits. What is not here is ignored."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Raw, field

from catenary_protocols.apis.nvext import NvExt, Tokens
from catenary_protocols.apis.sampling import Alternatives, SamplingFields
from catenary_protocols.apis.tools import JsonObject, Name
from catenary_protocols.wire import Wire

# --- messages -------------------------------------------------------------------------------------------------------


class TextBlock(Wire, frozen=True, tag_field="type", tag="text"):
    """Text."""

    text: str


class RefusalBlock(Wire, frozen=True, tag_field="type", tag="refusal"):
    """What the model said when it refused."""

    refusal: str


class ImageUrl(Wire, frozen=True):
    """Where an image is: a URL, or the image itself as a `data:` URL."""

    url: str
    detail: str | None = None


class ImageBlock(Wire, frozen=True, tag_field="type", tag="image_url"):
    """An image."""

    image_url: ImageUrl


class FunctionCall(Wire, frozen=True):
    """A call's name and arguments (JSON text, as the model wrote it or as the client spelled it anew)."""

    name: str
    arguments: str | None = None


class ToolCallEcho(Wire, frozen=True):
    """A call that the model made, sent back."""

    function: FunctionCall
    id: str = ""


class SystemChat(Wire, frozen=True, tag_field="role", tag="system"):
    """Instructions."""

    content: str | list[TextBlock]


class DeveloperChat(Wire, frozen=True, tag_field="role", tag="developer"):
    """Instructions; the newer name."""

    content: str | list[TextBlock]


class UserChat(Wire, frozen=True, tag_field="role", tag="user"):
    """What the user said."""

    content: str | list[TextBlock | ImageBlock]
    name: str | None = None


class AssistantChat(Wire, frozen=True, tag_field="role", tag="assistant"):
    """What the model said: reasoning, then text, then calls. `reasoning` is another name of `reasoning_content`.

    Of a list of thoughts the nth stands before the nth call, and the text after the last one. One text is cut to such a
    list where the calls have ids of ours, which tell how much of it was thought before each. A message without either
    field leaves to the mesh what was thought before such calls; "" says that nothing is to be there. `prefix`: the
    answer is to go on from here.
    """

    content: str | list[TextBlock | RefusalBlock] | None = None
    reasoning_content: str | list[str] | None = None
    reasoning: str | list[str] | None = None
    refusal: str | None = None
    tool_calls: list[ToolCallEcho] | None = None
    function_call: FunctionCall | None = None
    prefix: bool | None = None


class ToolChat(Wire, frozen=True, tag_field="role", tag="tool"):
    """The result of a call; none means empty."""

    tool_call_id: str
    content: str | list[TextBlock | ImageBlock] | None = None
    name: str | None = None


class FunctionChat(Wire, frozen=True, tag_field="role", tag="function"):
    """The result of a call; the older form."""

    name: str
    content: str | None = None


ChatMessage = SystemChat | DeveloperChat | UserChat | AssistantChat | ToolChat | FunctionChat

# --- tools ----------------------------------------------------------------------------------------------------------


class FunctionTool(Wire, frozen=True):
    """A function the model may call. `parameters` is the JSON Schema of its arguments."""

    name: Name
    description: str | None = None
    parameters: JsonObject = field(default_factory=Raw)
    strict: bool | None = None


class ChatTool(Wire, frozen=True):
    """A tool. Types other than `function` are not shown to the model."""

    type: str = "function"
    function: FunctionTool | None = None


class FunctionName(Wire, frozen=True):
    """Names one function."""

    name: str


class NamedTool(Wire, frozen=True, tag_field="type", tag="function"):
    """This tool must be called."""

    function: FunctionName


# --- the rest -------------------------------------------------------------------------------------------------------


class StreamOptions(Wire, frozen=True):
    """`include_usage`: token counts in a last chunk."""

    include_usage: bool | None = None


class JsonSchema(Wire, frozen=True):
    """What the final text must satisfy."""

    schema: JsonObject = field(default_factory=Raw)


class ResponseFormat(Wire, frozen=True):
    """The form of the final text; it does not bind tool calls. Engines that cannot constrain decoding ignore it."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: JsonSchema | None = None


class ChatRequest(SamplingFields, frozen=True, kw_only=True):
    """Body of `POST /v1/chat/completions`.

    Answers are text: another of the `modalities`, and `audio`, are refused. `verbosity`, `prediction` and
    `web_search_options` are wishes that are passed over, and said to be.
    """

    model: str
    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    tools: list[ChatTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_completion_tokens: Tokens | None = None
    logprobs: bool | None = None
    top_logprobs: Alternatives | None = None
    functions: list[FunctionTool] | None = None
    function_call: Literal["none", "auto"] | FunctionName | None = None
    response_format: ResponseFormat | None = None
    modalities: list[str] | None = None
    audio: Any = None
    verbosity: Any = None
    prediction: Any = None
    web_search_options: Any = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    nvext: NvExt | None = None
    prompt_cache_key: str | None = None
    user: str | None = None
    metadata: dict[str, Any] | None = None
