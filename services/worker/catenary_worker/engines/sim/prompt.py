"""What a prompt says, read from its ids alone, whatever the model's chat template.

Rule: only control tokens make messages; text that merely spells one is content. A control token names a role
(`<|user|>`, `[INST]`, `<tool_response>`), opens a message whose first word is the role (`<|im_start|>user`), ends one
(`<|im_end|>`, `[/INST]`), or is no concern of ours.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Literal

from catenary_tokenizers import ControlToken

from catenary_worker.engines.sim.offers import Offer, read_offers

Role = Literal["system", "user", "assistant", "result"]

_ROLES: dict[str, Role] = {
    **dict.fromkeys(("system", "developer", "sys"), "system"),
    **dict.fromkeys(("user", "human", "inst"), "user"),
    **dict.fromkeys(("assistant", "model", "chatbot", "think", "thinking", "call", "calls"), "assistant"),
    **dict.fromkeys(("tool", "tools", "observation", "ipython", "environment", "function", "functions"), "result"),
    **dict.fromkeys(("response", "responses", "result", "results", "output", "outputs"), "result"),
}
_BEFORE_ALL_OTHERS = ("call", "calls", "response", "responses", "result", "results", "output", "outputs")
_OPENS = {"start", "begin"}
_CLOSES = {"end", "eot", "eom", "eos", "return"}
_HEADERS = {"channel", "constrain", "recipient"}
_PARTS_OF_CALLS = {"sep", "arg", "argument", "key", "value"}
_WORDS = re.compile(r"[a-z]+")
_NAME = re.compile(r"[^\S\n]*([A-Za-z_]+)[^\n]*\n?")
_SPELLED_RESULT = re.compile(r"<tool_response>(.*?)</tool_response>", re.DOTALL)
_CONTEXT = re.compile(r"^<([A-Za-z][\w-]*)>.*?</\1>[ \t]*$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Message:
    """A run of content under one role."""

    role: Role
    text: str


@dataclass(frozen=True, slots=True)
class PromptView:
    """What the speaker needs to know.

    Attributes:
        tools: those the prompt offers.
        user: the user's last words, without what harnesses put beside them between tags on lines of their own.
        results: tool results, if they are what came last.
        tail: the end of the prompt, control tokens spelled out: what the template left behind.
    """

    tools: tuple[Offer, ...]
    user: str
    results: tuple[str, ...]
    tail: str


def read_prompt(parts: Sequence[str | ControlToken]) -> PromptView:
    """Understand a prompt given as text and control tokens in order."""
    messages = [message for message in _messages(parts) if message.text.strip()]
    asked = [message for message in messages if message.role in {"user", "result"}]
    results = []
    for message in reversed(asked):
        if message.role != "result":
            break
        results.append(message.text.strip())
    user = next((_own_words(message.text) for message in reversed(asked) if message.role == "user"), "")
    tail = "".join(part if isinstance(part, str) else part.text for part in parts[-8:])
    return PromptView(_tools(messages), user, tuple(reversed(results)), tail)


def _own_words(text: str) -> str:
    return _CONTEXT.sub("", text).strip() or text.strip()


def _tools(messages: Sequence[Message]) -> tuple[Offer, ...]:
    """Templates list tools in the system message, or failing that before the user's words."""
    for role in ("system", "result", "user"):
        found = read_offers("\n".join(message.text for message in messages if message.role == role))
        if found:
            return found
    return ()


def _messages(parts: Sequence[str | ControlToken]) -> Iterator[Message]:
    role: Role = "system"
    naming = header = asked = False
    for part, following in pairwise((*parts, "")):
        if isinstance(part, ControlToken):
            words = _words(part.text)
            header = bool(words & _HEADERS)
            if "/" in part.text or words & _CLOSES:
                # What follows an end is blank or the model's, but "<|end_header_id|>" only ends the name of a role.
                role, naming = (role if "header" in words else "assistant"), False
            elif named := _role_of(words):
                role, naming = named, False
            elif words & _OPENS:
                naming = True
            continue
        text = part
        if isinstance(following, ControlToken) and "middle" in _words(following.text):
            # "<|im_system|>name<|im_middle|>": whoever has a system's rank and speaks after the user is a tool.
            role = _ROLES.get(text.strip(), "result" if asked and role == "system" else role)
            continue
        if naming:
            role, text = _take_name(role, part)
            naming = False
        asked = asked or role == "user"
        if not header and role != "assistant":  # what the model said itself is no concern of the speaker's
            yield from _spelled(Message(role, text))


@lru_cache(maxsize=1024)
def _words(control: str) -> frozenset[str]:
    return frozenset(_WORDS.findall(control.lower()))


@lru_cache(maxsize=1024)
def _role_of(words: frozenset[str]) -> Role | None:
    if words & _PARTS_OF_CALLS:
        return None
    for word in (*_BEFORE_ALL_OTHERS, *_ROLES):
        if word in words:
            return _ROLES[word]
    if "available" in words:
        return "system"
    return None


def _take_name(role: Role, text: str) -> tuple[Role, str]:
    name = _NAME.match(text)
    if name is None or name[1].lower() not in _ROLES:
        return role, text
    return _ROLES[name[1].lower()], text[name.end() :]


def _spelled(message: Message) -> Iterator[Message]:
    """Models without a control token for results get them spelled out in a user message."""
    if message.role == "user" and (results := _SPELLED_RESULT.findall(message.text)):
        rest = _SPELLED_RESULT.sub("", message.text)
        yield Message("user", rest)
        yield from (Message("result", result) for result in results)
    else:
        yield message
