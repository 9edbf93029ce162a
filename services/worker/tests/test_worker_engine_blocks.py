"""Laws of the block pool: whatever is held, released and evicted, the books balance."""

from array import array

from catenary_tokenizers.blocks import block_hashes
from catenary_worker.engines.base import Removed, Retention, Stored
from catenary_worker.engines.contract import KvTable
from catenary_worker.engines.paged.blocks import NO_BLOCK, BlockPool
from catenary_worker.engines.paged.events import EventLog
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

SIZE = 2
TOTAL = 9


def chain(tokens: list[int]) -> list[int]:
    return array("Q", block_hashes(array("I", tokens).tobytes(), SIZE)).tolist()


class Books(RuleBasedStateMachine):
    """Holders that come, find, fill and go, beside a plain account of who holds what."""

    def __init__(self) -> None:
        super().__init__()
        self.log = EventLog()
        self.pool = BlockPool(TOTAL, self.log)
        self.table = KvTable(SIZE)
        self.holders: list[list[int]] = []
        self.now = 0.0

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=12), sealed=st.integers(0, 6))
    def come(self, tokens: list[int], sealed: int) -> None:
        names = chain(tokens)
        found = self.pool.find(names, len(names))
        missing = -(-len(tokens) // SIZE) - len(found)
        if self.pool.available - self.pool.unheld(found) < missing:
            return
        self.pool.hold(found)
        taken = self.pool.take(missing)
        assert taken is not None
        blocks = found + taken
        for index in range(len(found), min(len(names), len(found) + sealed)):
            parent = blocks[index - 1] if index else NO_BLOCK
            ids = array("I", tokens[index * SIZE : (index + 1) * SIZE])
            blocks[index] = self.pool.seal(blocks[index], names[index], parent, ids, "")
        self.holders.append(blocks)

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), priority=st.integers(0, 3), seconds=st.floats(0, 5))
    def go(self, data: st.DataObject, priority: int, seconds: float) -> None:
        blocks = self.holders.pop(data.draw(st.integers(0, len(self.holders) - 1)))
        self.pool.release(blocks, now=self.now, retention=Retention(priority, seconds))

    @rule(seconds=st.floats(0, 3))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.pool.tick(self.now)

    @precondition(lambda self: self.pool.cached)
    @rule(data=st.data(), priority=st.integers(-1, 2), seconds=st.floats(0, 5))
    def settle(self, data: st.DataObject, priority: int, seconds: float) -> None:
        name = data.draw(st.sampled_from(sorted(self.pool.cached)))
        self.pool.settle(name, Retention(priority, seconds), self.now)

    @rule()
    def take_all_that_is_available(self) -> None:
        taken = self.pool.take(self.pool.available)
        assert taken is not None
        assert not set(taken) & {block for blocks in self.holders for block in blocks}
        self.pool.release(taken)

    @invariant()
    def counts_balance(self) -> None:
        held = {block for blocks in self.holders for block in blocks}
        assert self.pool.used == len(held)
        assert self.pool.available == TOTAL - len(held)
        for block in range(TOTAL):
            assert self.pool._holders[block] == sum(block in blocks for blocks in self.holders)

    @invariant()
    def events_add_up_to_the_table(self) -> None:
        self.table.apply(self.log.drain())
        assert self.table.parents == self.pool.cached

    def teardown(self) -> None:
        while self.holders:
            self.pool.release(self.holders.pop())
        assert self.pool.used == 0
        taken = self.pool.take(TOTAL)
        assert taken is not None
        assert sorted(taken) == list(range(TOTAL))
        self.table.apply(self.log.drain())
        assert self.table.parents == {}


TestBooks = Books.TestCase
TestBooks.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)


