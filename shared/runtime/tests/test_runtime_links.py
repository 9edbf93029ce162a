"""Numbered frames: a loss is always noticed, by the next frame or by two beats; nothing is noticed that was not lost."""

from catenary_protocols.bus.messages import LinkTail
from catenary_runtime.links import LinkReceiver, LinkSender
from hypothesis import given
from hypothesis import strategies as st


def test_each_link_is_numbered_from_one_and_its_tail_is_told() -> None:
    sender = LinkSender()
    assert [sender.next("a"), sender.next("a"), sender.next("b")] == [1, 2, 1]
    assert sender.tails() == (LinkTail(to="a", number=2), LinkTail(to="b", number=1))
    sender.forget("a")
    sender.forget("stranger")
    assert sender.tails() == (LinkTail(to="b", number=1),)
    sender.restart()
    assert sender.tails() == ()
    assert sender.next("b") == 1


@given(st.lists(st.booleans(), max_size=60))
def test_a_frame_after_a_loss_shows_it_and_no_other_does(arrives: list[bool]) -> None:
    sender, receiver = LinkSender(), LinkReceiver()
    lost = False
    for here in arrives:
        number = sender.next("r")
        if here:
            assert receiver.arrived("s", 1, number) == lost
        lost = not here


@given(st.lists(st.booleans(), max_size=60))
def test_a_lost_tail_shows_at_the_second_beat_and_only_then(arrives: list[bool]) -> None:
    receiver, number = LinkReceiver(), 0
    for here in arrives:
        number += 1
        if here:
            receiver.arrived("s", 1, number)
    lost = bool(arrives) and not arrives[-1]
    assert not receiver.tail_lost("s", 1, number)
    assert receiver.tail_lost("s", 1, number) == lost
    assert not receiver.tail_lost("s", 1, number)


def test_a_beat_that_overtakes_a_frame_is_no_loss() -> None:
    receiver = LinkReceiver()
    assert not receiver.arrived("s", 1, 1)
    for number in range(2, 20):
        assert not receiver.tail_lost("s", 1, number)
        assert not receiver.arrived("s", 1, number)


def test_a_busy_link_whose_frames_are_all_late_is_no_loss_either() -> None:
    receiver = LinkReceiver()
    receiver.arrived("s", 1, 1)
    assert not receiver.tail_lost("s", 1, 5)
    for number in range(2, 6):
        receiver.arrived("s", 1, number)
    assert not receiver.tail_lost("s", 1, 9)


def test_a_new_incarnation_begins_anew_and_the_old_one_changes_nothing() -> None:
    receiver = LinkReceiver()
    assert not receiver.arrived("s", 1, 1)
    assert not receiver.arrived("s", 2, 1)
    assert not receiver.arrived("s", 1, 7)
    assert not receiver.arrived("s", 2, 2)
    assert receiver.arrived("s", 3, 2)


def test_a_repeat_is_no_loss() -> None:
    receiver = LinkReceiver()
    for number in (1, 2, 2, 1, 3):
        assert not receiver.arrived("s", 1, number)


def test_links_of_several_senders_are_apart_and_can_be_forgotten() -> None:
    receiver = LinkReceiver()
    assert not receiver.arrived("a", 1, 1)
    assert receiver.arrived("b", 1, 2)
    receiver.forget("a")
    receiver.forget("stranger")
    assert not receiver.arrived("a", 1, 1)
