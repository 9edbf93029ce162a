"""TensorRT-LLM's KV events to ours.

Rule: what is passed on is true, though it may be less than there is. A number missing in a rank's events means that
events were dropped, perhaps removals, and of other ranks too, since one buffer holds those of all: everything is
forgotten. There is no snapshot to ask for, but a block that is stored under a forgotten one proves that this one, and
every block before it, is still there, and brings them back.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal

import msgspec

from catenary_worker.engines.base import Cleared, KvEvent, Removed, Stored
from catenary_worker.engines.trtllm.private import PrivateTurns
from catenary_worker.engines.trtllm.wire import (
    Block,
    CreatedData,
    Event,
    Hash,
    RemovedData,
    StoredData,
    UpdatedData,
    plain_ids,
)

REMEMBERED = 1 << 18
"""Forgotten blocks of a rank that may still be proved; the oldest go first."""
Unfit = Literal["partial", "block_size", "private"]


@dataclass(frozen=True, slots=True)
class _Held:
    """A block we told of."""

    parent: int | None
    tokens: "array[int]"


@dataclass(slots=True)
class _Rank:
    """One rank's numbers and blocks; `forgotten` are those of before a gap, true again only by proof."""

    number: int
    expected: int = 0
    held: dict[int, _Held] = field(default_factory=dict)
    forgotten: dict[int, _Held] = field(default_factory=dict)

    def forget(self, *, for_good: bool) -> list[KvEvent]:
        """Hold nothing any more."""
        told = bool(self.held)
        known = {} if for_good else {**self.forgotten, **self.held}
        self.forgotten = dict(islice(known.items(), max(0, len(known) - REMEMBERED), None))
        self.held = {}
        return [Cleared(self.number)] if told else []

    def recall(self, name: int) -> list[int]:
        """A forgotten block and all before it that are forgotten, first one first; empty if the chain is broken."""
        chain: list[int] = []
        at: int | None = name
        while at is not None and at not in self.held:
            if at not in self.forgotten:
                return []
            chain.append(at)
            at = self.forgotten[at].parent
        return chain[::-1]


class KvTranslator:
    """See the module.

    Attributes:
        counts: what was left out or came to pass, by reason: gap, restart, malformed, rank, window, partial,
            block_size, media, private, orphan, recalled.
    """

    def __init__(self, block_size: int, ranks: int, private: PrivateTurns) -> None:
        self.counts: Counter[str] = Counter()
        self._block_size = block_size
        self._ranks = [_Rank(number) for number in range(ranks)]
        self._private = private
        self._window: tuple[int, int | None] | None = None

    def feed(self, raw: Iterable[object], now: float) -> list[KvEvent]:
        """Events as the engine serialises them, in its order."""
        told: list[KvEvent] = []
        for one in raw:
            try:
                event = msgspec.convert(one, Event)
            except msgspec.ValidationError:
                self.counts["malformed"] += 1
                told += self._unreadable(one)
            else:
                told += self._event(event, now)
        return told

    def lost(self) -> list[KvEvent]:
        """Events could not be fetched; nobody knows which."""
        self.counts["gap"] += 1
        return self._forget(for_good=False)

    # --- numbers, windows ---------------------------------------------------------------------------------------

    def _event(self, event: Event, now: float) -> list[KvEvent]:
        number = event.attention_dp_rank or 0
        if not 0 <= number < len(self._ranks):
            self.counts["rank"] += 1
            return []
        rank = self._ranks[number]
        told = self._count(rank, event.event_id) + self._widen(event)
        if event.window_size is not None and (event.window_size, event.layer_group_id) != self._window:
            self.counts["window"] += 1
            return told
        match event.data:
            case StoredData():
                told += self._stored(rank, event.data, now)
            case RemovedData(hashes):
                told += self._removed(rank, hashes)
            case CreatedData() | UpdatedData():  # pools, and moves between tiers
                pass
        return told

    def _count(self, rank: _Rank, number: int) -> list[KvEvent]:
        expected, rank.expected = rank.expected, number + 1
        if number == expected:
            return []
        restarted = number < expected
        self.counts["restart" if restarted else "gap"] += 1
        return self._forget(for_good=restarted)

    def _unreadable(self, raw: object) -> list[KvEvent]:
        """As good as lost; if it says whose it is and which, the next one is no gap."""
        if not isinstance(raw, Mapping):
            return self.lost()
        number = raw.get("attention_dp_rank", 0 if len(self._ranks) == 1 else None)
        if not isinstance(number, int) or not 0 <= number < len(self._ranks):
            return self.lost()
        rank = self._ranks[number]
        if isinstance(raw.get("event_id"), int):
            rank.expected = raw["event_id"] + 1
        return rank.forget(for_good=False)

    def _widen(self, event: Event) -> list[KvEvent]:
        """Only the widest attention window tells how long a prefix is; its first layer group speaks for it."""
        if event.window_size is None or (self._window is not None and event.window_size <= self._window[0]):
            return []
        self._window = (event.window_size, event.layer_group_id)
        return self._forget(for_good=True)

    def _forget(self, *, for_good: bool) -> list[KvEvent]:
        return [told for rank in self._ranks for told in rank.forget(for_good=for_good)]

    # --- blocks -------------------------------------------------------------------------------------------------

    def _stored(self, rank: _Rank, data: StoredData, now: float) -> list[KvEvent]:
        told: list[KvEvent] = []
        parent = None if data.parent_hash is None else _name(data.parent_hash)
        if parent is not None and parent not in rank.held:
            chain = rank.recall(parent)
            if not chain:
                self.counts["orphan"] += len(data.blocks)
                return []
            self.counts["recalled"] += len(chain)
            rank.held |= {name: rank.forgotten.pop(name) for name in chain}
            told.append(_chain(rank, chain))
        fresh: list[int] = []
        for block in data.blocks:
            tokens = plain_ids(block.tokens)
            if tokens is None or block.mm_keys:
                self.counts["media"] += 1
                break
            if reason := self._unfit(block, tokens, first=parent is None, now=now):
                self.counts[reason] += 1
                break
            name = _name(block.block_hash)
            if name not in rank.held:
                rank.forgotten.pop(name, None)
                rank.held[name] = _Held(parent, tokens)
                fresh.append(name)
            elif fresh:
                told.append(_chain(rank, fresh))
                fresh = []
            parent = name
        if fresh:
            told.append(_chain(rank, fresh))
        return told

    def _unfit(self, block: Block, tokens: "array[int]", *, first: bool, now: float) -> Unfit | None:
        """Why this block, and what hangs on it, is none for the index."""
        if len(tokens) != self._block_size:
            return "partial" if len(tokens) < self._block_size else "block_size"
        if block.cache_salt is not None or (first and self._private.hides(tokens, now)):
            return "private"
        return None

    def _removed(self, rank: _Rank, hashes: list[Hash]) -> list[KvEvent]:
        """Names we never told of (partial blocks among them) are no loss."""
        names = [_name(one) for one in hashes]
        for name in names:
            rank.forgotten.pop(name, None)
        gone = tuple(name for name in names if rank.held.pop(name, None) is not None)
        return [Removed(gone, rank.number)] if gone else []


def _name(block_hash: Hash) -> int:
    return block_hash if isinstance(block_hash, int) else int(block_hash, 16)


def _chain(rank: _Rank, names: list[int]) -> Stored:
    tokens = array("I")
    for name in names:
        tokens.extend(rank.held[name].tokens)
    return Stored(rank.held[names[0]].parent, tuple(names), tokens, rank=rank.number)
