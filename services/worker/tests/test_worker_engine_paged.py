"""The paged core under load: books balance, moves are exact, small pools only make it slower."""

from array import array
from dataclasses import replace

import pytest
from catenary_protocols.errors import CapacityError, RequestError
from catenary_tokenizers import block_hashes
from catenary_worker.engines.base import Delta, EngineTurn, Retention
from catenary_worker.engines.contract import KvTable
from catenary_worker.engines.paged import Batch, Executed, Limits, PagedCore, Sequence
from hypothesis import given, settings
from hypothesis import strategies as st

EOS = 7


class Arithmetic:
    """The next ids are a function of all ids before; `drafts` of them come at once."""

    def __init__(self, drafts: int = 1) -> None:
        self.drafts = drafts
        self.ended: list[str] = []
        self.widest = 0

    def begin(self, sequence: Sequence) -> None:
        pass

    def run(self, batch: Batch) -> Executed:
        scheduled = batch.sampling + batch.partial
        self.widest = max(self.widest, sum(sequence.scheduled for sequence in scheduled))
        for sequence in scheduled:
            assert len(sequence.blocks) * sequence.block_size >= sequence.computed + sequence.scheduled
            assert len(set(sequence.blocks)) == len(sequence.blocks)
        return Executed(0.01, [self._next(sequence) for sequence in batch.sampling])

    def _next(self, sequence: Sequence) -> tuple[int, ...]:
        ids = list(sequence.ids)
        for _ in range(self.drafts):
            ids.append((ids[-1] * 31 + len(ids)) % 97 + 8)
        return tuple(ids[-self.drafts :])

    def end(self, sequence: Sequence) -> None:
        self.ended.append(sequence.turn_id)


def ids(length: int, seed: int) -> "array[int]":
    return array("I", [100 + (seed * 7 + n * n) % 13 for n in range(length)])


class Run:
    """A core, and all it said."""

    def __init__(self, limits: Limits, executor: Arithmetic | None = None) -> None:
        self.executor = executor or Arithmetic()
        self.core = PagedCore(limits, self.executor, eos=frozenset({EOS}))
        self.table = KvTable(limits.block_size)
        self.tokens: dict[str, list[int]] = {}
        self.finish: dict[str, Delta] = {}
        self.now = 0.0

    def submit(self, turn: EngineTurn) -> None:
        self.core.submit(turn, self.now)

    def step(self) -> list[Delta]:
        step, seconds = self.core.step(self.now)
        self.now += seconds
        self.table.apply(step.kv)
        assert self.table.parents == self.core.cached
        for delta in step.deltas:
            assert delta.turn_id not in self.finish
            self.tokens.setdefault(delta.turn_id, []).extend(delta.tokens)
            if delta.finish:
                self.finish[delta.turn_id] = delta
        assert step.load.used_blocks <= step.load.total_blocks
        return step.deltas

    def all(self) -> None:
        for _ in range(20_000):
            if not self.core.live:
                return
            self.step()
        pytest.fail("turns never end")


turns = st.lists(
    st.tuples(st.integers(1, 40), st.integers(0, 4), st.integers(0, 30), st.integers(-2, 2), st.integers(0, 60)),
    min_size=1,
    max_size=14,
)


@settings(max_examples=150, deadline=None)
@given(turns=turns, blocks=st.integers(18, 40), batch=st.integers(1, 6), drafts=st.integers(1, 5), data=st.data())
def test_random_load_in_a_pool_far_too_small(
    turns: list[tuple[int, int, int, int, int]], blocks: int, batch: int, drafts: int, data: st.DataObject
) -> None:
    small = Limits(blocks=blocks, block_size=4, max_batch=batch, max_batched_tokens=16, watermark=0.1)
    run = Run(small, Arithmetic(drafts))
    wide = Run(Limits(blocks=4096, block_size=4, max_batch=64, max_batched_tokens=512))
    cancelled = set()
    pending = sorted(enumerate(turns), key=lambda item: item[1][4])
    for tick in range(61):
        while pending and pending[0][1][4] <= tick:
            number, (length, seed, most, priority, _) = pending.pop(0)
            turn = EngineTurn(f"t{number}", ids(length, seed), max_tokens=most, priority=priority)
            run.submit(turn)
            wide.submit(turn)
        if data.draw(st.booleans()) and run.core.live:
            name = f"t{data.draw(st.integers(0, len(turns) - 1))}"
            if name not in run.finish:
                run.core.cancel(EngineTurn(name, array("I")).key)
                cancelled.add(name)
        run.step()
    run.all()
    wide.all()
    assert run.executor.widest <= 16
    assert sorted(run.executor.ended) == sorted(f"t{n}" for n in range(len(turns)))
    for name, delta in run.finish.items():
        got, whole = run.tokens[name], wide.tokens[name]
        assert got == whole[: len(got)]
        assert got == whole or (delta.finish == "cancelled" and name in cancelled)
    step, _ = run.core.step(run.now)
    assert (step.load.used_blocks, step.load.running, step.load.waiting) == (0, 0, 0)
    assert step.load.waiting_prefill_tokens == 0


