"""Messages in an order that a template takes: merged, demoted or set apart, none left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from catenary_tokenizers.traits import Traits

__all__ = ["order_messages"]

Message = dict[str, Any]

_JOIN = "\n\n"


def order_messages(messages: Sequence[Message], traits: Traits) -> list[Message]:
    """Shaped messages as the template takes them; unchanged where it takes everything."""
    ordered: list[Message] = []
    leading = True
    told = messages if traits.later_text else _later_text_apart(messages, traits)
    for given in _single_calls(told, traits) if traits.single_calls else told:
        role = given["role"]
        if role == "system" and (traits.system == "never" or (traits.system == "first" and not leading)):
            role = "user"
        leading = leading and role == "system"
        if role not in {"system", "user"} and traits.opens_with_user and all(m["role"] == "system" for m in ordered):
            ordered.append(_empty("user", traits))
        last = ordered[-1]["role"] if ordered else ""
        if traits.answers_results and role == "user" and last == "tool":
            ordered.append(_empty("assistant", traits))
        message = given if role == given["role"] else {**given, "role": role}
        if last == role and _are_one(ordered[-1], message, traits, leading=leading):
            ordered[-1] = _merged(ordered[-1], message)
        else:
            ordered.append(message)
    if traits.needs_user and all(message["role"] != "user" for message in ordered):
        first = next((at for at, message in enumerate(ordered) if message["role"] != "system"), len(ordered))
        ordered.insert(first, _empty("user", traits))
    return ordered


def _empty(role: str, traits: Traits) -> Message:
    return {"role": role, "content": [{"type": "text", "text": ""}] if traits.parts == "list" else ""}


def _later_text_apart(messages: Iterable[Message], traits: Traits) -> Iterable[Message]:
    """Calls after the first ones without text, which stands in a message before them."""
    called = False
    for message in messages:
        calls = message.get("tool_calls")
        if called and calls and message["content"]:
            yield {key: value for key, value in message.items() if key != "tool_calls"}
            yield {**_empty("assistant", traits), "tool_calls": calls}
        else:
            yield message
        called = called or bool(calls)


def _single_calls(messages: Iterable[Message], traits: Traits) -> Iterable[Message]:
    """Each call in a message of its own, its results right after it."""
    groups = [list(group) for _, group in groupby(messages, _kind)]
    for before, group, after in zip([[], *groups], groups, [*groups[1:], []], strict=False):
        if _kind(group[0]) == "calls":
            for message in group:
                yield from _set_apart(message, after, traits)
        else:
            known = {call["id"] for message in before for call in message.get("tool_calls", ())}
            yield from (message for message in group if message.get("tool_call_id") not in known)


def _kind(message: Message) -> str:
    return "calls" if message.get("tool_calls") else str(message["role"])


def _set_apart(message: Message, results: Sequence[Message], traits: Traits) -> Iterable[Message]:
    for n, call in enumerate(message["tool_calls"]):
        yield {**(message if n == 0 else _empty("assistant", traits)), "tool_calls": [call]}
        yield from (result for result in results if result.get("tool_call_id") == call["id"])


def _are_one(first: Message, second: Message, traits: Traits, *, leading: bool) -> bool:
    """Whether two messages of a role in a row have to be one."""
    if first["role"] == "system":
        return leading and (traits.systems_merge or traits.system == "first")
    if traits.single_calls and first.get("tool_calls") and second.get("tool_calls"):
        return False
    return traits.alternates and first["role"] in {"user", "assistant"}


def _merged(first: Message, second: Message) -> Message:
    """One message for two of a role."""
    merged = {**first, **second}
    for key in ("content", "reasoning_content", "thinking", "tool_calls"):
        left, right = first.get(key), second.get(key)
        if left and right:
            merged[key] = (
                _JOIN.join([left, right])
                if isinstance(left, str) and isinstance(right, str)
                else [*_list(left), *_list(right)]
            )
        elif left or right:
            merged[key] = left or right
    return merged


def _list(content: object) -> Sequence[object]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)  # type: ignore[call-overload]
