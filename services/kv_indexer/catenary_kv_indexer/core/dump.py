"""The index written out, and read in again.

The rule: a dump says of each link how far it goes; what it holds is closed under parents as a whole, so its order does
not matter. A link that was read in is a guess until its worker's beat tells that nothing came after.
"""

from array import array
from dataclasses import dataclass
from typing import Self

from catenary_kv_indexer.core.resync import HASH_BYTES, Link


@dataclass(frozen=True, slots=True)
class LinkDump:
    """One rank of one worker: event `next` - 1 was the last applied; `hashes` are u64 in this machine's order."""

    worker: str
    incarnation: int
    model: str
    block_size: int
    rank: int
    next: int
    hashes: bytes
    tiers: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, worker: str, incarnation: int, model: str, block_size: int, link: Link) -> Self:
        """What a link holds now."""
        return cls(
            worker,
            incarnation,
            model,
            block_size,
            link.rank,
            link.next,
            array("Q", link.index.blocks_of(link.holder)).tobytes(),
            tuple(link.holder.tiers.items()),
        )

    def into(self, link: Link) -> None:
        """Fill a fresh link."""
        link.index.store(link.holder, memoryview(self.hashes).cast("Q"))
        link.holder.tiers.update(self.tiers)
        link.next = self.next
        link.heard = self.next - 1


@dataclass(frozen=True, slots=True)
class IndexDump:
    """All links."""

    links: tuple[LinkDump, ...]

    @property
    def blocks(self) -> int:
        """Blocks in it, each counted for every holder."""
        return sum(len(link.hashes) // HASH_BYTES for link in self.links)