@settings(max_examples=60, deadline=None)
@given(length=st.integers(1, 60), most=st.integers(1, 60), cut=st.integers(0, 59), drafts=st.integers(1, 4))
def test_a_move_at_any_position_changes_nothing(length: int, most: int, cut: int, drafts: int) -> None:
    limits = Limits(blocks=64, block_size=4)
    whole, moved = Run(limits), Run(limits, Arithmetic(drafts))
    turn = EngineTurn("t", ids(length, 1), max_tokens=most)
    whole.submit(turn)
    whole.all()
    cut = min(cut, most - 1)
    moved.submit(replace(turn, attempt=1, generated=array("I", whole.tokens["t"][:cut])))
    first = moved.step()[0]
    assert first.offset == cut
    moved.all()
    assert whole.tokens["t"][:cut] + moved.tokens["t"] == whole.tokens["t"]


@given(length=st.integers(1, 60), most=st.integers(1, 20), salt=st.sampled_from(["", "tenant"]))
def test_hashes_that_come_with_a_turn_are_those_it_would_have_made(length: int, most: int, salt: str) -> None:
    prompt = ids(length, 1)
    known = block_hashes(prompt.tobytes(), 4, salt=salt)
    runs = [Run(Limits(blocks=64, block_size=4)), Run(Limits(blocks=64, block_size=4))]
    for run, hashes in zip(runs, (b"", known), strict=True):
        run.submit(EngineTurn("t", prompt, max_tokens=most, salt=salt, hashes=hashes))
        run.all()
    assert runs[0].tokens == runs[1].tokens
    assert runs[0].core.cached == runs[1].core.cached


def test_a_stop_token_is_the_last_one_and_counts_only_after_min_tokens() -> None:
    probe = Run(Limits())
    probe.submit(EngineTurn("p", ids(9, 1), max_tokens=20))
    probe.all()
    stop = probe.tokens["p"][4]
    run = Run(Limits(), Arithmetic(3))
    run.submit(EngineTurn("a", ids(9, 1), max_tokens=20, stop_token_ids=(stop,)))
    run.submit(EngineTurn("b", ids(9, 1), max_tokens=20, stop_token_ids=(stop,), min_tokens=5))
    run.submit(EngineTurn("c", ids(9, 1), max_tokens=20, stop_token_ids=(stop,), min_tokens=4))
    run.all()
    assert run.tokens["a"] == probe.tokens["p"][:5]
    assert (run.finish["a"].finish, run.finish["a"].stop_token) == ("stop", True)
    assert len(run.tokens["b"]) > 5
    assert run.tokens["c"] == run.tokens["a"]


def test_a_turn_of_no_tokens_only_fills_the_cache() -> None:
    run = Run(Limits(block_size=4))
    run.submit(EngineTurn("warm", ids(16, 1), max_tokens=0))
    run.all()
    assert (run.tokens["warm"], run.finish["warm"].finish) == ([], "length")
    assert len(run.table.parents) == 4


def test_a_fully_cached_prompt_still_computes_its_last_block() -> None:
    run = Run(Limits(block_size=4))
    for name in ("a", "b"):
        run.submit(EngineTurn(name, ids(16, 1), max_tokens=1))
        deltas = run.step()
    assert deltas[0].started is not None
    assert deltas[0].started.cached_tokens == 12


def test_a_long_prompt_does_not_stop_those_who_decode() -> None:
    run = Run(Limits(max_batched_tokens=32))
    run.submit(EngineTurn("short", ids(8, 1), max_tokens=9))
    run.step()
    run.submit(EngineTurn("long", ids(150, 2), max_tokens=1))
    for _ in range(4):
        deltas = {delta.turn_id: delta for delta in run.step()}
        assert len(deltas["short"].tokens) == 1
        assert "long" not in deltas or not deltas["long"].tokens


def test_greater_priority_leaves_the_queue_first() -> None:
    run = Run(Limits(max_batch=1))
    for name, priority in (("first", 0), ("low", -1), ("high", 5)):
        run.submit(EngineTurn(name, ids(8, 1), max_tokens=2, priority=priority))
    run.all()
    assert list(run.finish) == ["high", "first", "low"]


def test_turns_cancelled_in_the_queue_leave_nothing_behind() -> None:
    run = Run(Limits(max_batch=1))
    run.submit(EngineTurn("runs", ids(8, 1), max_tokens=4))
    for number in range(9):
        run.submit(EngineTurn(f"t{number}", ids(8, 1), max_tokens=1, priority=-number))
    for number in (3, 1, 4, 5, 0, 2, 6):
        run.core.cancel(EngineTurn(f"t{number}", array("I")).key)
    run.all()
    assert [name for name, delta in run.finish.items() if delta.finish == "length"] == ["runs", "t7", "t8"]
    assert not run.core._scheduler._waiting
    assert not run.core._scheduler._withdrawn


