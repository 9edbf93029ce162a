"""A conversation in the chat form that templates read (Hugging Face's): the one place that knows both.

The rule: what a client sends again in other words for the same thing is given to the template in one form.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any

from catenary_protocols.conversation import (
    AssistantMessage,
    CallPart,
    Conversation,
    ImagePart,
    Message,
    ReasoningPart,
    SystemMessage,
    TextPart,
    Tool,
    ToolMessage,
    UserMessage,
)
from catenary_tokenizers.stabilise import Stabiliser, canonical_tool

from catenary_tokenizer_service.settings import RUN_CONTEXT

_STABILISER = Stabiliser(moved_along=(RUN_CONTEXT,))
_SHORT = 512  # characters of arguments that are parsed once: a session sends the same calls every turn
_SHORT_TOOL = 1 << 14
"""Characters."""
KEPT_TOOLS = 1024
"""A session declares the same tools every turn; they are read once."""
_CUT = "the call was cut off by the limit of tokens and was not run"
Said = ReasoningPart | TextPart | CallPart


def chat_messages(conversation: Conversation, stabiliser: Stabiliser = _STABILISER) -> list[Mapping[str, object]]:
    """Messages as templates want them, without volatile preambles, results in the order of their calls.

    A thought after a call begins a message of its own: each stands before its own calls, however a client sent them.
    """
    names = {
        part.id: part.name
        for message in conversation.messages
        if isinstance(message, AssistantMessage)
        for part in message.parts
        if isinstance(part, CallPart)
    }
    ordered = _in_order_of_calls(_with_cut_calls_told(conversation.messages))
    return stabiliser.messages(one for message in ordered for one in _messages(message, names))


def _with_cut_calls_told(messages: Iterable[Message]) -> Iterator[Message]:
    """A call that the limit cut has no result, and its model would not know why."""
    given = list(messages)
    results = {message.call_id for message in given if isinstance(message, ToolMessage)}
    for message in given:
        yield message
        for part in message.parts if isinstance(message, AssistantMessage) else ():
            if isinstance(part, CallPart) and part.id not in results and not isinstance(_object(part.arguments), dict):
                yield ToolMessage(call_id=part.id, parts=(TextPart(text=_CUT),), is_error=True)


def _in_order_of_calls(messages: Iterable[Message]) -> list[Message]:
    """Clients send results as calls end; most templates tell results apart by their order alone."""
    ordered: list[Message] = []
    calls: list[str] = []

    def place(message: Message) -> int:
        id_ = message.call_id if isinstance(message, ToolMessage) else ""
        return calls.index(id_) if id_ in calls else len(calls)

    for kind, run in groupby(messages, type):
        given = list(run)
        ordered += sorted(given, key=place) if kind is ToolMessage else given
        if kind is AssistantMessage:  # one answer, which may be several messages
            calls = [part.id for answer in given for part in answer.parts if isinstance(part, CallPart)]
    return ordered


def _messages(message: Message, names: dict[str, str]) -> Iterable[dict[str, object]]:
    match message:
        case SystemMessage():
            yield {"role": "system", "content": _content(message.parts)}
        case UserMessage():
            yield {"role": "user", "content": _content(message.parts)}
        case ToolMessage():
            name = message.name or names.get(message.call_id, "")
            content = _failed(message) if message.is_error else _content(message.parts)
            yield {"role": "tool", "content": content, "tool_call_id": message.call_id, "name": name}
        case AssistantMessage():
            yield from map(_assistant, _by_thought(message.parts))


def _failed(message: ToolMessage) -> str | list[dict[str, str]]:
    """The result of a call that failed, with a word that says so."""
    content = _content(message.parts)
    return f"Error: {content}" if isinstance(content, str) else [{"type": "text", "text": "Error: "}, *content]


def _by_thought(parts: Iterable[Said]) -> list[list[Said]]:
    """An answer, cut where the model thought again after a call."""
    answers: list[list[Said]] = [[]]
    called = False
    for part in parts:
        if called and isinstance(part, ReasoningPart):
            answers.append([])
            called = False
        called = called or isinstance(part, CallPart)
        answers[-1].append(part)
    return answers


def _assistant(parts: Sequence[Said]) -> dict[str, object]:
    out: dict[str, object] = {
        "role": "assistant",
        "content": "".join(part.text for part in parts if isinstance(part, TextPart)),
    }
    reasoning = [part.text for part in parts if isinstance(part, ReasoningPart)]
    if reasoning:
        out["reasoning_content"] = "\n".join(reasoning)
    calls = [part for part in parts if isinstance(part, CallPart)]
    if calls:
        out["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": _object(call.arguments)},
            }
            for call in calls
        ]
    return out


def _content(parts: Iterable[TextPart | ImagePart]) -> str | list[dict[str, str]]:
    """Text on lines; with images among it, parts of which each image is one."""
    given = list(parts)
    texts = [part.text for part in given if isinstance(part, TextPart)]
    if len(texts) == len(given):
        return "\n".join(texts)
    return [{"type": "text", "text": part.text} if isinstance(part, TextPart) else {"type": "image"} for part in given]


def _object(arguments: str) -> object:
    """Arguments as an object where they are one: templates print objects canonically; else the text as it came."""
    return _known_object(arguments) if len(arguments) <= _SHORT else _parsed(arguments)


def _parsed(arguments: str) -> object:
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


_known_object = lru_cache(maxsize=8192)(_parsed)


def template_options(conversation: Conversation) -> dict[str, object]:
    """Variables for the template."""
    options: dict[str, object] = json.loads(conversation.template) if conversation.template else {}
    if conversation.thinking is not None:
        options.setdefault("enable_thinking", conversation.thinking)
    return options


def chat_tools(conversation: Conversation) -> list[dict[str, object]]:
    """Tools for the prompt's head, in OpenAI's form; none when the model must not call any."""
    if conversation.tool_choice.mode == "none":
        return []
    return [_tool(tool) for tool in conversation.tools if not tool.deferred]


def is_short(tool: Tool) -> bool:
    """Whether what is read of it is kept; thousands of long ones, each sent once, would fill the memory."""
    return len(tool.description) + len(tool.schema) <= _SHORT_TOOL


def _tool(tool: Tool) -> dict[str, object]:
    return _known_tool(tool) if is_short(tool) else _read_tool(tool)


def _read_tool(tool: Tool) -> dict[str, object]:
    function: dict[str, Any] = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    function["parameters"] = json.loads(tool.schema)
    return canonical_tool({"type": "function", "function": function})


_known_tool = lru_cache(maxsize=KEPT_TOOLS)(_read_tool)
