"""Messages in every shape that clients send → messages of a conversation."""

from collections.abc import Sequence

from catenary_protocols.apis.chat.request import (
    AssistantChat,
    ChatMessage,
    DeveloperChat,
    FunctionCall,
    FunctionChat,
    ImageBlock,
    RefusalBlock,
    SystemChat,
    TextBlock,
    UserChat,
)
from catenary_protocols.apis.reading import wrong
from catenary_protocols.call_ids import bare
from catenary_protocols.conversation import (
    AssistantMessage,
    CallPart,
    ImagePart,
    Message,
    SystemMessage,
    TextPart,
    ToolMessage,
    UserMessage,
)
from catenary_protocols.thoughts import in_place, interleaved, tell_of_thoughts

_THINK = "<think>"


def read_messages(messages: Sequence[ChatMessage]) -> tuple[Message, ...]:
    """The conversation's messages, in order; raises `RequestError`.

    A result answers a call that stands before it, and gets its name if it has none.
    """
    names: dict[str, str] = {}
    out: list[Message] = []
    for at, message in enumerate(messages):
        path = f"messages[{at}].content"
        match message:
            case SystemChat() | DeveloperChat():
                out.append(SystemMessage(parts=_texts(message.content)))
            case UserChat():
                out.append(UserMessage(parts=_parts(message.content, path), name=message.name or ""))
            case AssistantChat():
                said = _assistant(message)
                names.update((bare(part.id), part.name) for part in said.parts if isinstance(part, CallPart))
                out.append(said)
            case FunctionChat():
                out.append(ToolMessage(call_id="", parts=_parts(message.content or "", path), name=message.name))
            case _:
                id_ = message.tool_call_id
                if bare(id_) not in names:
                    raise wrong(f"messages[{at}].tool_call_id", f"no call before it has the id {id_!r}")
                name = message.name or names[bare(id_)]
                out.append(ToolMessage(call_id=id_, parts=_parts(message.content or "", path), name=name))
    return tuple(out)


def _texts(content: str | list[TextBlock]) -> tuple[TextPart, ...]:
    if isinstance(content, str):
        return (TextPart(text=content),)
    return tuple(TextPart(text=block.text) for block in content)


def _parts(content: str | list[TextBlock | ImageBlock], path: str) -> tuple[TextPart | ImagePart, ...]:
    if isinstance(content, str):
        return (TextPart(text=content),)
    return tuple(
        TextPart(text=block.text)
        if isinstance(block, TextBlock)
        else ImagePart(url=block.image_url.url, detail=block.image_url.detail or "", field=f"{path}[{place}]")
        for place, block in enumerate(content)
    )


def _assistant(message: AssistantChat) -> AssistantMessage:
    texts = [block.refusal if isinstance(block, RefusalBlock) else block.text for block in _said(message)]
    said = [TextPart(text=text) for text in texts if text]
    calls = [_call(echo.id, echo.function) for echo in message.tool_calls or ()]
    if message.function_call:
        calls.append(_call("", message.function_call))
    given = message.reasoning_content or message.reasoning or ""
    parts = in_place(given, said, calls) if isinstance(given, str) else interleaved(given, said, calls)
    return AssistantMessage(parts=parts, left_out=_has_no_word_on_thoughts(message, texts) and tell_of_thoughts(calls))


def _has_no_word_on_thoughts(message: AssistantChat, texts: Sequence[str]) -> bool:
    """Neither a field, be it empty, nor thoughts written into the text."""
    if message.reasoning_content is not None or message.reasoning is not None:
        return False
    return not "".join(texts).lstrip().startswith(_THINK)


def _said(message: AssistantChat) -> Sequence[TextBlock | RefusalBlock]:
    content = message.content or message.refusal or ""
    return [TextBlock(text=content)] if isinstance(content, str) else content


def _call(id_: str, function: FunctionCall) -> CallPart:
    return CallPart(id=id_, name=function.name, arguments=function.arguments or "{}")
