"""The answer: a whole completion, and the chunks of a stream, which look the same."""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from catenary_protocols.apis.chat.answer import ChatUsage

Reason = Literal["stop", "length", "content_filter"]


class CompletionLogprobs(Struct, frozen=True, kw_only=True):
    """How likely tokens were: lists with an entry for each. `text_offset` counts characters of the choice's text."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(Struct, frozen=True, kw_only=True):
    """One text, or more of it."""

    index: int
    text: str
    finish_reason: Reason | None = None
    logprobs: CompletionLogprobs | None = None


class Completion(Struct, frozen=True, kw_only=True, tag_field="object", tag="text_completion"):
    """Body of an answer, and an event of a stream. The usage chunk has no choices."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: ChatUsage | UnsetType = UNSET
