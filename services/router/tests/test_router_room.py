"""Who has room."""

from catenary_protocols.bus.messages import LiveTurn
from catenary_protocols.ids import TurnKey
from catenary_router.core.fleet import SETTLE_S
from catenary_router.core.marks import marks_of
from catenary_router.core.room import SPARE
from catenary_router.core.running import Running
from catenary_router.testing import BLOCK, Stage, prompt
from hypothesis import given
from hypothesis import strategies as st

OUTPUT_BLOCKS = 128 // BLOCK + 1
"""What the stage's turns will generate, and the begun block."""


def two(held: dict[str, list[int]], **load: int) -> Stage:
    stage = Stage()
    for name in ("w0", "w1"):
        stage.worker(name, kv_total=1000, running=1, **load)
        stage.held[name] |= set(held.get(name, []))
    return stage


# --- blocks that turns share ----------------------------------------------------------------------------------------


def test_what_is_only_cached_needs_room_like_anything_else() -> None:
    blocks = prompt((1, 400))
    stage = two({"w0": blocks}, kv_used=600)
    stage.place("t", blocks, max_tokens=128)
    assert stage.where("t") == "queued"


def test_what_a_running_turn_holds_needs_no_room_again() -> None:
    shared = prompt((1, 512))
    stage = two({})
    first = stage.placed("first", shared)
    stage.worker(first, turns=(LiveTurn(turn_id="first", at="t0", offset=1),), kv_used=900)
    other = {"w0": "w1", "w1": "w0"}[first]
    stage.worker(other, kv_used=900)
    assert stage.placed("second", [*shared, *prompt((2, 10))]) == first


def test_a_turn_that_ended_holds_nothing() -> None:
    shared = prompt((1, 512))
    stage = Stage()
    stage.worker("w0", kv_total=1000)
    stage.placed("first", shared)
    stage.worker("w0", ended=(TurnKey(turn_id="first"),), running=1, kv_used=600)
    stage.place("second", shared)
    assert stage.where("second") == "queued"


def test_a_turn_that_beats_do_not_name_holds_nothing() -> None:
    stage = Stage()
    stage.worker("w0", kv_total=1000)
    stage.placed("first", prompt((1, 512)))
    running = stage.desk.fleet.workers["w0"].running
    stage.runs("w0", "first")
    assert running.held(marks_of(prompt((1, 512)))) == marks_of(prompt((1, 512)))[-1][0]
    stage.now += SETTLE_S + 0.1
    stage.worker("w0", turns=(LiveTurn(turn_id="another", at="t0"),))
    assert running.held(marks_of(prompt((1, 512)))) == 0


def test_a_share_of_the_cache_stays_free_for_what_is_generated() -> None:
    fits = int(1000 * (1.0 - SPARE)) - OUTPUT_BLOCKS - 100
    for blocks, where in ((fits, "w0"), (fits + 1, "queued")):
        stage = Stage()
        stage.worker("w0", kv_total=1000, running=1, kv_used=100)
        stage.place("t", prompt((1, blocks)))
        assert stage.where("t") == where


@given(st.integers(0, 3000), st.integers(0, 300), st.integers(0, 300))
def test_what_two_prompts_share_is_found_to_a_sixteenth_and_never_more(common: int, one: int, two: int) -> None:
    running = Running()
    running.placed("first", marks_of(prompt((1, common), (2, one))), 0.0)
    held = running.held(marks_of(prompt((1, common), (3, two))))
    assert common - common / 16 - 1 <= held <= common
    running.release("first")
    assert running.held(marks_of(prompt((1, common)))) == 0
