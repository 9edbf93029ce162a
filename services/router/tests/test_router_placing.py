"""Where turns go."""

from collections import Counter

import pytest
from catenary_protocols.bus.messages import Placement, Refused
from catenary_protocols.conversation import Hints, Within
from catenary_router.core.fleet import STEP_S
from catenary_router.testing import BLOCK, Stage, prompt


def fleet(*names: str, **options: object) -> Stage:
    stage = Stage(**options)  # type: ignore[arg-type]
    for name in names:
        stage.worker(name)
    return stage


def test_the_worker_with_the_prefix_wins_among_equals() -> None:
    stage = fleet("w0", "w1", "w2")
    blocks = prompt((1, 100))
    stage.held["w2"] = set(blocks[:60])
    assert stage.placed("t", blocks) == "w2"


def test_a_warm_but_saturated_worker_loses_to_an_idle_one() -> None:
    stage = fleet("w0", "w1")
    blocks = prompt((1, 8))
    stage.held["w0"] = set(blocks)
    stage.worker("w0", running=40, waiting_prefill=50_000)
    assert stage.placed("t", blocks) == "w1"


def test_a_long_prefix_is_worth_a_short_wait() -> None:
    stage = fleet("w0", "w1")
    blocks = prompt((1, 2000))
    stage.held["w0"] = set(blocks)
    stage.worker("w0", running=20, waiting_prefill=8_000)
    assert stage.placed("t", blocks) == "w0"


def test_speed_is_what_the_worker_reports() -> None:
    stage = fleet("w0", "w1")
    stage.worker("w0", prefill_tokens_per_s=1_000.0)
    stage.worker("w1", prefill_tokens_per_s=50_000.0, waiting_prefill=4_000)
    assert stage.placed("t", prompt((1, 100))) == "w1"


def test_a_worker_that_has_not_reported_does_not_look_faster_than_one_that_has() -> None:
    stage = fleet("w0", "w1")
    blocks = prompt((1, 20))
    stage.held["w0"] = set(blocks[:12])
    stage.worker("w0", prefill_tokens_per_s=6_000.0)
    assert stage.placed("t", blocks) == "w0"


def test_a_tie_goes_to_the_sessions_last_worker() -> None:
    for last in ("w0", "w1", "w2", "w3"):
        stage = fleet("w0", "w1", "w2", "w3")
        assert stage.placed("t", prompt((1, 8)), last_worker=last) == last


def test_ties_of_new_sessions_spread() -> None:
    chosen = Counter(fleet("w0", "w1", "w2", "w3").placed(f"t{n}", prompt((1, 8))) for n in range(200))
    assert set(chosen) == {"w0", "w1", "w2", "w3"}
    assert max(chosen.values()) < 100


def test_siblings_of_a_long_prefix_share_one_prefill_before_any_event_comes() -> None:
    stage = fleet("w0", "w1", "w2", "w3")
    workers = Counter(stage.placed(f"child{n}", prompt((1, 2000), (n, 4))) for n in range(8))
    assert max(workers.values()) >= 4
    assert len(workers) <= 2


def test_in_an_idle_mesh_nobody_is_harmed_by_computing_a_prefix_once_more() -> None:
    def second(running: int) -> str:
        stage = fleet("w0", "w1")
        for name in ("w0", "w1"):
            stage.worker(name, running=running)
        first = stage.placed("first", prompt((1, 400), (2, 200)))
        stage.placed("second", prompt((1, 400), (3, 10)))
        return "the same" if stage.where("second") == first else "another"

    assert (second(0), second(10)) == ("another", "the same")


def test_a_short_shared_prefix_does_not_stampede_one_worker() -> None:
    stage = fleet("w0", "w1", "w2", "w3")
    workers = Counter(stage.placed(f"t{n}", prompt((1, 8))) for n in range(40))
    assert max(workers.values()) <= 24


def test_a_prompt_everyone_shares_does_not_keep_one_worker_busy_alone() -> None:
    names = ("w0", "w1", "w2", "w3")
    stage = fleet(*names)
    running: dict[str, list[str]] = {name: [] for name in names}
    for number in range(200):
        blocks = prompt((1, 400), (1000 + number, 30))
        turn = f"t{number}"
        worker = stage.placed(turn, blocks)
        stage.held[worker] |= set(blocks)
        running[worker].append(turn)
        stage.now += 0.4
        for name in names:
            stage.runs(name, *running[name][-20:])
    shares = [len(turns) for turns in running.values()]
    assert max(shares) <= 1.5 * sum(shares) / len(shares)


def test_siblings_wait_for_their_prefix_where_it_is_computed_though_that_takes_long() -> None:
    stage = fleet("w0", "w1", "w2", "w3")
    first = stage.placed("first", prompt((1, 4000)))
    for waiting in (62_000, 60_000):
        stage.runs(first, "first", waiting_prefill=waiting)
        stage.now += STEP_S + 0.1
    assert {stage.placed(f"child{n}", prompt((1, 4000), (n, 4))) for n in range(7)} == {first}


