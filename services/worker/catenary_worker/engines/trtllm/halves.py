"""Prefill on one TensorRT-LLM, decode on another: `DisaggregatedParams` to bytes and back.

Rule: what the prefill engine said is told to the decode engine as it was said, as far as this version knows the name;
the blocks themselves go from GPU to GPU, to the address inside `opaque_state`.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from catenary_protocols.errors import RequestError

from catenary_worker.engines.base import Half
from catenary_worker.engines.trtllm.api import Api, fields_of, known

HALVES: Mapping[str, frozenset[Half]] = {
    "full": frozenset({"whole"}),
    "prefill": frozenset({"prefill"}),
    "decode": frozenset({"decode", "whole"}),
}
"""What a role takes; a decoding engine can do a whole turn where nobody prefills."""


class Handoff(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Fields of `DisaggregatedParams` that a prefill sets, in any version."""

    first_gen_tokens: list[int]
    opaque_state: bytes
    ctx_request_id: int | None = None
    draft_tokens: list[int] | None = None
    disagg_request_id: int | None = None
    ctx_dp_rank: int | None = None
    ctx_info_endpoint: str | list[str] | None = None


def prefill_of(api: Api) -> Any:
    """Asks for a prompt to be computed, and no more."""
    return api.llmapi.DisaggregatedParams(request_type="context_only")


def packed(params: Any) -> bytes:
    """What a prefill ended with. Raises `msgspec.ValidationError` for what has another shape."""
    said = {name: getattr(params, name, None) for name in Handoff.__struct_fields__}
    return msgspec.json.encode(msgspec.convert(said, Handoff))


def decode_of(handoff: bytes, api: Api) -> Any:
    """Asks to go on from there. Raises `RequestError` for what is no handoff."""
    try:
        said = msgspec.json.decode(handoff, type=Handoff)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise RequestError(f"this is no handoff: {error}", code="invalid_value", field="handoff") from error
    kind = api.llmapi.DisaggregatedParams
    given = {name: value for name, value in msgspec.structs.asdict(said).items() if value is not None}
    return kind(request_type="generation_only", **known(given, fields_of(kind)))
