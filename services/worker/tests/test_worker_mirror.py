"""Engine events in, sequence hashes out: what is published is exactly what a prefix can reach."""

from array import array

from catenary_protocols.bus.messages import KvCleared, KvRemoved, KvStored
from catenary_tokenizers import block_hashes
from catenary_worker.engines.base import Cleared, Removed, Stored
from catenary_worker.mirror import Mirror
from hypothesis import given
from hypothesis import strategies as st

SIZE = 4


def tokens_of(*blocks: int) -> "array[int]":
    return array("I", [token for block in blocks for token in (block, block, block, block)])


def stored(parent: int | None, *blocks: tuple[int, int], salt: str = "") -> Stored:
    """Blocks as (engine hash, content)."""
    return Stored(
        parent=parent,
        hashes=tuple(name for name, _ in blocks),
        tokens=tokens_of(*(content for _, content in blocks)),
        salt=salt,
    )


def hashes(*blocks: int, salt: str = "") -> list[int]:
    return list(memoryview(block_hashes(tokens_of(*blocks).tobytes(), SIZE, salt=salt)).cast("Q"))


def content_of(event: KvStored | KvRemoved) -> list[int]:
    return list(memoryview(event.hashes).cast("Q"))


def test_blocks_are_named_by_tokens_not_by_the_engines_hash() -> None:
    one, other = Mirror(SIZE), Mirror(SIZE)
    (first,) = one.apply(stored(None, (11, 1), (12, 2)))
    (second,) = other.apply(stored(None, (91, 1), (92, 2)))
    assert first == second
    assert isinstance(first, KvStored)
    assert content_of(first) == hashes(1, 2)
    assert first.parent is None


def test_a_chain_goes_on_from_its_parent() -> None:
    mirror = Mirror(SIZE)
    mirror.apply(stored(None, (11, 1)))
    (more,) = mirror.apply(stored(11, (12, 2), (13, 3)))
    assert isinstance(more, KvStored)
    assert more.parent == hashes(1)[0]
    assert content_of(more) == hashes(1, 2, 3)[1:]


def test_the_salt_of_a_prompt_is_in_all_its_names() -> None:
    mirror = Mirror(SIZE)
    (plain,) = mirror.apply(stored(None, (11, 1)))
    (salted,) = mirror.apply(stored(None, (21, 1), salt="tenant"))
    assert isinstance(salted, KvStored)
    assert content_of(salted) == hashes(1, salt="tenant")
    assert plain != salted


def test_a_block_stored_twice_is_told_once() -> None:
    mirror = Mirror(SIZE)
    mirror.apply(stored(None, (11, 1)))
    (more,) = mirror.apply(stored(None, (11, 1), (12, 2)))
    assert isinstance(more, KvStored)
    assert content_of(more) == hashes(1, 2)[1:]
    assert more.parent == hashes(1)[0]


def test_what_hangs_on_a_removed_block_is_taken_back_and_returns_with_it() -> None:
    mirror = Mirror(SIZE)
    a, b, c = hashes(1, 2, 3)
    mirror.apply(stored(None, (11, 1), (12, 2), (13, 3)))
    (gone,) = mirror.apply(Removed((12,)))
    assert isinstance(gone, KvRemoved)
    assert set(content_of(gone)) == {b, c}
    (back,) = mirror.apply(stored(11, (12, 2)))
    assert isinstance(back, KvStored)
    assert (back.parent, content_of(back)) == (a, [b, c])


def test_a_block_without_its_parent_is_not_told_before_the_parent_is_there() -> None:
    mirror = Mirror(SIZE)
    mirror.apply(stored(None, (11, 1), (12, 2)))
    mirror.apply(Removed((11,)))
    assert mirror.apply(stored(12, (13, 3))) == []
    (back,) = mirror.apply(stored(None, (11, 1)))
    assert isinstance(back, KvStored)
    assert content_of(back) == hashes(1, 2, 3)


def test_an_unknown_parent_is_refused_and_counted() -> None:
    mirror = Mirror(SIZE)
    assert mirror.apply(stored(77, (12, 2))) == []
    assert mirror.refused["parent_unknown"] == 1
    assert mirror.apply(Removed((12,))) == []


