"""Turns that wait for room: order, fairness, bounds."""

from collections import Counter
from itertools import count

from catenary_protocols.bus.messages import PlaceQueued, Refused
from catenary_protocols.conversation import Hints
from catenary_protocols.ids import TurnKey
from catenary_router.core.queue import PRIORITY_S, FairQueue
from catenary_router.core.room import Limits
from catenary_router.testing import Stage, prompt
from hypothesis import given
from hypothesis import strategies as st

_names = count()


def full_worker(*, limits: Limits | None = None) -> Stage:
    stage = Stage(limits=limits)
    stage.worker("w0", max_batch=1, running=1)
    return stage


def served(stage: Stage, turns: int) -> list[str]:
    """Free the one slot again and again; who gets it, in order."""
    order: list[str] = []
    for _ in range(turns):
        waiting = set(stage.desk.queue)
        done = tuple(TurnKey(turn_id=one) for one in stage.desk.fleet.workers["w0"].placed)
        stage.worker("w0", running=0, ended=done)
        order += [turn for turn in waiting if stage.where(turn) == "w0"]
    return order


def test_a_turn_without_room_is_queued_and_told_each_second() -> None:
    stage = full_worker()
    stage.place("t", prompt((1, 8)))
    stage.wait(3.05)
    positions = [one.position for one in stage.answers["t"] if isinstance(one, PlaceQueued)]
    assert positions == [1, 1, 1, 1]


def test_turns_are_served_in_order_of_arrival() -> None:
    stage = full_worker()
    for number in range(4):
        stage.place(f"t{number}", prompt((number, 8)))
        stage.now += 0.01
    assert served(stage, 4) == ["t0", "t1", "t2", "t3"]


def test_a_turn_that_was_placed_before_keeps_its_first_arrival() -> None:
    stage = full_worker()
    stage.now += 10
    stage.place("new", prompt((1, 8)))
    stage.place("moved", prompt((2, 8)), attempt=1, arrived_at=stage.now - 5)
    assert served(stage, 2) == ["moved", "new"]


def test_strict_priority_goes_before_priority_and_priority_before_arrival() -> None:
    stage = full_worker()
    stage.place("plain", prompt((1, 8)))
    stage.place("high", prompt((2, 8)), hints=Hints(priority=2))
    stage.place("strict", prompt((3, 8)), hints=Hints(strict_priority=1))
    assert served(stage, 3) == ["strict", "high", "plain"]


def test_low_priority_is_never_starved() -> None:
    stage = full_worker()
    stage.place("low", prompt((1, 8)))
    for number in range(200):
        stage.place(f"high{number}", prompt((100 + number, 8)), hints=Hints(priority=1))
        served(stage, 1)
        stage.now += 0.1
        if stage.where("low") == "w0":
            break
    assert stage.where("low") == "w0"
    assert number * 0.1 <= PRIORITY_S + 1


def test_a_flooding_session_does_not_hold_up_others() -> None:
    stage = full_worker()
    for number in range(100):
        stage.place(f"flood{number}", prompt((1, 100), (number, 100)), session="flood")
    stage.now += 0.01
    stage.place("other", prompt((2, 8)), session="other")
    order = served(stage, 3)
    assert "other" in order


def test_a_session_that_asked_for_much_at_once_leaves_others_their_share_all_along() -> None:
    stage = full_worker(limits=Limits(queue=10_000, wait_s=1e6))
    for _ in range(300):
        stage.place(f"flood-{next(_names)}", prompt((next(_names), 40)), session="flood")
    waits = []
    for number in range(60):  # another session asks every third time a slot is free
        name = f"other-{number}"
        stage.place(name, prompt((next(_names), 40)), session="other")
        waits.append(next(at for at in range(1, 9) if name in served(stage, 1)))
        served(stage, 3 - min(3, waits[-1]))
    assert max(waits) <= 2


def test_what_was_cancelled_costs_its_session_nothing() -> None:
    stage = full_worker()
    for number in range(50):
        stage.place(f"early{number}", prompt((number, 40)), session="hasty")
    stage.place("other", prompt((60, 40)), session="other")
    for number in range(50):
        stage.cancel(f"early{number}")
    stage.place("late", prompt((70, 40)), session="hasty")
    assert served(stage, 2) == ["other", "late"]


def test_sessions_that_ask_for_too_much_get_equal_shares() -> None:
    stage = full_worker(limits=Limits(queue=10_000, wait_s=1e6))
    for session in range(4):
        for _ in range(200 if session == 0 else 50):
            stage.place(f"{session}-{next(_names)}", prompt((next(_names), 40)), session=f"s{session}")
    shares = Counter(turn.partition("-")[0] for turn in served(stage, 160))
    jain = sum(shares.values()) ** 2 / (4 * sum(share**2 for share in shares.values()))
    assert jain >= 0.95


