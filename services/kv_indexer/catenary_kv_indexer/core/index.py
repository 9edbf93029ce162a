"""Which holder holds which block.

The rule: every holder's set is closed under "the block before" (a block is stored only after its parent, removed only
after its children; the worker's mirror sees to that). So a prompt's blocks that one holder has are a prefix, a few
probes find where it ends, and blocks → bitmask of holders is all that must be kept: no tree, nothing to merge or leak.

Growth never stalls, since the table is many small dicts. Giving up a holder is one bit cleared from the live mask;
`tidy` wipes the dead bits some hundred blocks at a time, shrinks what has become sparse, one small dict at a time, and
only then is the bit used again.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence

DEVICE, HOST, DISK = 1, 2, 4
_KEY_BITS = 54
_KEY = (1 << _KEY_BITS) - 1
_SHARDS = 1 << (64 - _KEY_BITS)
"""A hash's high bits name the dict, its low bits are the key there: masked to 54 bits, a key takes 32 bytes, not 48."""
_SPARSE = 160
"""Bytes per block above which a dict is copied to a smaller one; a dict that has just grown has at most 120."""
_WIPED = 512
"""Blocks wiped at once."""
_MASKS_KEPT = 65_536


class Holder:
    """One set of blocks: a rank of a worker in one incarnation.

    Attributes:
        owner: whose it is; "" while it is being filled, and then no query counts it.
        bit: its bit in the masks.
        blocks: how many it holds.
        digest: xor of their hashes, to compare with the worker's own.
        tiers: blocks that are (also) below the device → their tiers; the others are on the device only.
    """

    __slots__ = ("bit", "blocks", "digest", "owner", "tiers")

    def __init__(self, bit: int, owner: str) -> None:
        self.bit = bit
        self.owner = owner
        self.blocks = 0
        self.digest = 0
        self.tiers: dict[int, int] = {}


