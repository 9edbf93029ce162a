"""Decisions of the tokenizer: tokens, logs, suspicion, calls."""

import struct

from catenary_protocols.call_ids import call_id
from catenary_protocols.turn_events import TextDelta
from catenary_tokenizer_service.core.calls import policy_for
from catenary_tokenizer_service.core.generated import TOKEN_BYTES, Generated
from catenary_tokenizer_service.core.log import EventLog
from catenary_tokenizer_service.core.overdue import Watch
from hypothesis import given
from hypothesis import strategies as st


def pack(ids: list[int]) -> bytes:
    return struct.pack(f"<{len(ids)}I", *ids)


@given(
    truth=st.lists(st.integers(0, 2**32 - 1), max_size=40),
    offers=st.lists(st.tuples(st.integers(0, 45), st.integers(0, 12), st.integers(0, 2)), max_size=60),
)
def test_generated_is_always_a_prefix_of_the_truth(truth: list[int], offers: list[tuple[int, int, int]]) -> None:
    """Whatever is repeated, late, skipped or from an older attempt: no token twice, none skipped."""
    generated = Generated(attempt=1)
    for offset, length, attempt in offers:
        piece = truth[offset : offset + length]
        before = bytes(generated.ids)
        verdict, fresh = generated.take(attempt, offset, pack(piece))
        assert bytes(generated.ids) == before + fresh
        if attempt != 1:
            assert verdict == "old"
        elif offset * TOKEN_BYTES > len(before):
            assert verdict == "gap"
        else:
            assert verdict == "taken"
    assert pack(truth)[: len(generated.ids)] == bytes(generated.ids)


def test_a_whole_answer_in_order_is_taken_whole() -> None:
    generated = Generated(attempt=0)
    for at in range(10):
        assert generated.take(0, at, pack([at])) == ("taken", pack([at]))
    assert generated.count == 10


def test_log_gives_every_reader_the_same_events() -> None:
    log = EventLog()
    assert log.append([TextDelta(text="a"), TextDelta(text="b")]) == 1
    assert log.append([TextDelta(text="c")]) == 3
    assert log.since(1) == [TextDelta(text="b"), TextDelta(text="c")]
    assert log.since(3) == []
    assert log.last == 3


def test_a_tail_is_missed_only_when_two_beats_agree() -> None:
    watch = Watch()
    assert watch.beat(5, 3, settled=True) == "fine"
    assert watch.beat(6, 5, settled=True) == "fine", "frames arrived meanwhile"
    assert watch.beat(7, 5, settled=True) == "resend"
    assert watch.beat(7, 7, settled=True) == "fine"


def test_a_turn_is_gone_only_when_two_beats_do_not_name_it() -> None:
    watch = Watch()
    assert watch.beat(None, 3, settled=False) == "fine"
    assert watch.beat(None, 3, settled=True) == "fine"
    assert watch.beat(4, 4, settled=True) == "fine"
    assert watch.beat(None, 4, settled=True) == "fine"
    assert watch.beat(None, 4, settled=True) == "gone"


def test_only_declared_tools_reach_the_bus() -> None:
    policy = policy_for(["a", "b"], ["b", "c"], "auto")
    assert policy.run_by("a", decided_at_close=False) == "client"
    assert policy.run_by("b", decided_at_close=False) == "mesh"
    assert policy.run_by("c", decided_at_close=False) == ""


def test_a_call_that_only_the_end_decided_is_not_run_unasked() -> None:
    assert policy_for(["a"], ["*"], "auto").run_by("a", decided_at_close=True) == "client"


def test_tool_choice_none_keeps_calls_off_the_bus() -> None:
    assert policy_for(["a"], ["*"], "none").run_by("a", decided_at_close=False) == ""


def test_call_ids_stay_the_same_when_a_turn_is_submitted_again() -> None:
    turn = "0" * 6 + "abcdefghjkmnpqrstvwx"
    ids = {call_id(turn, choice, index) for choice in range(3) for index in range(20)}
    assert len(ids) == 60
    assert call_id(turn, 0, 1) in ids
