"""Why a turn runs where it does, told later."""

import msgspec
from catenary_protocols.bus.messages import Placement
from catenary_router.core.history import Decision, History
from catenary_router.testing import Stage, prompt


def test_a_placement_is_told_as_it_was_seen() -> None:
    stage = Stage()
    blocks = prompt((1, 100))
    stage.worker("w0", running=3, prefill_tokens_per_s=10_000.0, waiting_prefill=500)
    stage.worker("w1", running=1)
    stage.held["w0"].update(blocks[:80])
    assert stage.placed("t", blocks) == "w0"
    (decision,) = stage.desk.history.of("t")
    assert (decision.worker, decision.policy, decision.reason) == ("w0", "kv", "overlap")
    assert (decision.blocks, decision.block_size, decision.prompt_tokens) == (100, 16, 1601)
    first, second = decision.considered
    assert (first.worker, first.overlap, first.turns, first.queued_ms) == ("w0", 80, 3, 50.0)
    assert (second.worker, second.overlap, second.turns) == ("w1", 0, 1)
    assert first.cost < second.cost


def test_attempts_of_a_turn_stay_together() -> None:
    stage = Stage()
    stage.worker("w0")
    stage.worker("w1")
    first = stage.placed("t", prompt((1, 4)))
    second = stage.placed("t", prompt((1, 4)), attempt=1, not_on=(first,))
    assert [(one.attempt, one.worker) for one in stage.desk.history.of("t")] == [(0, first), (1, second)]


def test_only_the_last_placements_are_kept() -> None:
    stage = Stage()
    stage.desk.history = History(kept=2)
    stage.worker("w0")
    for number in range(3):
        stage.placed(f"t{number}", prompt((number, 4)))
    assert [len(stage.desk.history.of(f"t{number}")) for number in range(3)] == [0, 1, 1]


def test_a_placement_that_is_to_be_explained_tells_what_the_history_has_and_fits_a_header() -> None:
    stage = Stage()
    for number in range(20):
        stage.worker(f"wörker{number}", waiting_prefill=100 * number, running=1)
    answer = stage.place("t", prompt((1, 8)), explain=True)
    assert isinstance(answer, Placement)
    (decision,) = stage.desk.history.of("t")
    assert msgspec.json.decode(answer.why, type=Decision) == decision
    assert len(decision.considered) == 8
    assert answer.why.isascii()
    assert len(answer.why) < 2000
    plain = stage.place("u", prompt((1, 8)))
    assert isinstance(plain, Placement)
    assert plain.why == ""
