"""One turn inside a paged engine: its ids, its blocks, how far it is computed.

Rule: `computed` ids have KV; the rest are *pending*. A turn samples in the step in which nothing is pending any more,
and what it samples is pending in the next. So prefill, decode and the way back after a preemption are one thing.
"""

from array import array

from catenary_tokenizers.blocks import block_hashes, images_by_block, root_hash

from catenary_worker.engines.base import EngineTurn


class Sequence:
    """State of one attempt; the scheduler and the core write it, executors read it.

    Attributes:
        ids: prompt and generated ids; grows.
        end: length of `ids` at which the turn ends with finish "length".
        stops: ids that end it.
        hashes: of the full blocks of `ids` that are known so far.
        blocks: block indexes, one for each `block_size` ids begun.
        sealed: leading blocks that are full and registered.
        seal_at: `computed` at which the next block is full.
        scheduled: ids computed in this step.
        prefilling: has not sampled since it was (last) admitted.
        cached_tokens: prompt ids found in the cache when it was first admitted.
    """

    __slots__ = (
        "_images",
        "admitted",
        "arrival",
        "attempt",
        "block_size",
        "blocks",
        "cached_tokens",
        "computed",
        "end",
        "hashes",
        "ids",
        "prefilling",
        "prompt_length",
        "queued_at",
        "rank",
        "running",
        "scheduled",
        "seal_at",
        "sealed",
        "stops",
        "told",
        "turn",
        "turn_id",
    )

    def __init__(
        self, turn: EngineTurn, *, block_size: int, context: int, eos: frozenset[int], arrival: int, now: float
    ) -> None:
        self.turn = turn
        self.turn_id = turn.turn_id
        self.attempt = turn.attempt
        self.block_size = block_size
        self.ids = array("I", turn.prompt)
        self.ids.extend(turn.generated)
        self.prompt_length = len(turn.prompt)
        self.end = context if turn.max_tokens is None else min(context, self.prompt_length + turn.max_tokens)
        self.stops = frozenset(turn.stop_token_ids) | (frozenset() if turn.ignore_eos else eos)
        self._images = _images_of(turn, block_size)
        self.hashes = array("Q", turn.hashes)
        self._hash(len(self.ids) // block_size)
        self.arrival = arrival
        self.rank = (-turn.priority, arrival)
        self.queued_at = now
        self.cached_tokens = 0
        self.admitted = False
        self.told = False
        self.running = False
        self.scheduled = 0
        self.restart([], 0)

    def __lt__(self, other: "Sequence") -> bool:
        """Whether it goes before the other: priority, then arrival."""
        return self.rank < other.rank

    @property
    def pending(self) -> int:
        """Ids without KV."""
        return len(self.ids) - self.computed

    @property
    def reusable(self) -> int:
        """Leading blocks that may come from the cache: sampling needs the last id computed anew."""
        return (len(self.ids) - 1) // self.block_size

    def restart(self, blocks: list[int], cached_blocks: int) -> None:
        """(Re)start with these blocks, the first `cached_blocks` of which hold KV."""
        self.blocks = blocks
        self.sealed = cached_blocks
        self.computed = cached_blocks * self.block_size
        self.seal_at = self.computed + self.block_size
        self.prefilling = True

    def hash_of(self, index: int) -> int:
        """Hash of the full block at this place; made when first asked for."""
        if len(self.hashes) <= index:
            self._hash(index + 1)
        return self.hashes[index]

    def _hash(self, blocks: int) -> None:
        """Know the hashes of so many full blocks."""
        at, size = len(self.hashes), self.block_size
        ids, images = self.ids[at * size : blocks * size].tobytes(), self._images[at:blocks]
        parent = self.hashes[-1] if at else root_hash(salt=self.turn.salt)
        self.hashes.frombytes(block_hashes(ids, size, images=images, parent=parent))

    def tokens_of(self, index: int) -> "array[int]":
        """Ids of the block at this place."""
        return self.ids[index * self.block_size : (index + 1) * self.block_size]


def _images_of(turn: EngineTurn, block_size: int) -> list[tuple[str, ...]]:
    """The images that stand in each block of the prompt."""
    images, places = turn.options.get("images"), turn.options.get("image_at")
    if not isinstance(images, tuple) or not isinstance(places, tuple):
        return []
    return images_by_block(images, places, block_size)
