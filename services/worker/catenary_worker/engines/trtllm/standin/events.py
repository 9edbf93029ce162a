"""KV events as each version serialises them: windows, partial blocks, and names of its own."""

from array import array
from collections import deque
from typing import Literal

from catenary_worker.engines.base import KvEvent, Removed, Stored
from catenary_worker.engines.paged.sequence import Sequence

Version = Literal["1.1", "1.2", "1.4"]
FULL, SLIDING = 32_768, 128
_OWN_HASH = 0x5851F42D4C957F2D


class Events:
    """What the core's pool did. 1.2 and 1.4 have a second, sliding window that soon loses its blocks."""

    def __init__(self, version: Version, block_size: int, blocks: int, limit: int) -> None:
        self._version = version
        self._block_size = block_size
        self._next = 0
        self._partial: list[object] = []
        self.buffer: deque[object] = deque(maxlen=limit)
        self.windows = [FULL] if version == "1.1" else [SLIDING, FULL]
        for window in self.windows:
            self._add({"type": "created", "num_blocks_per_cache_level": [blocks, 0]}, window)

    def _add(self, data: dict[str, object], window: int = FULL) -> None:
        event: dict[str, object] = {"event_id": self._next, "data": data, "window_size": window}
        if self._version == "1.4":
            event |= {"layer_group_id": int(window == SLIDING), "hash_algo": "v2_sha256"}
        self._next += 1
        self.buffer.append(event)

    def name(self, block: int) -> int | str:
        """The engine's own hash."""
        own = block ^ _OWN_HASH
        return f"{own:064x}" if self._version == "1.4" else own

    def tell(self, event: KvEvent) -> None:
        """One event of the core's."""
        match event:
            case Stored():
                self._stored(event)
            case Removed(hashes):
                self._add({"type": "removed", "block_hashes": [self.name(one) for one in hashes]})

    def _stored(self, event: Stored) -> None:
        size = self._block_size
        names = [self.name(one) for one in event.hashes]
        blocks = [
            self._block(name, event.tokens[at * size : (at + 1) * size], event.salt) for at, name in enumerate(names)
        ]
        parent = None if event.parent is None else self.name(event.parent)
        for window in self.windows:
            self._add({"type": "stored", "parent_hash": parent, "blocks": blocks}, window)
        if SLIDING in self.windows:
            self._add({"type": "removed", "block_hashes": names}, SLIDING)
        moved = {"type": "event_diff", "old_value": 35, "new_value": 40}
        self._add({"type": "updated", "block_hash": names[0], "cache_level": None, "priority": moved})

    def _block(self, name: int | str, tokens: "array[int]", salt: str) -> dict[str, object]:
        block: dict[str, object] = {
            "type": "stored_block",
            "block_hash": name,
            "tokens": [{"type": "unique_token", "token_id": token, "token_extra_id": 0} for token in tokens],
            "cache_level": 0,
            "priority": 35,
        }
        if self._version != "1.1":
            block["mm_keys"] = []
        if self._version == "1.4" and salt:
            block["cache_salt"] = salt
        return block

    def ended(self, sequence: Sequence) -> None:
        """What a turn leaves beyond its full blocks can be reused too; here only the last such remainder is."""
        if self._partial:
            self._add({"type": "removed", "block_hashes": self._partial})
            self._partial = []
        whole = sequence.computed // self._block_size
        tail = sequence.ids[whole * self._block_size : sequence.computed]
        if tail:
            name = self.name(int(sequence.turn_id) << 8 | 1)
            parent = self.name(sequence.hash_of(whole - 1)) if whole else None
            block = self._block(name, tail, sequence.turn.salt)
            self._add({"type": "stored", "parent_hash": parent, "blocks": [block]})
            self._partial = [name]
