"""What one rank of an engine holds, in the mesh's names: engine block hashes in, sequence hashes out.

The rule: what is published is always closed under "the block before". A block whose parent was evicted is still held
by the engine but no prefix reaches it, so it is taken back from the mesh until its parent returns. What cannot be
placed (an unknown parent, tokens that do not fit the hashes) is refused and counted, never guessed.
"""

import struct
from collections import Counter
from collections.abc import Iterable, Iterator

from catenary_protocols.bus.messages import KvCleared, KvEvent, KvRemoved, KvStored
from catenary_tokenizers import block_hashes

from catenary_worker.engines.base import KvEvent as EngineEvent
from catenary_worker.engines.base import Removed, Stored


class _Block:
    """A block the engine holds (`held`), or one that is only remembered because a block after it is held."""

    __slots__ = ("children", "held", "name", "parent", "published", "sequence")

    def __init__(self, name: int, sequence: int, parent: "_Block | None") -> None:
        self.name = name
        self.sequence = sequence
        self.parent = parent
        self.children: dict[int, _Block] = {}
        self.held = False
        self.published = False


class Mirror:
    """See the module.

    Attributes:
        refused: events refused, by reason: malformed, block_size, parent_unknown, conflict.
        digest: xor of the published sequence hashes.
    """

    def __init__(self, block_size: int, *, own_hashes: bool = True) -> None:
        self.refused: Counter[str] = Counter()
        self.digest = 0
        self._block_size = block_size
        self._own_hashes = own_hashes
        self._blocks: dict[int, _Block] = {}
        self._roots: dict[int, _Block] = {}
        self._claims: Counter[int] = Counter()

    def __len__(self) -> int:
        """Blocks published."""
        return len(self._claims)

    def apply(self, event: EngineEvent) -> list[KvEvent]:
        """What the mesh is to hear of an engine's event."""
        if isinstance(event, Stored):
            return self._stored(event)
        if isinstance(event, Removed):
            return self._removed(event.hashes)
        self._blocks.clear()
        self._roots.clear()
        self._claims.clear()
        self.digest = 0
        return [KvCleared()]

    def chains(self) -> Iterator[KvStored]:
        """All that is published, parents before children."""
        return _runs(self._below(list(self._roots.values())))

    # --- stored -------------------------------------------------------------------------------------------------

    def _stored(self, event: Stored) -> list[KvEvent]:
        parent: _Block | None = None
        if event.parent is not None:
            parent = self._blocks.get(event.parent)
            if parent is None:
                return self._refuse("parent_unknown")
        count = len(event.hashes)
        if len(event.tokens) != count * self._block_size:
            return self._refuse("malformed" if not count or len(event.tokens) % count else "block_size")
        fresh: list[tuple[int | None, int]] = []
        for name, sequence in zip(event.hashes, self._sequences(event, parent), strict=True):
            block = self._blocks.get(name)
            if block is None:
                block = self._remember(name, sequence, parent)
            elif block.sequence != sequence:
                self._refuse("conflict")
                break
            block.held = True
            if not block.published and (parent is None or parent.published):
                fresh += self._publish(block)
            parent = block
        return list(_runs(fresh))

    def _sequences(self, event: Stored, parent: _Block | None) -> tuple[int, ...]:
        if not self._own_hashes:
            return event.hashes
        hashes = block_hashes(
            event.tokens.tobytes(),
            self._block_size,
            salt=event.salt,
            lora=event.lora,
            images=event.images,
            parent=None if parent is None else parent.sequence,
        )
        return struct.unpack(f"<{len(event.hashes)}Q", hashes)

    def _remember(self, name: int, sequence: int, parent: _Block | None) -> _Block:
        block = self._blocks[name] = _Block(name, sequence, parent)
        if parent is None:
            self._roots[name] = block
        else:
            parent.children[name] = block
        return block

    def _publish(self, top: _Block) -> Iterator[tuple[int | None, int]]:
        """Publish a block and what is held below it; yields what the mesh did not have, parents first."""
        waiting = [top]
        while waiting:
            block = waiting.pop()
            block.published = True
            self._claims[block.sequence] += 1
            if self._claims[block.sequence] == 1:
                self.digest ^= block.sequence
                yield (None if block.parent is None else block.parent.sequence), block.sequence
            waiting += [child for child in block.children.values() if child.held]

    # --- removed ------------------------------------------------------------------------------------------------

    def _removed(self, names: Iterable[int]) -> list[KvEvent]:
        gone: list[int] = []
        for name in names:
            block = self._blocks.get(name)
            if block is None or not block.held:
                continue
            block.held = False
            if block.published:
                gone += self._withdraw(block)
            self._forget(block)
        return [KvRemoved(hashes=struct.pack(f"<{len(gone)}Q", *gone))] if gone else []

    def _withdraw(self, top: _Block) -> Iterator[int]:
        """Take a block and what is published below it back; yields what the mesh is to lose."""
        waiting = [top]
        while waiting:
            block = waiting.pop()
            block.published = False
            self._claims[block.sequence] -= 1
            if not self._claims[block.sequence]:
                del self._claims[block.sequence]
                self.digest ^= block.sequence
                yield block.sequence
            waiting += [child for child in block.children.values() if child.published]

    def _forget(self, block: _Block | None) -> None:
        """Drop blocks that are neither held nor needed by one that is."""
        while block is not None and not block.held and not block.children:
            del self._blocks[block.name]
            if block.parent is None:
                del self._roots[block.name]
            else:
                del block.parent.children[block.name]
            block = block.parent

    # --- inside -------------------------------------------------------------------------------------------------

    def _below(self, waiting: list[_Block]) -> Iterator[tuple[int | None, int]]:
        while waiting:
            block = waiting.pop()
            if block.published:
                yield (None if block.parent is None else block.parent.sequence), block.sequence
                waiting += block.children.values()

    def _refuse(self, reason: str) -> list[KvEvent]:
        self.refused[reason] += 1
        return []


def _runs(pairs: Iterable[tuple[int | None, int]]) -> Iterator[KvStored]:
    """Pairs of parent and block, joined to chains."""
    chain: list[int] = []
    first: int | None = None
    for parent, sequence in pairs:
        if not chain or parent != chain[-1]:
            if chain:
                yield _chain(first, chain)
            first, chain = parent, []
        chain.append(sequence)
    if chain:
        yield _chain(first, chain)


def _chain(parent: int | None, sequences: list[int]) -> KvStored:
    return KvStored(hashes=struct.pack(f"<{len(sequences)}Q", *sequences), parent=parent)