def filled(pool: BlockPool, tokens: list[int]) -> list[int]:
    taken = pool.take(len(tokens) // SIZE)
    assert taken is not None
    for index, name in enumerate(chain(tokens)):
        parent = taken[index - 1] if index else NO_BLOCK
        taken[index] = pool.seal(taken[index], name, parent, array("I", tokens[index * SIZE : (index + 1) * SIZE]), "")
    return taken


def test_the_longest_unused_leaf_goes_first() -> None:
    log = EventLog()
    pool = BlockPool(4, log)
    old, new = [1, 1, 2, 2], [3, 3, 4, 4]
    for tokens in (old, new):
        pool.release(filled(pool, tokens))
    log.drain()
    pool.take(1)
    assert log.drain() == [Removed((chain(old)[1],))]
    pool.take(2)
    assert log.drain() == [Removed((chain(old)[0], chain(new)[1]))]


def test_a_retained_chain_outlives_newer_ones_until_its_time_is_over() -> None:
    log = EventLog()
    pool = BlockPool(4, log)
    kept, other = [1, 1, 2, 2], [3, 3, 4, 4]
    pool.release(filled(pool, kept), now=0.0, retention=Retention(priority=10, seconds=60.0))
    pool.release(filled(pool, other))
    taken = pool.take(1)
    assert taken is not None
    assert set(pool.cached) == {*chain(kept), chain(other)[0]}
    pool.release(taken)
    pool.tick(60.0)
    pool.take(2)
    assert set(pool.cached) == {chain(kept)[0], chain(other)[0]}


def test_a_chain_that_is_given_up_goes_first_but_for_what_others_share() -> None:
    pool = BlockPool(6, EventLog())
    older, mine, other = [7, 7], [1, 1, 2, 2, 3, 3], [1, 1, 4, 4]
    for tokens in (older, other, mine):
        pool.release(filled(pool, tokens), now=0.0, retention=Retention(priority=10, seconds=60.0))
    pool.settle(chain(mine)[-1], Retention(priority=-1), now=1.0)
    pool.release(pool.take(3) or [])
    assert set(pool.cached) == {*chain(older), *chain(other)}, "its own two blocks went, the newest of all"


def test_what_was_given_up_is_ordinary_again_once_somebody_held_it() -> None:
    pool = BlockPool(4, EventLog())
    mine, other = [1, 1], [2, 2]
    for tokens in (other, mine):
        pool.release(filled(pool, tokens))
    pool.settle(chain(mine)[-1], Retention(priority=-1), now=0.0)
    pool.release(filled(pool, mine))
    pool.release(pool.take(3) or [])
    assert set(pool.cached) == set(chain(mine))


def test_a_chain_is_ordinary_again_when_its_session_is_not_expected_back() -> None:
    pool = BlockPool(4, EventLog())
    mine, other = [1, 1], [2, 2]
    pool.release(filled(pool, mine), now=0.0, retention=Retention(priority=10, seconds=60.0))
    pool.release(filled(pool, other))
    pool.settle(chain(mine)[-1], Retention(), now=1.0)
    pool.release(pool.take(3) or [])
    assert set(pool.cached) == set(chain(other))


def test_the_second_computation_of_a_block_takes_the_first_ones_place() -> None:
    log = EventLog()
    pool = BlockPool(4, log)
    first, second = filled(pool, [1, 1, 2, 2]), filled(pool, [1, 1, 2, 2])
    assert first == second
    assert pool.used == 2
    events = log.drain()
    assert events == [Stored(None, tuple(chain([1, 1, 2, 2])), array("I", [1, 1, 2, 2]))]


def test_events_keep_the_order_of_what_happened_and_join_neighbours() -> None:
    log = EventLog()
    one, two = array("I", [1, 1]), array("I", [2, 2])
    log.removed(7)
    log.removed(8)
    log.stored(None, 1, one, "")
    log.stored(1, 2, two, "")
    log.stored(1, 3, two, "")
    log.removed(3)
    log.stored(2, 3, one, "")
    log.stored(3, 4, one, "x")
    assert log.drain() == [
        Removed((7, 8)),
        Stored(None, (1, 2), one + two),
        Stored(1, (3,), two),
        Removed((3,)),
        Stored(2, (3,), one),
        Stored(3, (4,), one, "x"),
    ]
    assert log.drain() == []
