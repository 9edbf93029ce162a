"""Answers in which thoughts and calls alternate, in as many messages as a template needs to keep each in its place.

A message has one thought, then its calls. So such an answer comes as a run of messages, each but the last with calls
and no result between them; a template that would lose a thought of such a run gets it as one message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from catenary_tokenizers.traits import Traits

__all__ = ["CLOSE_THINK", "OPEN_THINK", "answers_as_taken", "calls_of", "thought_of"]

Message = Mapping[str, Any]

OPEN_THINK, CLOSE_THINK = "<think>", "</think>"
_LEAD = 32  # characters in which reasoning that a client sent back as text begins


def answers_as_taken(messages: Iterable[Message], traits: Traits) -> Iterator[tuple[int, Message]]:
    """Messages with the place each began at; runs joined as the template's `interleaved` says."""
    run: list[Message] = []
    start = 0
    for at, message in enumerate(messages):
        if run and not (_goes_on(run[-1], message) and _is_joined(message, traits)):
            yield start, _joined(run, traits)
            run = []
        start = start if run else at
        run.append(message)
    if run:
        yield start, _joined(run, traits)


def calls_of(message: Message) -> Sequence[Mapping[str, Any]]:
    """A message's calls; none where it has no list of them."""
    calls = message.get("tool_calls")
    return calls if isinstance(calls, list | tuple) else ()


def thought_of(message: Message) -> tuple[str, object]:
    """Reasoning and content; reasoning that a client sent back inside the text is taken out of it."""
    content = message.get("content")
    if reasoning := message.get("reasoning_content"):
        return "\n".join(map(str, filter(None, _listed(reasoning)))), content
    if isinstance(content, str) and OPEN_THINK in content[:_LEAD] and content.lstrip().startswith(OPEN_THINK):
        thought, closed, said = content.lstrip().removeprefix(OPEN_THINK).partition(CLOSE_THINK)
        if not closed:
            return "", content
        return thought.strip("\n"), said.lstrip("\n")
    return "", content


def _goes_on(before: Message, message: Message) -> bool:
    return message.get("role") == before.get("role") == "assistant" and bool(calls_of(before))


def _is_joined(message: Message, traits: Traits) -> bool:
    return traits.interleaved != "split" or (not traits.ends_early and not calls_of(message))


def _joined(run: Sequence[Message], traits: Traits) -> Message:
    if len(run) == 1:
        return run[0]
    thoughts, contents = zip(*map(thought_of, run), strict=True)
    reasoning: str | list[str] = "\n".join(filter(None, thoughts))
    if reasoning and traits.interleaved == "list":
        reasoning = []
        for message, thought in zip(run, thoughts, strict=True):
            reasoning += [thought, *[""] * (len(calls_of(message)) - 1)]
    content: Any = [part for one in contents if one for part in _listed(_part(one))]
    if not any(one and not isinstance(one, str) for one in contents):
        content = "".join(one for one in contents if one)
    calls = [call for message in run for call in calls_of(message)]
    return {**run[0], "content": content, "reasoning_content": reasoning, "tool_calls": calls}


def _listed(value: object) -> Sequence[object]:
    return value if isinstance(value, list | tuple) else [value]


def _part(content: object) -> object:
    return {"type": "text", "text": content} if isinstance(content, str) else content
