"""Request bytes → draft."""

import sys
from array import array
from collections.abc import Sequence

import msgspec

from catenary_protocols.apis.api import Draft
from catenary_protocols.apis.completions.request import CompletionsRequest
from catenary_protocols.apis.nvext import NvExt, unknown_keys
from catenary_protocols.apis.reading import read, wrong
from catenary_protocols.apis.sampling import sampling_of
from catenary_protocols.conversation import Conversation

_request = msgspec.json.Decoder(CompletionsRequest)
DEFAULT_TOKENS = 16
"""What this API's clients expect when they name no limit."""


def read_completions(body: bytes) -> Draft:
    """The draft of a Completions request; raises `RequestError`."""
    request = read(_request, body)
    if not request.model:
        raise wrong("model", "must name a model")
    for name in ("suffix", "echo"):
        if getattr(request, name):
            raise wrong(name, "is not supported", code="unsupported")
    if (request.best_of or 1) > (request.n or 1):
        raise wrong("best_of", "answers are not ranked here", code="unsupported")
    nvext = request.nvext or NvExt()
    return Draft(
        model=request.model,
        conversation=prompt_of(request.prompt),
        sampling=sampling_of(request, request.max_tokens or DEFAULT_TOKENS, request.logprobs),
        hints=nvext.hints,
        within=nvext.within,
        session_final=bool(nvext.session_final),
        passed_over=unknown_keys(body),
        stream=bool(request.stream),
        choices=request.n or 1,
        include_usage=bool(request.stream_options and request.stream_options.include_usage),
        session=request.prompt_cache_key or "",
        user=request.user or "",
    )


def prompt_of(prompt: str | Sequence[str | list[int] | int]) -> Conversation:
    """One prompt, as text or as token ids; raises `RequestError`."""
    if not isinstance(prompt, str):
        only = prompt[0] if len(prompt) == 1 else None
        return prompt_of(only) if isinstance(only, str) else _ids(only if isinstance(only, list) else prompt)
    if not prompt:
        raise wrong("prompt", "is empty")
    return Conversation(messages=(), text=prompt)


def _ids(prompt: Sequence[str | list[int] | int]) -> Conversation:
    ids = [one for one in prompt if isinstance(one, int)]
    if not ids or len(ids) != len(prompt):
        raise wrong("prompt", "must be one prompt: a text, or a list of token ids", code="unsupported")
    return Conversation(messages=(), ids=packed(ids))


def packed(ids: Sequence[int]) -> bytes:
    """Token ids as they travel: little-endian u32."""
    out = array("I", ids)
    if sys.byteorder == "big":
        out.byteswap()
    return out.tobytes()


def unpacked(ids: bytes) -> list[int]:
    """The ids that were so packed."""
    out = array("I", ids)
    if sys.byteorder == "big":
        out.byteswap()
    return out.tolist()