def test_of_more_turns_than_may_wait_the_one_that_would_be_served_last_is_refused() -> None:
    stage = full_worker(limits=Limits(queue=4))
    for number in range(4):
        stage.place(f"flood{number}", prompt((number, 40)), session="flood")
    stage.place("other", prompt((50, 40)), session="other")
    stage.place("high", prompt((60, 40)), session="urgent", hints=Hints(priority=2))
    stage.place("low", prompt((70, 40)), session="patient", hints=Hints(priority=-2))
    assert [stage.where(f"flood{number}") for number in range(4)] == ["queued", "queued", "queue_full", "queue_full"]
    assert (stage.where("other"), stage.where("high"), stage.where("low")) == ("queued", "queued", "queue_full")
    assert len(stage.desk.queue) == 4


def test_a_full_queue_refuses_with_a_time_that_is_true() -> None:
    stage = full_worker(limits=Limits(queue=10))
    for number in range(40):  # ten a second are served
        stage.place(f"early{number}", prompt((number, 8)))
        served(stage, 1)
        stage.now += 0.1
    for number in range(10):
        stage.place(f"t{number}", prompt((number, 8)))
    refused = stage.place("late", prompt((99, 8)))
    assert isinstance(refused, Refused)
    assert refused.error.code == "queue_full"
    waited = 0.0
    while stage.desk.queue.full:
        served(stage, 1)
        stage.now += 0.1
        waited += 0.1
    assert waited <= refused.error.retry_after <= 10


def test_a_deadline_in_the_queue_is_kept() -> None:
    stage = full_worker()
    stage.place("t", prompt((1, 8)), deadline=stage.now + 2)
    stage.wait(1.9)
    assert stage.where("t") == "queued"
    stage.wait(0.3)
    assert stage.where("t") == "deadline_exceeded"
    assert len(stage.desk.queue) == 0


def test_nobody_waits_for_ever() -> None:
    stage = full_worker(limits=Limits(wait_s=5))
    stage.place("t", prompt((1, 8)))
    stage.wait(5.2)
    assert stage.where("t") == "overloaded"


def test_cancelled_turns_and_those_of_a_dead_tokenizer_leave() -> None:
    stage = full_worker()
    stage.place("a", prompt((1, 8)))
    stage.place("b", prompt((2, 8)))
    stage.place("c", prompt((3, 8)), tokenizer_incarnation=2)
    stage.cancel("a")
    stage.desk.owner_gone("t0", 1)
    assert list(stage.desk.queue) == ["c"]


def test_queued_prefill_is_no_room() -> None:
    stage = Stage()
    stage.worker("w0", running=2, waiting_prefill=100_000)
    stage.place("t", prompt((1, 8)))
    assert stage.where("t") == "queued"
    stage.worker("w0", waiting_prefill=0)
    assert stage.where("t") == "w0"


def test_kv_space_is_room_too_but_an_idle_worker_always_has_some() -> None:
    stage = Stage()
    stage.worker("w0", running=1, kv_total=100, kv_used=95)
    stage.place("t", prompt((1, 8)))
    assert stage.where("t") == "queued"
    stage.worker("w0", running=0, kv_used=0)
    assert stage.where("t") == "w0"


def test_a_model_whose_last_worker_died_is_waited_for_and_then_refused() -> None:
    stage = Stage()
    stage.worker("w0")
    stage.dies("w0")
    stage.place("t", prompt((1, 8)))
    stage.place("u", prompt((2, 8)))
    assert stage.where("t") == "queued"
    stage.wait(3)
    stage.cancel("u")
    assert stage.where("t") == "queued"
    stage.wait(3)
    assert stage.where("t") == "no_worker"


def test_a_worker_that_comes_back_gets_who_waited() -> None:
    stage = Stage()
    stage.worker("w0")
    stage.dies("w0")
    stage.place("t", prompt((1, 8)))
    stage.wait(2)
    stage.worker("w1")
    assert stage.where("t") == "w1"


def test_one_models_full_workers_do_not_hold_up_another_model() -> None:
    stage = full_worker()
    stage.worker("other", model="other")
    stage.place("t", prompt((1, 8)))
    stage.place("u", prompt((2, 8)), model="other")
    assert (stage.where("t"), stage.where("u")) == ("queued", "other")


puts = st.tuples(
    st.sampled_from("abc"), st.floats(0, 100), st.floats(0, 5), st.integers(-3, 3), st.integers(0, 2), st.booleans()
)


@given(st.lists(puts, max_size=40))
def test_positions_are_the_order_and_nobody_is_lost(script: list[tuple[str, float, float, int, int, bool]]) -> None:
    queue = FairQueue(100)
    inside: set[str] = set()
    for number, (session, waited, charge, priority, strict, leave) in enumerate(script):
        name = str(number)
        queue.put(
            name,
            session,
            waited_s=waited,
            charge_s=charge,
            expires=waited + 50,
            priority=priority,
            strict_priority=strict,
        )
        inside.add(name)
        if leave:
            out = queue.served if number % 2 else queue.remove
            assert out(name)
            assert not out(name)
            inside.discard(name)
        assert set(queue) == inside
        assert [queue.position(one) for one in queue] == list(range(1, len(queue) + 1))
    assert set(queue.expired(151)) == inside
