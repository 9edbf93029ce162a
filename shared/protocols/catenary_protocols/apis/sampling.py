"""How tokens are chosen and when to stop, as the OpenAI APIs say it."""

from typing import Annotated

from msgspec import Meta

from catenary_protocols.apis.nvext import Tokens
from catenary_protocols.apis.reading import wrong
from catenary_protocols.conversation import Sampling
from catenary_protocols.wire import Wire

Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Alternatives = Annotated[int, Meta(ge=0, le=20)]
TokenId = Annotated[int, Meta(ge=0, le=2**32 - 1)]
StopTokens = Annotated[list[TokenId], Meta(max_length=64)]
StopString = Annotated[str, Meta(min_length=1, max_length=1024)]


class SamplingFields(Wire, frozen=True):
    """Fields that requests have in common."""

    max_tokens: Tokens | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: Int64 | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=64)] | None = None
    stop_token_ids: StopTokens | None = None
    ignore_eos: bool | None = None
    logit_bias: dict[TokenId, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    n: Annotated[int, Meta(ge=1, le=16)] | None = None


def sampling_of(said: SamplingFields, limit: int | None, logprobs: int | None = None) -> Sampling:
    """The sampling, of at most `limit` tokens; raises `RequestError`. `logprobs` as in `Sampling`."""
    least = said.min_tokens or 0
    if limit is not None and least > limit:
        raise wrong("min_tokens", f"must not be above the limit of {limit} tokens")
    stop = said.stop or ()
    return Sampling(
        max_tokens=limit,
        min_tokens=least,
        temperature=said.temperature,
        top_p=said.top_p,
        top_k=said.top_k if said.top_k and said.top_k > 0 else None,
        min_p=said.min_p,
        seed=said.seed,
        presence_penalty=said.presence_penalty or 0.0,
        frequency_penalty=said.frequency_penalty or 0.0,
        repetition_penalty=said.repetition_penalty or 1.0,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        stop_token_ids=tuple(said.stop_token_ids or ()),
        ignore_eos=bool(said.ignore_eos),
        logprobs=logprobs,
        logit_bias=said.logit_bias or {},
    )