class BlockIndex:
    """All blocks of one model and block size."""

    def __init__(self) -> None:
        self._shards: list[dict[int, int]] = [{} for _ in range(_SHARDS)]
        self._masks: dict[int, int] = {}
        self._holders: dict[int, Holder] = {}
        self._live = 0
        self._dead = 0
        self._wiping = 0
        self._sweeps = self._sweep_for_ever()

    def __len__(self) -> int:
        """Distinct blocks in the table, those of given-up holders included until they are wiped."""
        return sum(map(len, self._shards))

    # --- holders ------------------------------------------------------------------------------------------------

    def open(self, owner: str) -> Holder:
        """A new, empty holder."""
        used = self._live | self._dead | self._wiping
        bit = ~used & (used + 1)
        self._live |= bit
        holder = self._holders[bit] = Holder(bit, owner)
        return holder

    def give_up(self, holder: Holder) -> None:
        """Forget a holder and all it holds, at once."""
        self._live &= ~holder.bit
        self._dead |= holder.bit
        del self._holders[holder.bit]

    def tidy(self) -> bool:
        """Clean a little, in a fraction of a millisecond; True while dead bits are left."""
        next(self._sweeps)
        return bool(self._wiping | self._dead)

    def _sweep_for_ever(self) -> Iterator[None]:
        while True:
            self._wiping, self._dead = self._dead, 0
            for number, shard in enumerate(self._shards):
                keys = list(shard) if self._wiping else []
                for start in range(0, len(keys), _WIPED):
                    self._wipe(shard, keys[start : start + _WIPED])
                    yield
                if sys.getsizeof(shard) > _SPARSE * (len(shard) + 8):
                    self._shards[number] = dict(shard)
                yield
            self._wiping = 0

    def _wipe(self, shard: dict[int, int], keys: Iterable[int]) -> None:
        """Clear the dead bits of these blocks, as far as they are still there."""
        wiping = self._wiping
        for key in keys:
            mask = shard.get(key, 0)
            if mask & wiping:
                if left := mask & ~wiping:
                    shard[key] = self._one(left)
                else:
                    del shard[key]

    def _one(self, mask: int) -> int:
        """The one object that stands for this mask, so that equal masks share memory."""
        if len(self._masks) > _MASKS_KEPT:
            self._masks.clear()
        return self._masks.setdefault(mask, mask)

    # --- changes ------------------------------------------------------------------------------------------------

    def store(self, holder: Holder, hashes: Iterable[int], tier: int = DEVICE) -> None:
        """The holder has these blocks now, in this tier; their parents are held already."""
        shards, bit, digest, new = self._shards, holder.bit, 0, 0
        if tier != DEVICE or holder.tiers:
            hashes = list(self._note_tiers(holder, hashes, tier))
        for one in hashes:
            shard, key = shards[one >> _KEY_BITS], one & _KEY
            if key not in shard:
                shard[key] = bit
            elif (mask := shard[key]) & bit:
                continue
            else:
                shard[key] = self._one(mask | bit)
            digest ^= one
            new += 1
        holder.digest ^= digest
        holder.blocks += new

    def _note_tiers(self, holder: Holder, hashes: Iterable[int], tier: int) -> Iterator[int]:
        for one in hashes:
            tiers = holder.tiers.get(one, DEVICE if self.holds(holder, one) else 0) | tier
            if tiers == DEVICE:
                holder.tiers.pop(one, None)
            else:
                holder.tiers[one] = tiers
            yield one

    def remove(self, holder: Holder, hashes: Iterable[int], tier: int = DEVICE) -> None:
        """The holder has these blocks no more in this tier; blocks it has in another stay."""
        shards, bit, digest, gone = self._shards, holder.bit, 0, 0
        if tier != DEVICE or holder.tiers:
            hashes = list(self._left_all_tiers(holder, hashes, tier))
        for one in hashes:
            shard, key = shards[one >> _KEY_BITS], one & _KEY
            mask = shard.get(key, 0)
            if not mask & bit:
                continue
            if mask == bit:
                del shard[key]
            else:
                shard[key] = self._one(mask & ~bit)
            digest ^= one
            gone += 1
        holder.digest ^= digest
        holder.blocks -= gone

    def _left_all_tiers(self, holder: Holder, hashes: Iterable[int], tier: int) -> Iterator[int]:
        for one in hashes:
            left = holder.tiers.pop(one, DEVICE) & ~tier
            if not left:
                yield one
            elif left != DEVICE:
                holder.tiers[one] = left

    # --- questions ----------------------------------------------------------------------------------------------

    def holds(self, holder: Holder, one: int) -> bool:
        """Whether it has this block in any tier."""
        return bool(self._mask(one) & holder.bit)

    def blocks_of(self, holder: Holder) -> Iterator[int]:
        """Every block of one holder, in no order."""
        for high, shard in enumerate(self._shards):
            for key, mask in shard.items():
                if mask & holder.bit:
                    yield high << _KEY_BITS | key

    def overlap(self, hashes: Sequence[int]) -> list[tuple[Holder, int]]:
        """How many leading blocks of a prompt each holder has; holders that have none are left out.

        Gallops to the first block that nobody has, then halves each stretch in which somebody's prefix ends: a dozen
        probes for one holder of a long prompt, not thousands.
        """
        found: list[tuple[Holder, int]] = []
        end = len(hashes)
        low, at_low = 0, (self._mask(hashes[0]) & self._live if end else 0)
        while at_low:
            high = min(2 * low or 1, end)
            at_high = self._mask(hashes[high]) & at_low if high < end else 0
            stretches = [(low, at_low, high, at_high)]
            while stretches:
                left, at_left, right, at_right = stretches.pop()
                if not (ending := at_left & ~at_right):
                    continue
                if right - left == 1:
                    self._name(ending, right, found)
                    continue
                middle = (left + right) >> 1
                at_middle = self._mask(hashes[middle]) & at_left | at_right
                stretches += [(left, at_left, middle, at_middle), (middle, at_middle, right, at_right)]
            low, at_low = high, at_high
        return found

    def _mask(self, one: int) -> int:
        return self._shards[one >> _KEY_BITS].get(one & _KEY, 0)

    def _name(self, mask: int, blocks: int, found: list[tuple[Holder, int]]) -> None:
        while mask:
            bit = mask & -mask
            found.append((self._holders[bit], blocks))
            mask ^= bit
