"""What counts as load, and until when."""

from catenary_protocols.bus.messages import LiveTurn, Placement
from catenary_protocols.ids import TurnKey
from catenary_router.core.fleet import SETTLE_S, STEP_S
from catenary_router.testing import Stage, prompt
from hypothesis import given
from hypothesis import strategies as st


def one_worker(**load: int) -> Stage:
    stage = Stage()
    stage.worker("w0", **load)
    return stage


def load_of(stage: Stage) -> tuple[int, float, int]:
    worker = stage.desk.fleet.workers["w0"]
    return worker.turns, worker.queued_tokens, worker.used_blocks


def test_a_placement_counts_at_once_and_the_beat_takes_over() -> None:
    stage = one_worker()
    stage.placed("t", prompt((1, 8)))
    assert load_of(stage) == (1, 129, 17)
    stage.runs("w0", "t", running=0)  # it came after the step whose numbers these are
    assert load_of(stage) == (1, 129, 17)
    stage.now += STEP_S + 0.1
    stage.runs("w0", "t", waiting_prefill=100, kv_used=9)
    assert load_of(stage) == (1, 100, 9)
    stage.runs("w0", waiting_prefill=0, kv_used=0)
    assert load_of(stage) == (0, 0, 0)


def test_between_two_beats_prefill_goes_on_at_the_workers_pace() -> None:
    stage = Stage()
    stage.worker("w0", waiting_prefill=1000, prefill_tokens_per_s=1000.0)
    stage.placed("t", prompt((1, 8)))
    worker = stage.desk.fleet.workers["w0"]
    assert worker.queued_tokens == 1129
    worker.work(stage.now + 0.5)
    assert worker.queued_tokens == 629
    worker.work(stage.now + 60)
    assert worker.queued_tokens == 0
    stage.worker("w0", waiting_prefill=400, prefill_tokens_per_s=1000.0, running=1)
    assert worker.queued_tokens == 529, "a beat is the truth again"


@given(
    st.lists(st.tuples(st.sampled_from(["place", "cancel", "wait", "beat"]), st.integers(0, 4)), max_size=40),
    st.floats(0, 1e5),
)
def test_the_queue_is_never_less_than_nothing_nor_more_than_was_put_there(
    steps: list[tuple[str, int]], pace: float
) -> None:
    stage = Stage()
    stage.worker("w0", prefill_tokens_per_s=pace)
    worker = stage.desk.fleet.workers["w0"]
    for what, number in steps:
        if what == "place":
            stage.place(f"t{number}", prompt((number, 8)))
        elif what == "cancel":
            stage.cancel(f"t{number}")
        elif what == "beat":
            stage.worker("w0", prefill_tokens_per_s=pace, waiting_prefill=100 * number)
        else:
            stage.now += number / 20
            worker.work(stage.now)
        assert 0 <= worker.queued_tokens <= worker.beat.waiting_prefill + worker.placed_tokens


def test_a_turn_that_moves_on_is_in_the_beats_numbers() -> None:
    stage = one_worker()
    stage.placed("t", prompt((1, 8)))
    stage.worker("w0", turns=(LiveTurn(turn_id="t", at="t0", offset=1),), running=1)
    assert load_of(stage) == (1, 0, 0)


def test_a_moved_turn_begins_with_the_offset_it_had() -> None:
    stage = one_worker()
    stage.placed("t", prompt((1, 8)), attempt=1)
    stage.worker("w0", turns=(LiveTurn(turn_id="t", at="t0", attempt=1, offset=7),), running=0)
    assert load_of(stage)[0] == 1
    stage.worker("w0", turns=(LiveTurn(turn_id="t", at="t0", attempt=1, offset=8),), running=1)
    assert load_of(stage) == (1, 0, 0)


def test_a_turn_that_ended_between_two_beats_is_not_kept() -> None:
    stage = one_worker()
    stage.placed("t", prompt((1, 8)))
    stage.worker("w0", ended=(TurnKey(turn_id="t"),))
    assert load_of(stage) == (0, 0, 0)


def test_a_beat_that_was_under_way_does_not_forget_a_placement() -> None:
    stage = one_worker()
    stage.placed("t", prompt((1, 8)))
    stage.now += 0.1
    stage.worker("w0")
    assert load_of(stage)[0] == 1


def test_a_turn_that_never_came_is_forgotten_after_three_beats() -> None:
    stage = one_worker()
    stage.placed("t", prompt((1, 8)))
    stage.now += SETTLE_S + 0.1
    stage.worker("w0")
    assert load_of(stage) == (0, 0, 0)


def test_a_cancel_frees_and_a_second_one_does_nothing() -> None:
    stage = one_worker()
    stage.placed("t", prompt((1, 8)))
    stage.cancel("t")
    stage.cancel("t")
    assert load_of(stage) == (0, 0, 0)


def test_the_next_attempt_frees_the_one_before() -> None:
    stage = one_worker()
    stage.placed("t", prompt((1, 8)))
    stage.placed("t", prompt((1, 8)), attempt=1)
    assert load_of(stage)[0] == 1


def test_the_same_attempt_gets_the_same_answer_and_counts_once() -> None:
    stage = one_worker()
    stage.worker("w1")
    first = stage.place("t", prompt((1, 8)))
    assert stage.place("t", prompt((1, 8))) == first
    assert sum(worker.turns for worker in stage.desk.fleet.workers.values()) == 1


def test_the_same_attempt_is_placed_anew_when_its_worker_restarted() -> None:
    stage = one_worker()
    first = stage.place("t", prompt((1, 8)))
    stage.worker("w0", incarnation=2)
    again = stage.place("t", prompt((1, 8)))
    assert isinstance(first, Placement)
    assert isinstance(again, Placement)
    assert (first.worker_incarnation, again.worker_incarnation) == (1, 2)


def test_an_older_attempt_is_not_answered_while_a_newer_one_waits() -> None:
    stage = one_worker(max_batch=1, running=1)
    stage.place("t", prompt((1, 8)), attempt=3)
    before = len(stage.answers["t"])
    stage.place("t", prompt((1, 8)), attempt=2)
    assert len(stage.answers["t"]) == before


def test_a_restarted_worker_begins_with_nothing_placed_on_it() -> None:
    stage = one_worker()
    stage.placed("t", prompt((1, 8)))
    stage.worker("w0", incarnation=2)
    assert load_of(stage) == (0, 0, 0)


ends = st.sampled_from(["finished", "aborted", "error", "twice", "silent"])


@given(st.lists(st.tuples(ends, st.integers(1, 40)), max_size=30))
def test_whatever_ends_turns_no_load_is_left(turns: list[tuple[str, int]]) -> None:
    stage = one_worker()
    for number, (end, blocks) in enumerate(turns):
        name = f"t{number}"
        stage.placed(name, prompt((number, blocks)))
        if end == "finished":
            stage.runs("w0", name)
            stage.runs("w0")
        elif end == "error":
            stage.worker("w0", ended=(TurnKey(turn_id=name),))
        elif end != "silent":
            stage.cancel(name)
            if end == "twice":
                stage.cancel(name)
    stage.now += SETTLE_S + 0.1
    stage.worker("w0", ended=())
    assert load_of(stage) == (0, 0, 0)
    worker = stage.desk.fleet.workers["w0"]
    assert (worker.placed, worker.placed_tokens, worker.placed_blocks) == ({}, 0, 0)
