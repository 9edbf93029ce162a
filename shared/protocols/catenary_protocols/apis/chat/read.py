"""Request bytes → draft."""

from dataclasses import dataclass

import msgspec

from catenary_protocols.apis.api import Draft
from catenary_protocols.apis.chat.messages import read_messages
from catenary_protocols.apis.chat.request import (
    AssistantChat,
    ChatRequest,
    ChatTool,
    FunctionName,
    NamedTool,
    ResponseFormat,
)
from catenary_protocols.apis.nvext import NvExt, unknown_keys
from catenary_protocols.apis.reading import CONTINUED, lacking, read, told, wrong
from catenary_protocols.apis.sampling import sampling_of
from catenary_protocols.apis.tools import ANY_OBJECT, schema_text, tool_of
from catenary_protocols.conversation import Conversation, Tool, ToolChoice

_request = msgspec.json.Decoder(ChatRequest)
_encode = msgspec.json.Encoder().encode
_TEXT_ALONE = "answers are text; no other form of them is made here"
_WISHES = ("verbosity", "prediction", "web_search_options")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatDraft(Draft):
    """A request of Chat Completions, read. `functions`: calls are told in the older form."""

    functions: bool = False


def read_chat(body: bytes) -> ChatDraft:
    """The draft of a Chat Completions request; raises `RequestError`."""
    request = _newer(read(_request, body))
    if not request.model:
        raise wrong("model", "must name a model")
    _refuse_unsupported(request)
    tools = _tools(request.tools or [])
    nvext = request.nvext or NvExt()
    metadata_session = (request.metadata or {}).get("session_id")
    return ChatDraft(
        model=request.model,
        conversation=Conversation(
            messages=read_messages(request.messages),
            tools=tools,
            tool_choice=_tool_choice(request, tools),
            parallel_calls=request.parallel_tool_calls is not False and not request.functions,
            thinking=_thinking(request),
            restore=nvext.restore_reasoning is not False,
            template=_template(request),
        ),
        sampling=sampling_of(request, request.max_completion_tokens or request.max_tokens, _logprobs(request)),
        hints=nvext.hints,
        within=nvext.within,
        session_final=bool(nvext.session_final),
        passed_over=(*told(request, _WISHES), *unknown_keys(body)),
        stream=bool(request.stream),
        run_tools=nvext.tools_to_run(tools),
        tool_dispatch=bool(nvext.tool_dispatch),
        choices=request.n or 1,
        answer_schema=_answer_schema(request.response_format),
        include_usage=bool(request.stream_options and request.stream_options.include_usage),
        session=request.prompt_cache_key or (metadata_session if isinstance(metadata_session, str) else ""),
        user=request.user or "",
        functions=bool(request.functions),
    )


def _newer(request: ChatRequest) -> ChatRequest:
    """The same with `functions` and `function_call` as `tools` and `tool_choice`."""
    if not request.functions:
        return request
    if request.tools:
        raise wrong("functions", "are the older form of `tools`; the request has both")
    choice = request.function_call
    return msgspec.structs.replace(
        request,
        tools=[ChatTool(function=function) for function in request.functions],
        tool_choice=NamedTool(function=choice) if isinstance(choice, FunctionName) else choice,
    )


def _refuse_unsupported(request: ChatRequest) -> None:
    """Refuse what would change the answer if it were ignored."""
    if request.audio is not None:
        raise wrong("audio", _TEXT_ALONE, code="unsupported")
    for place, form in enumerate(request.modalities or ()):
        if form != "text":
            raise wrong(f"modalities[{place}]", _TEXT_ALONE, code="unsupported")
    if request.continue_final_message:
        raise wrong("continue_final_message", CONTINUED, code="unsupported")
    if request.add_generation_prompt is False:
        raise wrong("add_generation_prompt", CONTINUED, code="unsupported")
    last = len(request.messages) - 1
    message = request.messages[last]
    if isinstance(message, AssistantChat) and message.prefix:
        raise wrong(f"messages[{last}].prefix", CONTINUED, code="unsupported")


def _logprobs(request: ChatRequest) -> int | None:
    if request.logprobs:
        return request.top_logprobs or 0
    if request.top_logprobs:
        raise wrong("top_logprobs", "needs `logprobs` to be true")
    return None


def _answer_schema(form: ResponseFormat | None) -> str:
    if form is None or form.type == "text":
        return ""
    if form.type == "json_object":
        return ANY_OBJECT
    path = "response_format.json_schema.schema"
    if form.json_schema is None or bytes(form.json_schema.schema) in {b"", b"null"}:
        raise lacking(path)
    return schema_text(form.json_schema.schema, path)


def _tools(declared: list[ChatTool]) -> tuple[Tool, ...]:
    tools: dict[str, Tool] = {}
    for place, entry in enumerate(declared):
        if entry.type != "function":
            continue
        function = entry.function
        path = f"tools[{place}].function"
        if function is None:
            raise lacking(path)
        if function.name in tools:
            raise wrong(f"{path}.name", f"a tool {function.name!r} was declared before")
        tools[function.name] = tool_of(
            function.name,
            function.description,
            function.parameters,
            strict=function.strict,
            path=f"{path}.parameters",
        )
    return tuple(tools.values())


def _tool_choice(request: ChatRequest, tools: tuple[Tool, ...]) -> ToolChoice:
    choice = request.tool_choice or "auto"
    if isinstance(choice, NamedTool):
        name = choice.function.name
        if all(tool.name != name for tool in tools):
            raise wrong("tool_choice.function.name", f"the request declares no tool {name!r}")
        return ToolChoice(mode="named", name=name)
    if choice == "required" and not tools:
        raise wrong("tool_choice", "a call is required, but the request declares no tools")
    return ToolChoice(mode=choice)


def _thinking(request: ChatRequest) -> bool | None:
    if request.reasoning_effort == "none":
        return False
    said = (request.chat_template_kwargs or {}).get("enable_thinking")
    return said if isinstance(said, bool) else None


def _template(request: ChatRequest) -> str:
    effort = {"reasoning_effort": request.reasoning_effort} if request.reasoning_effort else {}
    arguments = effort | (request.chat_template_kwargs or {})
    return _encode(arguments).decode() if arguments else ""
