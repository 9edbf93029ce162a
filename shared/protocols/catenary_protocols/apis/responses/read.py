"""Request bytes → draft; a draft and what went before → the draft of the whole conversation."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec
from msgspec import Raw

from catenary_protocols.apis.api import Draft
from catenary_protocols.apis.nvext import NvExt, unknown_keys
from catenary_protocols.apis.reading import lacking, mended, read, told, wrong
from catenary_protocols.apis.responses.items import items_of, read_items
from catenary_protocols.apis.responses.request import Echo, ReasoningOptions, ResponsesRequest, TextOptions
from catenary_protocols.apis.responses.tools import Toolbox
from catenary_protocols.apis.sealed import Sealed
from catenary_protocols.apis.tools import ANY_OBJECT, schema_text
from catenary_protocols.conversation import Conversation, Sampling

_request = msgspec.json.Decoder(ResponsesRequest)
_echo = msgspec.json.Decoder(Echo)
_encode = msgspec.json.Encoder().encode
_UNASKED = Echo()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesDraft(Draft):
    """A request of Responses, read.

    Attributes:
        request, echo: what the response repeats of it.
        items: the conversation, from the first response that it goes on from, as items.
        toolbox: what its tools are called.
        sealed: seals what the model will think.
    """

    request: ResponsesRequest
    echo: Echo
    items: tuple[Raw, ...]
    toolbox: Toolbox
    sealed: Sealed

    @property
    def store(self) -> bool:
        """The response is to be kept. That is so unless the client says otherwise."""
        return self.request.store is not False


def read_responses(body: bytes, sealed: Sealed) -> ResponsesDraft:
    """The draft of a Responses request, of its own input alone; raises `RequestError`."""
    request = read(_request, body)
    _refuse_unsupported(request)
    toolbox = Toolbox(request.tools or [])
    choice, tools = toolbox.choice(request.tool_choice)
    nvext = request.nvext or NvExt()
    effort = (request.reasoning or ReasoningOptions()).effort
    metadata_session = (request.metadata or {}).get("session_id")
    draft = ResponsesDraft(
        model=request.model,
        conversation=Conversation(
            messages=(),
            tools=tools,
            tool_choice=choice,
            parallel_calls=request.parallel_tool_calls is not False,
            thinking=False if effort == "none" else None,
            template=_encode({"reasoning_effort": effort}).decode() if effort else "",
        ),
        sampling=Sampling(
            max_tokens=request.max_output_tokens,
            temperature=request.temperature,
            top_p=request.top_p,
            logprobs=_logprobs(request),
        ),
        hints=nvext.hints,
        within=nvext.within,
        session_final=bool(nvext.session_final),
        passed_over=(*_wishes(request), *unknown_keys(body)),
        stream=bool(request.stream),
        run_tools=nvext.tools_to_run(tools),
        tool_dispatch=bool(nvext.tool_dispatch),
        answer_schema=_answer_schema(request.text),
        truncate=request.truncation == "auto",
        session=request.prompt_cache_key or (metadata_session if isinstance(metadata_session, str) else ""),
        user=request.user or "",
        request=request,
        echo=_said(_echo.decode(mended(body))),
        items=items_of(request.input),
        toolbox=toolbox,
        sealed=sealed,
    )
    return draft if request.previous_response_id else continued(draft, ())


def continued(draft: ResponsesDraft, history: Sequence[Raw]) -> ResponsesDraft:
    """The draft with the items of earlier responses before its own; raises `RequestError`."""
    messages = read_items(history, draft.items, draft.request.instructions, draft.toolbox, draft.sealed)
    if not messages and draft.items:
        raise wrong("input", "holds nothing that a user, a tool or the model has said")
    if not messages:
        raise lacking("input")
    conversation = msgspec.structs.replace(draft.conversation, messages=messages)
    return replace(draft, conversation=conversation, items=(*history, *draft.items))


def _refuse_unsupported(request: ResponsesRequest) -> None:
    """Refuse what would change the answer if it were ignored."""
    if not request.model:
        raise wrong("model", "must name a model")
    for name in ("conversation", "prompt"):
        if getattr(request, name):
            raise wrong(name, "is not kept here; send `input`, or `previous_response_id`", code="unsupported")
    if request.background:
        raise wrong("background", "responses are not made in the background", code="unsupported")


def _wishes(request: ResponsesRequest) -> Iterator[str]:
    yield from told(request, ("max_tool_calls",))
    yield from (f"text.{wish}" for wish in told(request.text or TextOptions(), ("verbosity",)))


def _logprobs(request: ResponsesRequest) -> int | None:
    asked = request.top_logprobs or "message.output_text.logprobs" in (request.include or ())
    return (request.top_logprobs or 0) if asked else None


def _answer_schema(text: TextOptions | None) -> str:
    form = text.format if text else None
    if form is None or form.type == "text":
        return ""
    if form.type == "json_object":
        return ANY_OBJECT
    if bytes(form.schema) in {b"", b"null"}:
        raise lacking("text.format.schema")
    return schema_text(form.schema, "text.format.schema")


def _said(echo: Echo) -> Echo:
    """The echo with defaults for what the request gave as null."""
    nulls = {name: getattr(_UNASKED, name) for name in Echo.__struct_fields__ if bytes(getattr(echo, name)) == b"null"}
    return msgspec.structs.replace(echo, **nulls) if nulls else echo
