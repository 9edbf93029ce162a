"""How long sessions stay away, and what clients send back: rules without a bus."""

from catenary_protocols.conversation import (
    AssistantMessage,
    CallPart,
    Conversation,
    ReasoningPart,
    TextPart,
    UserMessage,
)
from catenary_protocols.turn_events import (
    Accepted,
    CallComplete,
    CallCut,
    Malformed,
    ReasoningDelta,
    TextDelta,
    TurnEvent,
)
from catenary_tokenizer_service.core.away import LEAST_S, MOST_S, SESSIONS, TOOLS, UNKNOWN_S, Absences
from catenary_tokenizer_service.core.echo import Echo, echoes_reasoning
from hypothesis import given
from hypothesis import strategies as st

CALL = CallComplete(index=0, id="c0", name="ls", arguments='{"p": "."}', key="k", run_by="mesh")


def away(absences: Absences, seconds: float, *tools: str, times: int = 1, session: str = "s") -> None:
    for _ in range(times):
        absences.left(session, tools, 0.0)
        absences.back("t", session, seconds)


@given(st.lists(st.floats(0, 1e4), max_size=50))
def test_what_is_expected_is_bounded_whatever_was_seen(seconds: list[float]) -> None:
    absences = Absences()
    for one in seconds:
        away(absences, one, "ls")
    assert LEAST_S <= absences.expected("t", ("ls",)) <= MOST_S


@given(st.floats(0.1, 100))
def test_a_tool_that_always_takes_as_long_is_waited_for_little_longer(seconds: float) -> None:
    absences = Absences()
    away(absences, seconds, "ls", times=60)
    expected = absences.expected("t", ("ls",))
    assert max(LEAST_S, seconds) - 1e-6 <= expected <= max(LEAST_S, seconds * 1.01)


@given(st.lists(st.floats(10, 30), min_size=30, max_size=80))
def test_a_tool_that_varies_is_waited_for_as_long_as_it_may_take(seconds: list[float]) -> None:
    absences = Absences()
    for one in seconds:
        away(absences, one, "ls")
    assert absences.expected("t", ("ls",)) >= sum(seconds) / len(seconds) - 5.0


def test_of_several_calls_the_slowest_is_to_blame() -> None:
    absences = Absences()
    away(absences, 20.0, "build", times=40)
    away(absences, 1.0, "ls", times=40)
    away(absences, 20.0, "ls", "build", times=10)
    assert absences.expected("t", ("ls",)) == LEAST_S
    assert absences.expected("t", ("ls", "build")) == absences.expected("t", ("build",)) < 21.0


def test_tenants_and_tools_never_seen_are_a_guess_and_a_session_expects_its_last_tools() -> None:
    absences = Absences()
    assert absences.usual("t", "s") == UNKNOWN_S
    away(absences, 10.0, "ls", times=40)
    assert absences.expected("u", ("ls",)) == UNKNOWN_S
    assert absences.usual("t", "s") == absences.expected("t", ("ls",)) < 11.0
    absences.over("s")
    assert absences.usual("t", "s") == UNKNOWN_S


def test_who_never_comes_back_is_forgotten_and_so_are_tools_nobody_calls() -> None:
    absences = Absences()
    for number in range(SESSIONS + 10):
        absences.left(f"s{number}", ("ls",), 0.0)
    absences.back("t", "s0", 50.0)
    assert absences.expected("t", ("ls",)) == UNKNOWN_S, "it was away too long ago"
    for number in range(TOOLS + 1):
        away(absences, 6.0, f"tool{number}")
    assert absences.expected("t", ("tool0",)) == UNKNOWN_S
    assert absences.expected("t", (f"tool{TOOLS}",)) < UNKNOWN_S


# --- what comes back --------------------------------------------------------------------------------------------------


def test_an_echo_is_what_was_delivered_in_order() -> None:
    events: list[TurnEvent] = [
        Accepted(prompt_tokens=3),
        ReasoningDelta(text="let "),
        ReasoningDelta(text="me"),
        TextDelta(text="a"),
        CALL,
        TextDelta(text="b"),
        TextDelta(text="c"),
    ]
    echo = Echo(events)
    call = CallPart(id="c0", name="ls", arguments='{"p": "."}')
    visible = (TextPart(text="a"), call, TextPart(text="bc"))
    assert echo.message("messages", reasoning=True) == AssistantMessage(parts=(ReasoningPart(text="let me"), *visible))
    assert echo.message("messages", reasoning=False) == AssistantMessage(parts=visible)
    assert (echo.calls, echo.reasons, echo.whole) == ([CALL], True, True)


def test_markup_that_became_nothing_does_not_come_back() -> None:
    assert not Echo([Malformed(raw="<tool_call>", reason="no json")]).whole
    assert not Echo([CallCut(index=0, arguments="{")]).whole


def test_a_client_does_with_reasoning_what_it_did_last_or_what_its_api_does() -> None:
    def talk(*messages: AssistantMessage) -> Conversation:
        return Conversation(messages=(UserMessage(parts=(TextPart(text="hi"),)), *messages))

    kept = AssistantMessage(parts=(ReasoningPart(text="hm"), TextPart(text="a")))
    left = AssistantMessage(parts=(TextPart(text="a"),))
    assert echoes_reasoning(talk(kept), "chat")
    assert not echoes_reasoning(talk(kept, left), "messages")
    assert [echoes_reasoning(talk(), api) for api in ("chat", "responses", "messages")] == [False, True, True]
