"""A conversation in the chat form that templates read (Hugging Face's): the one place that knows both."""

import json
from collections.abc import Iterable, Mapping
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

_STABILISER = Stabiliser()


def chat_messages(conversation: Conversation) -> list[Mapping[str, object]]:
    """Messages as templates want them, without volatile preambles, results in the order of their calls."""
    names = {
        part.id: part.name
        for message in conversation.messages
        if isinstance(message, AssistantMessage)
        for part in message.parts
        if isinstance(part, CallPart)
    }
    ordered = _in_order_of_calls(conversation.messages)
    return _STABILISER.messages(_message(message, names) for message in ordered)


def _in_order_of_calls(messages: Iterable[Message]) -> list[Message]:
    """Clients send results as calls end; most templates tell results apart by their order alone."""
    ordered: list[Message] = []
    places: dict[str, int] = {}

    def place(message: Message) -> int:
        return places.get(message.call_id, len(places)) if isinstance(message, ToolMessage) else 0

    for results, run in groupby(messages, lambda message: isinstance(message, ToolMessage)):
        for message in sorted(run, key=place) if results else run:
            ordered.append(message)
            if isinstance(message, AssistantMessage):
                calls = [part.id for part in message.parts if isinstance(part, CallPart)]
                places = {id_: at for at, id_ in enumerate(calls)}
    return ordered


def _message(message: Message, names: dict[str, str]) -> dict[str, object]:
    match message:
        case SystemMessage():
            return {"role": "system", "content": _content(message.parts)}
        case UserMessage():
            return {"role": "user", "content": _content(message.parts)}
        case ToolMessage():
            name = message.name or names.get(message.call_id, "")
            content = _failed(message) if message.is_error else _content(message.parts)
            return {"role": "tool", "content": content, "tool_call_id": message.call_id, "name": name}
        case AssistantMessage():
            return _assistant(message)


def _failed(message: ToolMessage) -> str | list[dict[str, str]]:
    """The result of a call that failed, with a word that says so."""
    content = _content(message.parts)
    return f"Error: {content}" if isinstance(content, str) else [{"type": "text", "text": "Error: "}, *content]


def _assistant(message: AssistantMessage) -> dict[str, object]:
    out: dict[str, object] = {
        "role": "assistant",
        "content": "".join(part.text for part in message.parts if isinstance(part, TextPart)),
    }
    reasoning = [part.text for part in message.parts if isinstance(part, ReasoningPart)]
    if reasoning:
        out["reasoning_content"] = "\n".join(reasoning)
    calls = [part for part in message.parts if isinstance(part, CallPart)]
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
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def chat_tools(conversation: Conversation) -> list[dict[str, object]]:
    """Tools for the prompt's head, in OpenAI's form; none when the model must not call any."""
    if conversation.tool_choice.mode == "none":
        return []
    return [_tool(tool) for tool in conversation.tools if not tool.deferred]


@lru_cache(maxsize=4096)
def _tool(tool: Tool) -> dict[str, object]:
    function: dict[str, Any] = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    function["parameters"] = json.loads(tool.schema)
    return canonical_tool({"type": "function", "function": function})
