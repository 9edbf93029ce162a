"""The index written out, and read in again.

The rule: a dump says of each link how far it goes; what it holds is closed under parents as a whole, so its order does
not matter. A link that was read in is a guess until its worker's beat tells that nothing came after.
"""

from array import array
from typing import Self

from catenary_protocols.bus.messages import Message
from catenary_protocols.wire import Wire

from catenary_kv_indexer.core.resync import HASH_BYTES, Link


class LinkDump(Wire, frozen=True):
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
            worker=worker,
            incarnation=incarnation,
            model=model,
            block_size=block_size,
            rank=link.rank,
            next=link.next,
            hashes=array("Q", link.index.blocks_of(link.holder)).tobytes(),
            tiers=tuple(link.holder.tiers.items()),
        )

    def into(self, link: Link) -> None:
        """Fill a fresh link."""
        link.index.store(link.holder, memoryview(self.hashes).cast("Q"))
        link.holder.tiers.update(self.tiers)
        link.next = self.next
        link.heard = self.next - 1


class IndexDump(Message, frozen=True):
    """All links, as a message to the instance that comes after."""

    links: tuple[LinkDump, ...]

    @property
    def blocks(self) -> int:
        """Blocks in it, each counted for every holder."""
        return sum(len(link.hashes) // HASH_BYTES for link in self.links)
