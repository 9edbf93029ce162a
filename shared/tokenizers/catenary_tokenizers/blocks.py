"""Sequence hashes of KV blocks: one function for the tokenizer, the worker and the indexer.

A block's hash covers its tokens and, as the seed, the hash of the block before it; the first block's seed covers salt
and LoRA adapter. Two prompts share a hash exactly where they share every token up to that block's end, under one salt
and adapter.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from xxhash import xxh3_64_intdigest as _digest

from catenary_tokenizers.ids import TOKEN_BYTES, common_tokens

__all__ = ["HASH_BYTES", "block_hashes", "extend_hashes", "images_by_block", "root_hash"]

HASH_BYTES = 8


def root_hash(*, salt: str = "", lora: str = "") -> int:
    """The parent of a prompt's first block, a `u64`; 0 without salt and adapter."""
    if not salt and not lora:
        return 0
    return _digest(f"{len(salt)}:{salt}{lora}".encode("utf-8", "surrogatepass"))


def block_hashes(
    ids: bytes,
    block_size: int,
    *,
    salt: str = "",
    lora: str = "",
    images: Sequence[Sequence[str]] = (),
    parent: int | None = None,
) -> bytes:
    """Chained hashes of the whole blocks of `ids`.

    Args:
        ids: tokens, little-endian `u32`; a last block that is not full has no hash.
        block_size: tokens in a block, at least 1.
        salt: cache salt of the tenant; with `lora` it decides the first seed.
        lora: name of the adapter.
        images: ids of the images whose placeholder tokens stand in each block; blocks past its end have none.
        parent: hash of the block before `ids`, to go on from a known prefix; salt and adapter are in it already.

    Returns:
        Little-endian `u64`, eight bytes a block.
    """
    if block_size < 1:
        raise ValueError(f"block_size must be at least 1, not {block_size}")
    seed = root_hash(salt=salt, lora=lora) if parent is None else parent
    step = block_size * TOKEN_BYTES
    tokens = memoryview(ids)
    hashes = bytearray()
    for block, end in enumerate(range(step, len(ids) + 1, step)):
        seed = _digest(tokens[end - step : end], seed)
        if images and block < len(images) and images[block]:
            seed = _digest("\0".join(images[block]).encode(), seed)
        hashes += seed.to_bytes(HASH_BYTES, "little")
    return bytes(hashes)


def images_by_block(images: Sequence[str], at: Sequence[int], block_size: int) -> list[tuple[str, ...]]:
    """For `block_hashes`: what stands in each block up to the last image.

    Args:
        images: URLs, `data:` ones too.
        at: index of each one's mark among the tokens.
        block_size: tokens in a block.
    """
    blocks: list[tuple[str, ...]] = [()] * (max(at, default=-1) // block_size + 1)
    for url, place in zip(images, at, strict=True):
        blocks[place // block_size] += (blake2b(url.encode(), digest_size=16).hexdigest(),)
    return blocks


def extend_hashes(known: bytes, hashes: bytes, ids: bytes, block_size: int, *, salt: str = "", lora: str = "") -> bytes:
    """`block_hashes` of a prompt that mostly goes on from a known one: only the blocks that differ are hashed.

    Args:
        known: tokens of an earlier prompt, under the same block size, salt and adapter.
        hashes: its hashes.
        ids: tokens of the prompt.
        block_size: tokens in a block, at least 1.
        salt: cache salt of the tenant.
        lora: name of the adapter.
    """
    shared = min(common_tokens(known, ids) // block_size, len(hashes) // HASH_BYTES)
    if not shared:
        return block_hashes(ids, block_size, salt=salt, lora=lora)
    prefix = hashes[: shared * HASH_BYTES]
    parent = int.from_bytes(prefix[-HASH_BYTES:], "little")
    return prefix + block_hashes(ids[shared * block_size * TOKEN_BYTES :], block_size, parent=parent)