def test_new_sessions_spread_over_caches_before_these_are_full() -> None:
    stage = fleet("w0", "w1", "w2", "w3")
    homes = Counter[str]()
    for session in range(48):
        blocks = prompt((1000 + session, 500))
        worker = stage.placed(f"t{session}", blocks, session=f"s{session}")
        stage.held[worker] |= set(blocks)
        homes[worker] += 1
        stage.now += 5
        for name in ("w0", "w1", "w2", "w3"):
            stage.worker(name)
    assert max(homes.values()) <= 14


def test_a_dead_worker_gets_nothing_and_its_sessions_go_elsewhere() -> None:
    stage = fleet("w0", "w1")
    blocks = prompt((1, 50))
    stage.held["w0"] = set(blocks)
    assert stage.placed("t0", blocks, session="s") == "w0"
    stage.dies("w0")
    for n in range(50):
        assert stage.placed(f"u{n}", blocks, session="s", last_worker="w0") == "w1"


def test_a_session_returns_to_its_worker_though_no_event_ever_comes() -> None:
    stage = fleet("w0", "w1", "w2", events=False)
    first = stage.placed("t0", prompt((1, 50)), session="s")
    for turn in range(1, 6):
        stage.now += 20
        for name in ("w0", "w1", "w2"):
            stage.worker(name)
        assert stage.placed(f"t{turn}", prompt((1, 50 + turn)), session="s") == first


def test_a_session_goes_home_while_the_index_is_silent_unless_that_would_take_longer() -> None:
    stage = fleet("w0", "w1")
    stage.held["w0"] = set(prompt((1, 200)))
    assert stage.placed("t0", prompt((1, 200), (2, 30)), session="s") == "w0"
    stage.runs("w0", "other")
    stage.wait(60.0)
    stage.index = False
    assert stage.placed("t1", prompt((1, 200), (2, 30), (3, 30)), session="s") == "w0"
    assert stage.placed("t2", prompt((4, 200)), session="new") == "w1"
    stage.worker("w0", waiting_prefill=40_000)
    assert stage.placed("t3", prompt((1, 200), (2, 30), (3, 60)), session="s") == "w1"


def test_expected_blocks_are_forgotten_where_events_say_otherwise() -> None:
    stage = fleet("w0", "w1")
    stage.placed("t0", prompt((1, 50)))
    stage.now += 30
    stage.worker("w0")
    stage.worker("w1")
    answer = stage.place("t1", prompt((1, 50)))
    assert isinstance(answer, Placement)
    assert answer.overlap == 0


def test_another_card_and_another_block_size_do_not_qualify() -> None:
    stage = fleet("w0", "w1", "w2")
    stage.worker("w0", card="another")
    stage.worker("w1", block_size=BLOCK * 2)
    assert stage.placed("t", prompt((1, 8))) == "w2"


def test_draining_and_unready_workers_get_nothing() -> None:
    stage = fleet("w0", "w1", "w2")
    stage.worker("w0", draining=True)
    stage.worker("w1", ready=False)
    assert {stage.placed(f"t{n}", prompt((n, 8))) for n in range(10)} == {"w2"}


def test_a_turn_runs_only_where_it_may() -> None:
    stage = fleet("w0", "w1", "w2")
    stage.worker("w1", tags=("eu", "h200"), running=9)
    stage.worker("w2", tags=("eu",))
    warm = prompt((1, 40))
    stage.held["w0"] |= set(warm)
    assert stage.placed("by-name", warm, within=Within(workers=("w1", "w9"))) == "w1"
    assert stage.placed("by-tags", warm, within=Within(tags=("eu", "h200"))) == "w1"
    assert stage.placed("by-tag", warm, within=Within(tags=("eu",))) == "w2"
    answer = stage.place("nowhere", warm, within=Within(tags=("us",)))
    assert isinstance(answer, Refused)
    assert (answer.error.code, answer.error.retry_after) == ("no_worker", 2.0)


def test_a_turn_that_waits_for_its_own_worker_holds_nobody_up() -> None:
    stage = fleet("w0", "w1")
    stage.worker("w0", max_batch=1, running=1)
    stage.place("mine", prompt((1, 4)), within=Within(workers=("w0",)))
    assert stage.where("mine") == "queued"
    stage.place("any", prompt((2, 4)))
    assert stage.where("any") == "w1"
    stage.dies("w0")
    stage.wait(2.0)
    assert stage.where("mine") == "no_worker"


