"""Slots: events add up to what they hold, the best one is taken, and tokens that are not shown are found."""

from array import array

from catenary_tokenizers import block_hashes, embedded_path, load, pack, unpack
from catenary_worker.engines.base import Retention
from catenary_worker.engines.contract import KvTable
from catenary_worker.engines.llamacpp.held import HeldBack
from catenary_worker.engines.llamacpp.slots import Slots, common
from hypothesis import given
from hypothesis import strategies as st

SIZE = 4
TOKENIZER = load(embedded_path())
HELD = HeldBack(TOKENIZER)
prompts = st.lists(st.integers(0, 1), min_size=1, max_size=30)
turns = st.lists(st.tuples(prompts, st.sampled_from(["", "x"]), st.integers(0, 30), st.booleans()), max_size=12)


@given(turns)
def test_events_add_up_to_what_the_slots_hold(all_turns: list[tuple[list[int], str, int, bool]]) -> None:
    slots, table = Slots(3, SIZE), KvTable(SIZE)
    for now, (prompt, salt, cut, ends) in enumerate(all_turns):
        if not slots.free():
            for slot in slots.all:
                slots.release(slot, now, Retention())
        slot, shared = slots.take(array("I", prompt), salt, now)
        assert slot.tokens.tolist() == prompt[:shared]
        slots.add(slot, prompt[shared:])
        slots.cut(slot, cut)
        if ends:
            slots.release(slot, now, Retention())
        table.apply(slots.drain())
        held: set[int] = set()
        for one in slots.all:
            held |= set(unpacked(block_hashes(one.tokens.tobytes(), SIZE, salt=one.salt)))
        assert set(table.parents) == held


def unpacked(hashes: bytes) -> list[int]:
    return array("Q", hashes).tolist()


@given(prompts, prompts)
def test_the_common_prefix(one: list[int], other: list[int]) -> None:
    length = common(array("I", one), array("I", other))
    assert one[:length] == other[:length]
    assert one[length : length + 1] != other[length : length + 1] or length == len(one) == len(other)


def test_a_turn_goes_on_in_its_session_and_a_stranger_takes_the_oldest() -> None:
    slots = Slots(3, SIZE)
    for now, prompt in enumerate(([1] * 20, [2] * 20, [3] * 20)):
        slot, _ = slots.take(array("I", prompt), "", now)
        slots.add(slot, prompt)
        slots.release(slot, now, Retention(50, 100.0) if now == 0 else Retention())
    slot, shared = slots.take(array("I", [3] * 25), "", 10)
    assert (slot.number, shared) == (2, 20)
    stranger, shared = slots.take(array("I", [9] * 25), "", 10)
    assert (stranger.number, shared) == (1, 0), "the first one is retained"
    slots.add(stranger, [9] * 25)
    slots.release(stranger, 11, Retention())
    later, _ = slots.take(array("I", [8] * 25), "", 200)
    assert later.number == 0, "its retention is over, and it is the oldest"


def test_what_a_session_left_is_kept_or_given_up_as_is_told_afterwards() -> None:
    slots = Slots(3, SIZE)
    for now, name in enumerate("abc"):
        slot, _ = slots.take(array("I", [now + 1] * 20), "", now)
        slot.session = name
        slots.add(slot, [now + 1] * 20)
        slots.release(slot, now, Retention(50, 100.0))
    slots.retain("c", Retention(-1), 3)
    stranger, _ = slots.take(array("I", [9] * 20), "", 4)
    assert stranger.number == 2, "the newest, since nobody comes back to it"
    slots.retain("a", Retention(), 5)
    later, _ = slots.take(array("I", [8] * 20), "", 6)
    assert later.number == 0


def test_what_is_told_while_a_turn_is_still_ending_counts_when_its_slot_is_free() -> None:
    slots = Slots(2, SIZE)
    for now, name in enumerate("ab"):
        slot, _ = slots.take(array("I", [now + 1] * 20), "", now)
        slot.session = name
        slots.add(slot, [now + 1] * 20)
        slots.retain(name, Retention(50, 100.0) if name == "a" else Retention(-1), now)
        slots.release(slot, now, Retention(10, 100.0))
    stranger, _ = slots.take(array("I", [9] * 20), "", 3)
    assert stranger.number == 1


def test_a_beginning_in_common_is_no_reason_to_lose_a_session() -> None:
    slots = Slots(2, SIZE)
    slot, _ = slots.take(array("I", [1] * 40), "", 0)
    slots.add(slot, [1] * 40)
    slots.release(slot, 0, Retention())
    other, shared = slots.take(array("I", [1] * 8 + [2] * 40), "", 1)
    assert (other.number, shared) == (1, 0)


@given(st.text(st.characters(min_codepoint=0x80, exclude_categories=["Cs"]), min_size=1, max_size=3))
def test_tokens_that_are_not_shown_are_found(text: str) -> None:
    *hidden, last = unpack(TOKENIZER.encode(text, special=False))
    found = HELD.find(text, len(hidden), last)
    assert found is not None
    assert len(found) == len(hidden)
    assert TOKENIZER.decode(pack([*found, last])) == text


def test_broken_characters_are_not_guessed() -> None:
    (last,) = unpack(TOKENIZER.encode("a", special=False))
    assert HELD.find("\ufffda", 2, last) is None
    assert HELD.find("xyz", 1, last) is None
