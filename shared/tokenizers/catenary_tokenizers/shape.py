"""Conversations in the form a template wants: what it would refuse or lose is merged, demoted or written another way.

A template that takes a conversation as it is gets it as it is. Each trait below was found by rendering (`probe.py`),
none is known by a model's name; the shape of a message depends on the messages before it alone, so that a prompt
stays a prefix of the next one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from catenary_tokenizers.answers import CLOSE_THINK, OPEN_THINK, answers_as_taken, thought_of
from catenary_tokenizers.errors import PromptError
from catenary_tokenizers.order import order_messages
from catenary_tokenizers.safety import Shield
from catenary_tokenizers.traits import Traits

__all__ = ["call_arguments", "shape_messages", "shape_tools"]

Message = dict[str, Any]

_SHAPED = frozenset({"role", "content", "reasoning_content", "thinking", "tool_calls", "tool_call_id"})


def shape_tools(tools: Iterable[Mapping[str, object]], traits: Traits) -> list[Mapping[str, object]]:
    """Tools as the template wants them."""
    if not traits.whole_tools:
        return list(tools)
    return [_whole_tool(tool) for tool in tools]


def shape_messages(messages: Iterable[Mapping[str, object]], traits: Traits, shield: Shield) -> list[Message]:
    """Messages as the template wants them, every caller's text shielded.

    Raises:
        PromptError: a message that is none, or content the model cannot take.
    """
    ids = _CallIds(traits.call_names)
    shaped: list[Message] = []
    for at, message in answers_as_taken(messages, traits):
        try:
            shaped.append(_message(message, traits, shield, ids))
        except KeyError as error:
            raise PromptError(f"messages[{at}]: {error} is missing") from error
        except (TypeError, AttributeError) as error:
            raise PromptError(f"messages[{at}]: {error}") from error
    return order_messages(shaped, traits)


def _message(message: Mapping[str, object], traits: Traits, shield: Shield, ids: _CallIds) -> Message:
    match message["role"]:
        case "assistant":
            return _assistant(message, traits, shield, ids)
        case "tool":
            return _tool_result(message, traits, shield, ids)
        case "user" | "system" as role:
            content = _content(message.get("content"), traits, shield)
            return {**_others(message, shield), "role": role, "content": content}
        case "developer":
            return _message({**message, "role": "system"}, traits, shield, ids)
        case other:  # templates print the role as it is
            raise TypeError(f"a role {other!r} does not exist")


def call_arguments(messages: Iterable[Mapping[str, object]]) -> tuple[object, ...]:
    """Arguments of all calls of a conversation, as they were given."""
    calls: list[Any] = [call for message in messages if message.get("tool_calls") for call in message["tool_calls"]]  # type: ignore[attr-defined]
    return tuple(call["function"].get("arguments") for call in calls)


class _CallIds:
    """Ids by position, since clients rewrite them: they never make a prompt differ."""

    def __init__(self, named: bool) -> None:
        self._named = named
        self._count = 0
        self._known: dict[str, tuple[str, str]] = {}

    def call(self, given: str, name: str) -> str:
        index = f"functions.{name}:{self._count}" if self._named else f"{self._count:09d}"
        self._count += 1
        self._known[given] = (index, name)
        return index

    def result(self, given: str, name: str) -> tuple[str, str] | None:
        """The id and the name of the call that a result answers; None if no call was heard of."""
        if given not in self._known:
            return None
        index, called = self._known[given]
        return index, name or called


def _assistant(message: Mapping[str, object], traits: Traits, shield: Shield, ids: _CallIds) -> Message:
    reasoning, content = thought_of(message)
    if traits.one_text and reasoning and content and isinstance(content, str) and message.get("tool_calls"):
        reasoning, content = f"{reasoning}\n\n{content}", ""
        message = {**message, "reasoning_content": reasoning}
    shaped: Message = {**_others(message, shield), "role": "assistant", "content": _content(content, traits, shield)}
    if reasoning and traits.reasoning == "field":
        listed = message.get("reasoning_content")
        given = listed if traits.interleaved == "list" and isinstance(listed, list) else reasoning
        shaped["reasoning_content"] = shaped["thinking"] = shield.shield_structure(given)
    elif reasoning and traits.reasoning == "inline":
        thought = f"{OPEN_THINK}\n{shield.shield(reasoning)}\n{CLOSE_THINK}\n\n"
        said = shaped["content"]
        shaped["content"] = thought + said if isinstance(said, str) else [{"type": "text", "text": thought}, *said]
    if calls := message.get("tool_calls"):
        shaped["tool_calls"] = [_call(call, traits, shield, ids) for call in _sequence(calls, "tool_calls")]
    return shaped


def _call(call: Mapping[str, Any], traits: Traits, shield: Shield, ids: _CallIds) -> Message:
    function = call["function"]
    name = str(function["name"])
    arguments = _arguments(function.get("arguments"), traits)
    return {
        "id": shield.shield(ids.call(str(call.get("id", "")), name)),
        "type": "function",
        "function": {
            "name": shield.shield(name),
            "arguments": shield.shield_arguments(arguments),
        },
    }


def _arguments(given: object, traits: Traits) -> object:
    parsed = given
    if isinstance(given, str):
        try:
            parsed = json.loads(given)
        except (ValueError, RecursionError):
            parsed = None
    if not isinstance(parsed, Mapping):
        if not given:
            return {} if traits.arguments == "object" else "{}"
        return given if traits.arguments == "string" or traits.loose_arguments else {"arguments": given}
    if traits.arguments == "object":
        return parsed
    return given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)


def _tool_result(message: Mapping[str, object], traits: Traits, shield: Shield, ids: _CallIds) -> Message:
    given, name = str(message.get("tool_call_id", "")), str(message.get("name") or "")
    content = _content(message.get("content"), traits, shield)
    call = ids.result(given, name)
    if not traits.tool_results or (call is None and not traits.lone_results):
        return {"role": "user", "content": content}
    index, name = call or (ids.call(given, name), name)
    shaped: Message = {"role": "tool", "content": content, "tool_call_id": shield.shield(index)}
    return {**shaped, "name": shield.shield(name)} if name else shaped


def _content(content: object, traits: Traits, shield: Shield) -> object:
    if content is None:
        content = ""
    if isinstance(content, str):
        text = shield.shield(content)
        return [{"type": "text", "text": text}] if traits.parts == "list" else text
    parts = _sequence(content, "content")
    if traits.parts == "text":
        return "\n".join(_text_part(part, shield) for part in parts)
    return [
        {key: value if key == "type" else shield.shield_structure(value) for key, value in part.items()}
        for part in parts
    ]


def _text_part(part: Mapping[str, Any], shield: Shield) -> str:
    if part.get("type") != "text":
        raise PromptError(f"content: this model takes text only, not {part.get('type')!r} parts")
    return shield.shield(str(part["text"]))


def _others(message: Mapping[str, object], shield: Shield) -> Message:
    """Fields that only some templates know (`name`, `task`, …)."""
    if message.keys() <= _SHAPED:
        return {}
    return {key: shield.shield_structure(value) for key, value in message.items() if key not in _SHAPED}


def _sequence(value: object, field: str) -> Sequence[Mapping[str, Any]]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise PromptError(f"{field}: a list is wanted, not {type(value).__name__}")
    return value


def _whole_tool(tool: Mapping[str, object]) -> Mapping[str, object]:
    function = tool.get("function")
    if not isinstance(function, Mapping):
        return tool
    return {**tool, "function": {"description": "", "parameters": {"type": "object", "properties": {}}, **function}}
