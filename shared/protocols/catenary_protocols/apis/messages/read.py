"""Request bytes → draft."""

from dataclasses import dataclass
from typing import Literal

import msgspec

from catenary_protocols.apis.api import Draft
from catenary_protocols.apis.messages.history import History
from catenary_protocols.apis.messages.request import Choice, CountRequest, MessagesRequest, MessagesTool
from catenary_protocols.apis.nvext import NvExt, unknown_keys
from catenary_protocols.apis.reading import CONTINUED, read, wrong
from catenary_protocols.apis.sealed import Sealed
from catenary_protocols.apis.tools import schema_text, tool_of
from catenary_protocols.conversation import Conversation, Message, Sampling, SystemMessage, TextPart, Tool, ToolChoice
from catenary_protocols.wire import Wire

_request = msgspec.json.Decoder(MessagesRequest)
_count = msgspec.json.Decoder(CountRequest)
_encode = msgspec.json.Encoder().encode

_EFFORTS = {"xhigh": "high", "max": "high"}
_OLD_SESSION = "_session_"


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesDraft(Draft):
    """A Messages request.

    Attributes:
        thinking: what the model thinks is shown, goes out sealed in its signature alone, or stays here.
    """

    thinking: Literal["shown", "sealed", "hidden"] = "shown"


def read_messages(sealed: Sealed, body: bytes) -> MessagesDraft:
    """The draft of a Messages request; raises `RequestError`."""
    request = read(_request, body)
    conversation, unknown_blocks = _conversation(request, sealed)
    if request.messages[-1].role == "assistant":
        raise wrong(f"messages[{len(request.messages) - 1}]", CONTINUED, code="unsupported")
    nvext = request.nvext or NvExt()
    session, user = _caller(request)
    return MessagesDraft(
        model=request.model,
        conversation=conversation,
        sampling=Sampling(
            max_tokens=request.max_tokens,
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=request.top_k if request.top_k and request.top_k > 0 else None,
            stop=tuple(request.stop_sequences or ()),
        ),
        hints=nvext.hints,
        within=nvext.within,
        session_final=bool(nvext.session_final),
        passed_over=(*unknown_blocks, *unknown_keys(body)),
        stream=bool(request.stream),
        run_tools=nvext.tools_to_run(conversation.tools),
        tool_dispatch=bool(nvext.tool_dispatch),
        answer_schema=_answer_schema(request),
        clamp=True,
        session=session,
        user=user,
        thinking=_display(request),
    )


def read_count(sealed: Sealed, body: bytes) -> Draft:
    """The draft of a request to count tokens, which will not run; raises `RequestError`."""
    request = read(_count, body)
    conversation, _ = _conversation(request, sealed)
    return Draft(model=request.model, conversation=conversation, sampling=Sampling())


def _conversation(request: CountRequest, sealed: Sealed) -> tuple[Conversation, list[str]]:
    """The conversation, and paths of blocks that nobody here knows."""
    if request.mcp_servers:
        raise wrong("mcp_servers", "the mesh calls no servers for a request", code="unsupported")
    tools = _tools(request.tools or ())
    history = History({tool.name: tool for tool in tools}, sealed)
    messages = (*_system(request), *history.read(request.messages))
    if all(isinstance(message, SystemMessage) for message in messages):
        raise wrong("messages", "hold nothing that a user, a tool or the model has said")
    choice = request.tool_choice
    conversation = Conversation(
        messages=messages,
        tools=tools,
        tool_choice=_tool_choice(choice, tools) if choice else ToolChoice(),
        parallel_calls=not (choice and choice.disable_parallel_tool_use),
        thinking=request.thinking.type != "disabled" if request.thinking else None,
        template=_template(request),
    )
    return conversation, history.passed_over


def _system(request: CountRequest) -> tuple[Message, ...]:
    said = request.system
    if not said:
        return ()
    texts = [said] if isinstance(said, str) else [block.text for block in said]
    return (SystemMessage(parts=tuple(TextPart(text=text) for text in texts)),)


def _tools(declared: "list[MessagesTool] | tuple[()]") -> tuple[Tool, ...]:
    tools: dict[str, Tool] = {}
    for place, entry in enumerate(declared):
        path = f"tools[{place}]"
        if entry.type not in {None, "custom"}:
            message = f"{entry.type!r} is a tool of the API's own, none of which is here; declare one by `input_schema`"
            raise wrong(f"{path}.type", message, code="unsupported")
        if entry.name in tools:
            raise wrong(f"{path}.name", f"a tool {entry.name!r} was declared before")
        tool = tool_of(
            entry.name, entry.description, entry.input_schema, strict=entry.strict, path=f"{path}.input_schema"
        )
        tools[entry.name] = msgspec.structs.replace(tool, deferred=True) if entry.defer_loading else tool
    return tuple(tools.values())


def _tool_choice(choice: Choice, tools: tuple[Tool, ...]) -> ToolChoice:
    match choice.type:
        case "any":
            if not tools:
                raise wrong("tool_choice", "a call is required, but the request declares no tools")
            return ToolChoice(mode="required")
        case "tool":
            if all(tool.name != choice.name for tool in tools):
                raise wrong("tool_choice.name", f"the request declares no tool {choice.name!r}")
            return ToolChoice(mode="named", name=choice.name or "")
        case mode:
            return ToolChoice(mode=mode)


def _answer_schema(request: MessagesRequest) -> str:
    form, older = request.output_config.format if request.output_config else None, request.output_format
    if form and older:
        raise wrong("output_format", "is the older form of `output_config.format`; the request has both")
    if form:
        return schema_text(form.schema, "output_config.format.schema")
    return schema_text(older.schema, "output_format.schema") if older else ""


def _display(request: MessagesRequest) -> Literal["shown", "sealed", "hidden"]:
    """Thinking that nobody asked for is shown too, so that it comes back; one who wants none gets none."""
    thinking = request.thinking
    if thinking is None:
        return "shown"
    if thinking.type == "disabled":
        return "hidden"
    return "sealed" if thinking.display == "omitted" else "shown"


def _template(request: CountRequest) -> str:
    effort = request.output_config.effort if request.output_config else None
    return _encode({"reasoning_effort": _EFFORTS.get(effort, effort)}).decode() if effort else ""


class _Ids(Wire, frozen=True):
    """What Claude Code writes into `metadata.user_id`."""

    session_id: str = ""
    device_id: str = ""


_ids = msgspec.json.Decoder(_Ids)


def _caller(request: MessagesRequest) -> tuple[str, str]:
    """The client's own ids of the conversation and of the person."""
    said = (request.metadata.user_id if request.metadata else None) or ""
    if not said.startswith("{"):
        user, _, session = said.partition(_OLD_SESSION)
        return session, user
    try:
        ids = _ids.decode(said.encode())
    except (msgspec.DecodeError, RecursionError):  # an id that happens to begin so
        return "", said
    return ids.session_id, ids.device_id