def test_another_block_size_and_a_partial_block_are_refused_and_counted() -> None:
    mirror = Mirror(SIZE)
    assert mirror.apply(Stored(parent=None, hashes=(1,), tokens=array("I", range(8)))) == []
    assert mirror.apply(Stored(parent=None, hashes=(1, 2), tokens=array("I", range(7)))) == []
    assert mirror.refused == {"block_size": 1, "malformed": 1}
    assert mirror.apply(stored(None, (1, 1))) != []


def test_one_name_for_two_contents_is_refused() -> None:
    mirror = Mirror(SIZE)
    mirror.apply(stored(None, (11, 1)))
    assert mirror.apply(stored(None, (11, 2))) == []
    assert mirror.refused["conflict"] == 1


def test_two_names_for_one_content_are_gone_when_both_are() -> None:
    mirror = Mirror(SIZE)
    mirror.apply(stored(None, (11, 1)))
    assert mirror.apply(stored(None, (21, 1))) == []
    assert mirror.apply(Removed((11,))) == []
    (gone,) = mirror.apply(Removed((21,)))
    assert isinstance(gone, KvRemoved)
    assert content_of(gone) == hashes(1)


def test_cleared_leaves_nothing() -> None:
    mirror = Mirror(SIZE)
    mirror.apply(stored(None, (11, 1), (12, 2)))
    assert mirror.apply(Cleared()) == [KvCleared()]
    assert (len(mirror), mirror.digest, list(mirror.chains())) == (0, 0, [])


def test_an_engine_that_speaks_sequence_hashes_is_believed() -> None:
    mirror = Mirror(SIZE, own_hashes=False)
    (told,) = mirror.apply(stored(None, (11, 1), (12, 2)))
    assert isinstance(told, KvStored)
    assert content_of(told) == [11, 12]


def test_a_chain_of_many_blocks_comes_and_goes_without_deep_recursion() -> None:
    mirror = Mirror(SIZE, own_hashes=False)
    count = 50_000
    names = range(1, count + 1)
    mirror.apply(Stored(parent=None, hashes=tuple(names), tokens=array("I", bytes(4 * SIZE * count))))
    (gone,) = mirror.apply(Removed((1,)))
    assert isinstance(gone, KvRemoved)
    assert len(content_of(gone)) == count
    mirror.apply(Removed(tuple(reversed(names))))
    assert mirror._blocks == {}


Step = tuple[str, tuple[int, ...]]
paths = st.lists(st.integers(0, 2), min_size=1, max_size=5).map(tuple)
steps = st.lists(st.tuples(st.sampled_from(["store", "remove"]), paths), max_size=60)


@given(steps)
def test_published_is_what_a_prefix_reaches(script: list[Step]) -> None:
    """An engine that evicts in any order: the published set is closed under parents, and nothing held is missing."""
    mirror = Mirror(SIZE)
    held: set[tuple[int, ...]] = set()
    published: set[int] = set()
    known: set[tuple[int, ...]] = set()

    def name(path: tuple[int, ...]) -> int:
        return int("1" + "".join(map(str, path)))

    for verb, path in script:
        if verb == "store":
            for end in range(1, len(path) + 1):
                part = path[:end]
                parent = None if end == 1 else name(part[:-1])
                for event in mirror.apply(stored(parent, (name(part), part[-1]))):
                    assert isinstance(event, KvStored)
                    told = content_of(event)
                    assert event.parent is None or event.parent in published
                    assert not published & set(told)
                    published |= set(told)
                held.add(part)
                known.add(part)
        else:
            for event in mirror.apply(Removed((name(path),))):
                assert isinstance(event, KvRemoved)
                assert set(content_of(event)) <= published
                published -= set(content_of(event))
            held.discard(path)
        reachable = {p for p in held if all(p[:end] in held for end in range(1, len(p)))}
        assert published == {hashes(*p)[-1] for p in reachable}
        pictured = {one for chain in mirror.chains() for one in content_of(chain)}
        assert pictured == published
        folded = 0
        for one in published:
            folded ^= one
        assert mirror.digest == folded
    mirror.apply(Removed(tuple(name(path) for path in known)))
    assert (len(mirror), mirror._blocks) == (0, {})
