"""TensorRT-LLM's KV events and statistics as it serialises them. Fields we do not use are left out."""

from array import array
from typing import Annotated, Any

import msgspec

Hash = int | Annotated[str, msgspec.Meta(pattern="^[0-9a-fA-F]+$")]
"""The engine's own name of a block: 64 bits, or hex where the newer cache manager runs."""


class Block(msgspec.Struct, frozen=True):
    """One block; the last of an event may be partial.

    Attributes:
        tokens: see `plain_ids`, which reads them: a prompt has too many for a struct each.
    """

    block_hash: Hash
    tokens: list[object]
    mm_keys: list[object] | None = None
    cache_salt: int | str | None = None


class CreatedData(msgspec.Struct, frozen=True, tag="created"):
    """The pools of one attention window."""


class StoredData(msgspec.Struct, frozen=True, tag="stored"):
    """Blocks that can be reused from now on, each the child of the one before."""

    blocks: list[Block]
    parent_hash: Hash | None = None


class RemovedData(msgspec.Struct, frozen=True, tag="removed"):
    """Blocks held in no tier any more."""

    block_hashes: list[Hash]


class UpdatedData(msgspec.Struct, frozen=True, tag="updated"):
    """A block moved to another tier or priority; it is held all the same."""

    block_hash: Hash


class Event(msgspec.Struct, frozen=True):
    """`event_id` counts per rank, over all windows."""

    event_id: int
    data: CreatedData | StoredData | RemovedData | UpdatedData
    window_size: int | None = None
    attention_dp_rank: int | None = None
    layer_group_id: int | None = None


class KvCacheStats(msgspec.Struct, frozen=True, rename="camel"):
    """Blocks; used ones are held by running turns."""

    max_num_blocks: int = 0
    used_num_blocks: int = 0
    tokens_per_block: int = 0


class BatchingStats(msgspec.Struct, frozen=True, rename="camel"):
    """What one iteration computed."""

    num_ctx_tokens: int = 0


class IterationStats(msgspec.Struct, frozen=True):
    """One iteration."""

    latency_ms: float = msgspec.field(default=0.0, name="iterLatencyMS")
    queued: int = msgspec.field(default=0, name="numQueuedRequests")
    cache: KvCacheStats | None = msgspec.field(default=None, name="kvCacheStats")
    batch: BatchingStats | None = msgspec.field(default=None, name="inflightBatchingStats")


def plain_ids(tokens: list[Any]) -> "array[int] | None":
    """Ids of `{"token_id": …, "token_extra_id": …}`; None if one is no id of a text.

    Where an image's features stand, `token_id` is a digest in hex, or `token_extra_id` is not 0.
    """
    try:
        ids = array("I", [token["token_id"] for token in tokens])
        extra = any([token.get("token_extra_id") for token in tokens])  # noqa: C419 - a list is much faster
    except (AttributeError, KeyError, OverflowError, TypeError):
        return None
    return None if extra else ids


def read_stats(raw: object) -> IterationStats | None:
    """None for what does not look like statistics: they are worth no error."""
    try:
        return msgspec.convert(raw, IterationStats)
    except msgspec.ValidationError:
        return None
