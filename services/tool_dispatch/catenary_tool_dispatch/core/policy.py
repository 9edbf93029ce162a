"""What to do with a delivered call, now. The rule this file keeps: every delivery gets exactly one verdict.

The checks of `decide` stand in order: what is already settled, what is over, what is wrong, what wants somebody's yes.
"No slot free" is none of them: a call is pulled only when there is room for it.
"""

from dataclasses import dataclass
from enum import Enum

from catenary_protocols.bus.tool_plane import ToolCall

from catenary_tool_dispatch.core.ledger import State


class Verdict(Enum):
    """What the dispatcher does with a delivery."""

    RUN = "run"
    AWAIT_APPROVAL = "await_approval"
    ALREADY_RUNNING = "already_running"
    """Delivered again while it runs here: keep the newer delivery, to acknowledge it in the end."""
    DUPLICATE = "duplicate"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    UNKNOWN_TOOL = "unknown_tool"
    INVALID = "invalid_arguments"
    DEAD = "undeliverable"
    """Delivered so often without an end that it takes its executors down: to the dead letters."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One delivery of a call, and what is known of it.

    Attributes:
        attempt, last_attempt: count deliveries, from 1; `last_attempt` 0 means no limit.
        state: where the ledger has the call.
        registered: whether the tool is in the registry.
        problem: what is wrong with the arguments, or "".
        approval: whether a person has to say yes first.
    """

    call: ToolCall
    attempt: int = 1
    last_attempt: int = 0
    state: State | None = None
    registered: bool = True
    problem: str = ""
    approval: bool = False


def decide(delivery: Delivery, now: float) -> Verdict:  # a line per verdict
    """The verdict at `now`, in Unix seconds."""
    if delivery.state in {State.DONE, State.EXPIRED}:
        return Verdict.DUPLICATE
    if delivery.state is State.CANCELLED:
        return Verdict.CANCELLED
    if delivery.state is State.RUNNING:
        return Verdict.ALREADY_RUNNING
    if 0 < delivery.call.deadline <= now:
        return Verdict.EXPIRED
    if not delivery.registered:
        return Verdict.UNKNOWN_TOOL
    if delivery.problem:
        return Verdict.INVALID
    if 0 < delivery.last_attempt <= delivery.attempt:
        return Verdict.DEAD
    return Verdict.AWAIT_APPROVAL if delivery.approval else Verdict.RUN


@dataclass(frozen=True, slots=True)
class Budget:
    """How long a run may take.

    Attributes:
        seconds: from now.
        code: the error when they are over: `timeout` (the tool's own bound) or `expired` (the call's deadline).
    """

    seconds: float
    code: str


def budget(call: ToolCall, timeout_s: float, now: float) -> Budget:
    """The smaller of the tool's time limit and what is left until the call's deadline."""
    left = call.deadline - now
    if call.deadline > 0 and left < timeout_s:
        return Budget(max(left, 0.0), "expired")
    return Budget(timeout_s, "timeout")


REFUSALS: dict[Verdict, tuple[str, str]] = {
    Verdict.CANCELLED: ("cancelled", "the turn of this call was cancelled"),
    Verdict.EXPIRED: ("expired", "the deadline of this call was over before it could run"),
    Verdict.UNKNOWN_TOOL: ("unknown_tool", "nobody here runs a tool of this name"),
    Verdict.INVALID: ("invalid_arguments", "the arguments do not fit the tool's schema"),
    Verdict.DEAD: ("failed", "the call was given up: every executor that took it went down"),
}
"""Error code and message of the result, for verdicts that end a call without a run."""
