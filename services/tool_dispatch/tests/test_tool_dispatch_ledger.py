"""The ledger against a model of it: the table, read as a dictionary."""

from catenary_tool_dispatch.core.ledger import OPEN, TRANSITIONS, Event, Ledger, State
from hypothesis import given
from hypothesis import strategies as st

KEYS = st.sampled_from(["a", "b", "c"])
STEPS = st.lists(st.tuples(st.sampled_from(Event), KEYS, st.integers(0, 20)))


@given(STEPS)
def test_states_follow_the_table_and_what_is_closed_stays_closed(steps: list[tuple[Event, str, int]]) -> None:
    ledger = Ledger()
    model: dict[str, State] = {}
    for event, key, deadline in steps:
        before = model.get(key)
        after = TRANSITIONS.get((before, event))
        assert ledger.move(event, key, tool="t", deadline=deadline) is (after is not None)
        if after is not None:
            assert before is None or before in OPEN
            model[key] = after
        assert ledger.state(key) is model.get(key)


@given(STEPS, st.integers(0, 25))
def test_due_are_the_open_calls_that_nobody_runs_and_whose_deadline_has_come(
    steps: list[tuple[Event, str, int]], now: int
) -> None:
    ledger = Ledger()
    deadlines: dict[str, int] = {}
    for event, key, deadline in steps:
        opens = ledger.state(key) is None and event in {Event.SEE, Event.START}
        if ledger.move(event, key, tool="t", deadline=deadline) and opens:
            deadlines[key] = deadline
    want = {key for key, at in deadlines.items() if 0 < at <= now and ledger.state(key) is State.SEEN}
    upcoming = [at for key, at in deadlines.items() if at > 0 and ledger.state(key) is State.SEEN]
    assert ledger.next_deadline() == min(upcoming, default=None)
    assert {call.key for call in ledger.due(now)} == want
    assert all(ledger.state(key) is State.EXPIRED for key in want)
    assert ledger.due(now) == []


@given(st.lists(st.tuples(st.sampled_from(Event), st.integers(0, 50).map(str), st.integers(0, 9))))
def test_it_stays_within_its_bounds(steps: list[tuple[Event, str, int]]) -> None:
    ledger = Ledger(limit=4)
    running: set[str] = set()
    for event, key, deadline in steps:
        ledger.move(event, key, deadline=deadline)
        running = {one for one in running | {key} if ledger.state(one) is State.RUNNING}
    assert len(ledger) <= 2 * 4 + len(running)


def test_a_running_call_is_never_forgotten() -> None:
    ledger = Ledger(limit=2)
    ledger.move(Event.START, "mine")
    for number in range(10):
        ledger.move(Event.SEE, f"seen-{number}", deadline=1)
        ledger.move(Event.FINISH, f"done-{number}")
    assert ledger.state("mine") is State.RUNNING
    assert ledger.state("done-0") is None
    assert [call.key for call in ledger.due(2)] == ["seen-9"]
