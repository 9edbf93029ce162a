"""The request as it comes. What is not here is ignored."""

from typing import Annotated

from msgspec import Meta

from catenary_protocols.apis.chat.request import StreamOptions
from catenary_protocols.apis.nvext import NvExt
from catenary_protocols.apis.sampling import Alternatives, SamplingFields, TokenId

Ids = Annotated[list[TokenId], Meta(min_length=1)]


class CompletionsRequest(SamplingFields, frozen=True, kw_only=True):
    """Body of `POST /v1/completions`."""

    model: str
    prompt: str | list[str | Ids | TokenId]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    suffix: str | None = None
    echo: bool | None = None
    logprobs: Alternatives | None = None
    best_of: int | None = None
    nvext: NvExt | None = None
    prompt_cache_key: str | None = None
    user: str | None = None