def test_a_deadline_ends_a_turn_that_waits_or_runs() -> None:
    run = Run(Limits(max_batch=1))
    for name in ("runs", "waits"):
        run.submit(EngineTurn(name, ids(8, 1), max_tokens=900, deadline=0.05))
    run.all()
    for name in ("runs", "waits"):
        error = run.finish[name].error
        assert run.finish[name].finish == "cancelled"
        assert error is not None
        assert error.code == "deadline_exceeded"


@pytest.mark.parametrize(
    ("turn", "field", "code"),
    [
        (EngineTurn("t", array("I")), "prompt", "invalid_value"),
        (EngineTurn("t", ids(64, 1)), "prompt", "context_length_exceeded"),
        (EngineTurn("t", ids(60, 1), generated=ids(4, 1)), "prompt", "context_length_exceeded"),
        (EngineTurn("t", ids(4, 1), max_tokens=-1), "max_tokens", "invalid_value"),
        (EngineTurn("t", ids(9, 1), hashes=bytes(8)), "hashes", "invalid_value"),
        (EngineTurn("known", ids(4, 1)), "turn_id", "invalid_request"),
    ],
)
def test_what_can_never_run_is_refused_and_named(turn: EngineTurn, field: str, code: str) -> None:
    run = Run(Limits(blocks=16, block_size=4))
    run.submit(EngineTurn("known", ids(4, 1)))
    with pytest.raises(RequestError) as refused:
        run.submit(turn)
    assert (refused.value.field, refused.value.code) == (field, code)


def test_a_full_queue_says_when_to_come_back() -> None:
    run = Run(Limits(max_waiting=1))
    run.submit(EngineTurn("a", ids(4, 1)))
    with pytest.raises(CapacityError) as refused:
        run.submit(EngineTurn("b", ids(4, 1)))
    assert refused.value.retry_after > 0


def test_the_context_is_the_pool_where_that_is_smaller() -> None:
    run = Run(Limits(blocks=8, block_size=4))
    run.submit(EngineTurn("a", ids(10, 1)))
    run.all()
    assert run.finish["a"].finish == "length"
    assert len(run.tokens["a"]) == 22


# --- retention --------------------------------------------------------------------------------------------------------

SMALL = Limits(blocks=12, block_size=4, context=64, max_batch=4, max_batched_tokens=64)
AWAY = Retention(priority=20, seconds=30.0)


def cached_of(run: Run, name: str, prompt: "array[int]") -> int:
    """Prompt tokens that a turn finds."""
    run.submit(EngineTurn(name, prompt, max_tokens=1))
    started = [delta.started for delta in run.step() if delta.turn_id == name and delta.started]
    run.all()
    return started[0].cached_tokens


@pytest.mark.parametrize(
    ("retention", "told", "left"),
    [
        (AWAY, None, 16),
        (AWAY, Retention(), 0),
        (Retention(), AWAY, 16),
        (Retention(), None, 0),
        (Retention(priority=-1), None, 0),
    ],
)
def test_a_session_away_in_a_tool_keeps_its_blocks_under_pressure(
    retention: Retention, told: Retention | None, left: int
) -> None:
    run = Run(SMALL)
    prompt = ids(17, seed=1)
    run.submit(EngineTurn("away", prompt, max_tokens=1, retention=retention, session="s"))
    run.all()
    if told is not None:
        run.core.retain("s", told, run.now)
    for other in range(2, 6):
        run.submit(EngineTurn(f"o{other}", ids(25, seed=other), max_tokens=1))
        run.all()
    assert cached_of(run, "back", prompt) == left


def test_a_session_that_is_over_leaves_before_those_that_were_there_longer() -> None:
    run = Run(SMALL)
    older, over = ids(17, seed=1), ids(17, seed=2)
    for name, prompt in (("older", older), ("over", over)):
        run.submit(EngineTurn(name, prompt, max_tokens=1, session=name))
        run.all()
    run.core.retain("over", Retention(priority=-1), run.now)
    run.submit(EngineTurn("new", ids(25, seed=3), max_tokens=1))
    run.all()
    assert cached_of(run, "again", older) == 16


def test_what_is_told_right_after_a_cancel_counts_for_the_turn_that_it_ends() -> None:
    run = Run(SMALL)
    prompt = ids(17, seed=1)
    turn = EngineTurn("t", prompt, max_tokens=9, retention=AWAY, session="s")
    run.submit(turn)
    run.step()
    run.core.cancel(turn.key)
    run.core.retain("s", Retention(), run.now)
    for other in range(2, 6):
        run.submit(EngineTurn(f"o{other}", ids(25, seed=other), max_tokens=1))
        run.all()
    assert cached_of(run, "back", prompt) == 0


def test_when_its_time_is_over_a_session_is_like_any_other() -> None:
    run = Run(SMALL)
    prompt = ids(17, seed=1)
    run.submit(EngineTurn("away", prompt, max_tokens=1, retention=AWAY, session="s"))
    run.all()
    run.now += 31.0
    for other in range(2, 6):
        run.submit(EngineTurn(f"o{other}", ids(25, seed=other), max_tokens=1))
        run.all()
    assert cached_of(run, "back", prompt) == 0
