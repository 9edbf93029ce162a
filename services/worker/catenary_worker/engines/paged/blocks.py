"""A pool of KV blocks: who holds which, what can be found again, what goes first.

Rules
- A *full* block has a hash that covers it and all before it. One hash is held once: a second computation of the same
  content gives its block back and takes the first one's.
- Who holds a block holds all before it. So a block without holders has no child with holders, and the cache is a
  forest that shrinks from its leaves.
- Blocks without holders stay findable until room is needed. The leaf that goes first has the lowest priority, and
  among those the longest unused. A retained block's priority falls back to 0 when its time is over; one that was
  given up (priority below 0) goes before all others until somebody holds it again.
- Blocks that are not full belong to one holder and are free as soon as it lets go.
"""

from array import array
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush

from catenary_worker.engines.base import Retention
from catenary_worker.engines.paged.events import EventLog

NO_BLOCK = -1
_ORDINARY = Retention()


class BlockPool:
    """`total` blocks, known by index 0 … total-1 (the place a computing executor keeps their KV)."""

    def __init__(self, total: int, log: EventLog) -> None:
        self.total = total
        self.used = 0
        self._log = log
        self._free = list(range(total - 1, -1, -1))
        self._holders = [0] * total
        self._hash: list[int | None] = [None] * total
        self._parent = [NO_BLOCK] * total
        self._children = [0] * total
        self._priority = [0] * total
        self._until = [0.0] * total
        self._stamp = [0] * total
        self._by_hash: dict[int, int] = {}
        self._clock = 0
        self._leaves: list[tuple[int, int, int]] = []  # (priority, stamp, block); stale where the block differs
        self._retained: list[tuple[float, list[int]]] = []  # (until, blocks)

    @property
    def available(self) -> int:
        """Blocks that nobody holds, cached ones among them."""
        return self.total - self.used

    @property
    def cached(self) -> dict[int, int | None]:
        """Every full block: its hash, and its parent's."""
        parents = self._parent
        return {
            name: None if parents[block] == NO_BLOCK else self._hash[parents[block]]
            for name, block in self._by_hash.items()
        }

    def find(self, hashes: Sequence[int], limit: int) -> list[int]:
        """The leading blocks of a chain, `limit` at most, that are here. Holds nothing."""
        found = [self._by_hash.get(name, NO_BLOCK) for name in hashes[:limit]]
        return found[: found.index(NO_BLOCK)] if NO_BLOCK in found else found

    def unheld(self, blocks: Iterable[int]) -> int:
        """How many of these nobody holds."""
        return list(map(self._holders.__getitem__, blocks)).count(0)

    def hold(self, blocks: Iterable[int]) -> None:
        """One more holder for each."""
        holders = self._holders
        for block in blocks:
            if not holders[block]:
                self.used += 1
            holders[block] += 1

    def take(self, count: int) -> list[int] | None:
        """`count` empty blocks for one holder, or None if there are not so many; evicts what it must."""
        if count > self.available:
            return None
        taken = []
        for _ in range(count):
            block = self._free.pop() if self._free else self._evict()
            self._holders[block] = 1
            taken.append(block)
        self.used += count
        return taken

    def seal(self, block: int, name: int, parent: int, tokens: "array[int]", salt: str) -> int:
        """A holder's block is full now and has this hash. Returns the block to hold in its place from now on."""
        known = self._by_hash.get(name)
        if known is not None:
            if known != block:
                self.hold((known,))
                self.release((block,))
            return known
        self._by_hash[name] = block
        self._hash[block] = name
        self._parent[block] = parent
        parent_name = None
        if parent != NO_BLOCK:
            self._children[parent] += 1
            parent_name = self._hash[parent]
        self._log.stored(parent_name, name, tokens, salt)
        return block

    def release(self, blocks: Sequence[int], *, now: float = 0.0, retention: Retention = _ORDINARY) -> None:
        """One holder less for each of a chain; its end goes before its beginning."""
        names, holders, children, stamp = self._hash, self._holders, self._children, self._stamp
        priority = self._priority
        self._retain(
            [block for block in blocks if names[block] is not None and (retention.priority or priority[block] < 0)],
            now,
            retention,
        )
        for block in reversed(blocks):
            holders[block] -= 1
            if holders[block]:
                continue
            self.used -= 1
            if names[block] is None:
                self._free.append(block)
                continue
            self._clock += 1
            stamp[block] = self._clock
            if not children[block]:
                self._offer(block)

    def settle(self, name: int, retention: Retention, now: float) -> None:
        """How long the chain that ends in this block is kept from now on, whatever was said before.

        More is for all of it; less only for what is its own, back to where it is held or another chain branches off.
        """
        chain = self._chain(name)
        if retention.priority > 0:
            self._retain(chain, now, retention)
            if chain and not self._holders[chain[0]]:
                self._offer(chain[0])
            return
        below = 0
        for block in chain:
            if self._holders[block] or self._children[block] > below:
                return
            self._priority[block], self._until[block] = retention.priority, 0.0
            self._offer(block)
            below = 1

    def _chain(self, name: int) -> list[int]:
        """The block with this hash and all before it, the first last."""
        chain, block = [], self._by_hash.get(name, NO_BLOCK)
        while block != NO_BLOCK:
            chain.append(block)
            block = self._parent[block]
        return chain

    def tick(self, now: float) -> None:
        """Ends retentions that are over."""
        while self._retained and self._retained[0][0] <= now:
            _, blocks = heappop(self._retained)
            for block in blocks:
                if self._until[block] <= now and self._priority[block] > 0:
                    self._priority[block] = 0
                    if self._hash[block] is not None and not self._holders[block]:
                        self._offer(block)

    def _retain(self, blocks: Iterable[int], now: float, retention: Retention) -> None:
        """Keep those so long that are not kept longer."""
        until, priorities, untils = now + retention.seconds, self._priority, self._until
        wanted = retention.priority, until
        kept = [block for block in blocks if wanted > (priorities[block], untils[block])]
        for block in kept:
            priorities[block], untils[block] = wanted
        if kept and retention.priority > 0:
            heappush(self._retained, (until, kept))

    def _offer(self, block: int) -> None:
        if self._children[block]:
            return
        heappush(self._leaves, (self._priority[block], self._stamp[block], block))
        if len(self._leaves) > 4 * self.total + 64:
            self._leaves = [entry for entry in self._leaves if self._is_leaf(*entry)]
            heapify(self._leaves)

    def _is_leaf(self, priority: int, stamp: int, block: int) -> bool:
        return (
            self._stamp[block] == stamp
            and self._priority[block] == priority
            and not self._holders[block]
            and not self._children[block]
            and self._hash[block] is not None
        )

    def _evict(self) -> int:
        while True:
            priority, stamp, block = heappop(self._leaves)
            if self._is_leaf(priority, stamp, block):
                break
        name = self._hash[block]
        assert name is not None  # noqa: S101 - a leaf is full
        del self._by_hash[name]
        self._log.removed(name)
        self._hash[block] = None
        self._priority[block] = 0
        parent = self._parent[block]
        if parent != NO_BLOCK:
            self._parent[block] = NO_BLOCK
            self._children[parent] -= 1
            if not self._holders[parent]:
                self._offer(parent)
        return block
