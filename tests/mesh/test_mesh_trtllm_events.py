"""TensorRT-LLM's event streams through the adapter into the index: it is never wrong, only smaller.

The stream is written by a radix tree of blocks, the truth, as the engine's would be: several windows and ranks, partial
blocks, blocks that move between tiers, names in hex, turns with a salt. On the way, events are lost, garbled, or begin
anew because the engine did. Whatever prompt is asked for, the index claims no block that the tree does not hold.
"""

from array import array
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.mesh.kv_path import KvPath

SIZE, RANKS, FULL, SLIDING = 4, 2, 4096, 128
Path = tuple[int, ...]
Json = dict[str, Any]


def tokens_of(path: Path) -> list[int]:
    """Ids of a path of blocks; a block is known by one small number."""
    return [step * 100 + at for step in path for at in range(SIZE)]


@dataclass
class Tree:
    """What one rank of the engine holds: paths, each without and with a salt; only leaves go."""

    rank: int
    hexed: bool
    held: dict[tuple[str, Path], int] = field(default_factory=dict)
    number: int = 0
    names: int = 0

    def event(self, data: Json, window: int = FULL) -> Json:
        one = {"event_id": self.number, "data": data, "window_size": window, "attention_dp_rank": self.rank}
        self.number += 1
        return one

    def name(self, salt: str, path: Path) -> int | str | None:
        if not path:
            return None
        own = hash((salt, path)) & (1 << 64) - 1
        return f"{own:016x}" if self.hexed else own

    def store(self, salt: str, path: Path, tail: int) -> list[Json]:
        """A turn of this path ended: its blocks, and a remainder of `tail` tokens, can be reused."""
        known = max((n for n in range(len(path) + 1) if n == 0 or (salt, path[:n]) in self.held), default=0)
        spelled = [{"type": "unique_token", "token_id": one, "token_extra_id": 0} for one in tokens_of(path)]
        blocks: list[Json] = []
        for n in range(known + 1, len(path) + 1):
            self.held[salt, path[:n]] = 0
            blocks.append({"block_hash": self.name(salt, path[:n]), "tokens": spelled[(n - 1) * SIZE : n * SIZE]})
        if tail:
            rest = [{"token_id": at, "token_extra_id": 0} for at in range(tail)]
            blocks.append({"block_hash": self.names * 2 + 1, "tokens": rest})
            self.names += 1
        data = {"type": "stored", "parent_hash": self.name(salt, path[:known]), "blocks": blocks}
        names = [block["block_hash"] for block in blocks]
        noise = {"type": "removed", "block_hashes": names}
        return [self.event(data, SLIDING), self.event(data), self.event(noise, SLIDING)] if blocks else []

    def evict(self, pick: int) -> list[Json]:
        leaves = [
            (salt, path)
            for salt, path in self.held
            if not any(s == salt and p[:-1] == path for s, p in self.held if len(p) == len(path) + 1)
        ]
        if not leaves:
            return []
        salt, path = leaves[pick % len(leaves)]
        del self.held[salt, path]
        return [self.event({"type": "removed", "block_hashes": [self.name(salt, path)]})]

    def touch(self) -> list[Json]:
        """Something that changes nothing, with both differences null."""
        return [self.event({"type": "updated", "block_hash": 1, "cache_level": None, "priority": None})]

    def restart(self) -> list[Json]:
        self.held.clear()
        self.number = 0
        created = {"type": "created", "num_blocks_per_cache_level": [64, 0]}
        return [self.event(created, SLIDING), self.event(created)]


class Mesh(KvPath):
    """What the index says of paths."""

    def __init__(self) -> None:
        super().__init__(SIZE, RANKS)

    def claims(self, path: Path) -> int:
        return self.claimed(tokens_of(path))


def truly(trees: list[Tree], path: Path) -> int:
    """Blocks of the path that some rank holds for everybody."""
    return max(
        sum(all(("", path[:m]) in tree.held for m in range(1, n + 1)) for n in range(1, len(path) + 1))
        for tree in trees
    )


PATHS = st.lists(st.integers(1, 3), min_size=1, max_size=5).map(tuple)
RANK = st.integers(0, RANKS - 1)
STEPS = st.one_of(
    st.tuples(st.just("store"), RANK, PATHS, st.integers(0, SIZE - 1)),
    st.tuples(st.just("salted"), RANK, PATHS, st.integers(0, SIZE - 1)),
    st.tuples(st.just("evict"), RANK, st.integers(0, 1000)),
    st.tuples(st.just("restart"), RANK),
)
DAMAGE = st.sampled_from(["none", "none", "none", "lost", "garbled"])


@settings(max_examples=200)
@given(st.lists(st.tuples(STEPS, DAMAGE), max_size=40), st.booleans())
def test_the_index_is_never_wrong_only_smaller(steps: list[Any], hexed: bool) -> None:
    mesh, trees = Mesh(), [Tree(rank, hexed) for rank in range(RANKS)]
    asked: set[Path] = set()
    for tree in trees:
        mesh.feed(tree.restart())
    for (kind, rank, *rest), damage in steps:
        tree = trees[rank]
        match kind:
            case "store":
                events = tree.store("", *rest)
                asked.add(rest[0])
            case "salted":
                mesh.private.began(array("I", tokens_of(rest[0])), SIZE)
                events = tree.store("x", *rest)
                asked.add(rest[0])
            case "evict":
                events = tree.evict(*rest)
            case _:
                events = tree.restart()
        if damage == "lost" and kind != "restart":
            events = events[1:]
        elif damage == "garbled":
            events = [{**event, "data": {"type": "?"}} if at == 0 else event for at, event in enumerate(events)]
        mesh.feed(events)
        mesh.feed(tree.touch())
        for path in asked:
            assert mesh.claims(path) <= truly(trees, path)


@given(st.lists(st.one_of(STEPS.filter(lambda step: step[0] in {"store", "evict"})), max_size=40), st.booleans())
def test_nothing_lost_nothing_missing(steps: list[Any], hexed: bool) -> None:
    mesh, trees = Mesh(), [Tree(rank, hexed) for rank in range(RANKS)]
    for kind, rank, *rest in steps:
        mesh.feed(trees[rank].store("", *rest) if kind == "store" else trees[rank].evict(*rest))
        for path in {path for tree in trees for _, path in tree.held}:
            assert mesh.claims(path) == truly(trees, path)


@pytest.mark.parametrize("missing", range(9))
def test_after_any_one_event_is_lost_a_session_that_goes_on_brings_its_prefix_back(missing: int) -> None:
    mesh, tree = Mesh(), Tree(0, hexed=False)
    stream = tree.restart() + tree.store("", (1, 2), 0) + tree.evict(0) + tree.store("", (1, 3), 2)
    mesh.feed([event for event in stream if event["event_id"] != missing])
    mesh.feed(tree.store("", (1, 3, 1), 0))
    unknown_blocks_were_told_of_in = {3, 7}
    assert mesh.claims((1, 3, 1)) == (0 if missing in unknown_blocks_were_told_of_in else 3)
    assert mesh.claims((1, 2)) <= 1