def test_workers_to_avoid_are_used_only_when_there_is_no_other() -> None:
    stage = fleet("w0", "w1")
    assert stage.placed("t0", prompt((1, 8)), not_on=("w0",)) == "w1"
    assert stage.placed("t1", prompt((1, 8)), not_on=("w1",)) == "w0"
    assert stage.placed("t2", prompt((1, 8)), not_on=("w0", "w1")) in {"w0", "w1"}


def test_a_turn_nobody_waits_for_takes_the_longer_queue_to_save_work() -> None:
    def worker_for(sensitivity: float) -> str:
        stage = fleet("w0", "w1")
        stage.worker("w0", running=4, waiting_prefill=13_000)
        stage.worker("w1", running=4)
        blocks = prompt((1, 400))
        stage.held["w0"] = set(blocks)
        return stage.placed("t", blocks, hints=Hints(latency_sensitivity=sensitivity))

    assert (worker_for(0.0), worker_for(1.0)) == ("w0", "w1")


def test_a_placement_tells_why() -> None:
    stage = fleet("w0", "w1", "w2")
    blocks = prompt((1, 100))
    stage.held["w1"] = set(blocks[:50])
    answer = stage.place("t", blocks)
    assert isinstance(answer, Placement)
    assert answer.candidates[0].worker == "w1"
    assert [one.overlap for one in answer.candidates] == [50, 0, 0]
    costs = [one.cost for one in answer.candidates]
    assert costs == sorted(costs)


@pytest.mark.parametrize("policy", ["kv", "kv_dynamo", "round_robin", "least_loaded", "random", "direct"])
def test_every_policy_uses_an_idle_fleet(policy: str) -> None:
    stage = fleet("w0", "w1", "w2", "w3", policy=policy)
    used = Counter(stage.placed(f"t{n}", prompt((n, 8))) for n in range(100))
    assert set(used) == {"w0", "w1", "w2", "w3"}


def test_round_robin_takes_turns() -> None:
    stage = fleet("w0", "w1", "w2", policy="round_robin")
    order = [stage.placed(f"t{n}", prompt((n, 8))) for n in range(6)]
    assert order[:3] == order[3:]
    assert set(order) == {"w0", "w1", "w2"}


def test_direct_goes_where_the_request_says() -> None:
    stage = fleet("w0", "w1", "w2", policy="direct")
    assert [stage.placed(f"t{n}", prompt((n, 8)), last_worker="w1") for n in range(5)] == ["w1"] * 5


def test_a_model_nobody_serves_is_refused_with_a_time() -> None:
    stage = fleet("w0")
    answer = stage.place("t", prompt((1, 8)), model="other")
    assert isinstance(answer, Refused)
    assert answer.error.code == "no_worker"
    assert answer.error.retry_after > 0
    stage.now += 10
    stage.worker("w0", ready=False)
    answer = stage.place("u", prompt((1, 8)))
    assert isinstance(answer, Refused)
    assert answer.error.code == "model_not_ready"


def test_a_prompt_no_cache_can_hold_is_refused_at_once() -> None:
    stage = fleet("w0")
    stage.worker("w0", kv_total=10)
    answer = stage.place("t", prompt((1, 10)))
    assert isinstance(answer, Refused)
    assert answer.error.code == "context_length_exceeded"


def test_where_some_prefill_and_some_decode_a_placement_names_both() -> None:
    stage = Stage()
    stage.worker("d0", halves=("decode", "whole"), running=5)
    stage.worker("d1", halves=("decode", "whole"))
    alone = stage.place("alone", prompt((1, 4)))
    assert isinstance(alone, Placement)
    assert (alone.worker, alone.decode) == ("d1", ""), "one that decodes does all of it where nobody prefills"
    stage.worker("p0", halves=("prefill",))
    both = stage.place("split", prompt((1, 4)))
    assert isinstance(both, Placement)
    assert (both.worker, both.decode, both.decode_incarnation) == ("p0", "d1", 1)
    stage.dies("p0")
    assert stage.placed("again", prompt((1, 4))) in {"d0", "d1"}


def test_who_only_prefills_gets_nothing_where_nobody_decodes() -> None:
    stage = fleet("w0")
    stage.worker("p0", halves=("prefill",))
    stage.worker("w0", running=9)
    assert stage.placed("t", prompt((1, 4))) == "w0"
    alone = Stage()
    alone.worker("p0", halves=("prefill",))
    alone.place("t", prompt((1, 4)))
    assert alone.where("t") == "model_not_ready"


def test_siblings_stay_with_their_long_prefix_however_long_the_steps_of_so_many_are() -> None:
    stage = Stage()
    prefix = prompt((1, 2048))
    for name in ("w0", "w1", "w2", "w3"):
        stage.worker(name, prefill_tokens_per_s=48_000.0)
    stage.held["w0"] |= set(prefix)
    stage.runs("w0", *(f"s{n}" for n in range(7)), decode_ms=45.0)
    assert stage.placed("s7", [*prefix, *prompt((7, 20))]) == "w0"
