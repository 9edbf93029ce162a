import msgspec
import pytest
from catenary_protocols.bus.tool_plane import ToolCall
from catenary_tool_dispatch.core.ledger import State
from catenary_tool_dispatch.core.policy import REFUSALS, Delivery, Verdict, budget, decide
from hypothesis import given
from hypothesis import strategies as st

NOW = 1_000.0


def call(deadline: float = NOW + 10) -> ToolCall:
    return ToolCall(
        key="t-0-0",
        id="call_1",
        tool="t",
        arguments=msgspec.Raw(b"{}"),
        run_by="mesh",
        turn_id="t",
        index=0,
        deadline=deadline,
    )


@pytest.mark.parametrize(
    ("delivery", "verdict"),
    [
        (Delivery(call()), Verdict.RUN),
        (Delivery(call(deadline=0)), Verdict.RUN),
        (Delivery(call(), state=State.SEEN), Verdict.RUN),
        (Delivery(call(), approval=True), Verdict.AWAIT_APPROVAL),
        (Delivery(call(), attempt=4, last_attempt=5), Verdict.RUN),
        (Delivery(call(), attempt=5, last_attempt=5), Verdict.DEAD),
        (Delivery(call(), attempt=99, last_attempt=0), Verdict.RUN),
        (Delivery(call(), problem="x"), Verdict.INVALID),
        (Delivery(call(), registered=False, problem="x"), Verdict.UNKNOWN_TOOL),
        (Delivery(call(deadline=NOW), registered=False), Verdict.EXPIRED),
        (Delivery(call(deadline=NOW - 1), state=State.RUNNING), Verdict.ALREADY_RUNNING),
        (Delivery(call(), state=State.CANCELLED, problem="x"), Verdict.CANCELLED),
        (Delivery(call(), state=State.DONE, attempt=5, last_attempt=5), Verdict.DUPLICATE),
        (Delivery(call(deadline=NOW - 1), state=State.EXPIRED), Verdict.DUPLICATE),
    ],
)
def test_each_delivery_has_its_verdict(delivery: Delivery, verdict: Verdict) -> None:
    assert decide(delivery, NOW) is verdict


def test_a_verdict_that_ends_a_call_has_its_error() -> None:
    handled = {Verdict.RUN, Verdict.AWAIT_APPROVAL, Verdict.ALREADY_RUNNING, Verdict.DUPLICATE}
    assert set(REFUSALS) == set(Verdict) - handled


@given(st.floats(-100, 100), st.floats(0.01, 100))
def test_a_run_never_outlasts_its_tool_or_its_deadline(left: float, timeout: float) -> None:
    limit = budget(call(deadline=NOW + left), timeout, NOW)
    assert 0 <= limit.seconds <= timeout
    assert limit.seconds <= max(left, 0) + 1e-9
    assert limit.code == ("expired" if (NOW + left) - NOW < timeout else "timeout")
