import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from itertools import pairwise

import pytest
from catenary_frontend.core.order import Received
from catenary_frontend.testing import ScriptedTokenizer, Stand, running_frontend
from catenary_protocols.bus.codec import encode
from catenary_protocols.bus.messages import Attach, EventFrame, Refused, TurnEvents, TurnRequest
from catenary_protocols.bus.subjects import Subjects
from catenary_protocols.conversation import Conversation, Sampling, TextPart, UserMessage
from catenary_protocols.errors import ErrorInfo
from catenary_protocols.ids import TurnKey
from catenary_protocols.turn_events import (
    Accepted,
    CallBegun,
    CallComplete,
    Failed,
    Finished,
    TextDelta,
    TurnEvent,
    Usage,
)
from catenary_runtime.testing import NatsServer
from hypothesis import given
from hypothesis import strategies as st

TEXT = tuple(TextDelta(text=str(place)) for place in range(5))
END = Finished(reason="stop", usage=Usage())


class Reader:
    """A client that keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[TurnEvent] = []
        self.ended = asyncio.Event()
        self.heard = asyncio.Event()

    def deliver(self, events: Sequence[TurnEvent], *, ended: bool) -> None:
        assert not self.ended.is_set()
        self.events += events
        self.heard.set()
        if ended:
            self.ended.set()

    def tick(self, now: float) -> None:
        """Nothing to do."""


def asked(stand: Stand, turn_id: str = "a" * 26, text: str = "?") -> tuple[Reader, TurnRequest]:
    request = TurnRequest(
        turn=TurnKey(turn_id=turn_id),
        frontend=stand.frontend.instance,
        frontend_incarnation=stand.frontend.incarnation,
        model="org/m",
        session="s",
        conversation=Conversation(messages=(UserMessage(parts=(TextPart(text=text),)),)),
        sampling=Sampling(),
        arrived_at=0.0,
    )
    reader = Reader()
    stand.frontend.turns.open(request, reader, {})
    return reader, request


@pytest.fixture
async def stand(nats_server: NatsServer, subjects: Subjects) -> AsyncIterator[Stand]:
    async with running_frontend(nats_server, subjects) as one:
        yield one


@pytest.fixture
async def tokenizer(stand: Stand) -> AsyncIterator[ScriptedTokenizer]:
    async with stand.tokenizer() as one:
        yield one


@given(st.lists(st.integers(min_value=1, max_value=9), max_size=6), st.randoms(use_true_random=False))
def test_batches_in_any_order_and_number_deliver_a_log_once_and_in_order(cuts: list[int], random: object) -> None:
    log = [TextDelta(text=str(place)) for place in range(10)]
    bounds = sorted({0, 10, *cuts})
    batches = [(begin + 1, log[begin:end]) for begin, end in pairwise(bounds)] * 2
    random.shuffle(batches)  # type: ignore[attr-defined]
    received = Received()
    got: list[TurnEvent] = []
    for first, events in [*batches, (1, log)]:
        fresh = received.take(first, events)
        got += fresh or ()
    assert got == log


async def test_a_lost_frame_is_asked_for(stand: Stand, tokenizer: ScriptedTokenizer) -> None:
    reader, request = asked(stand)
    await tokenizer.request()
    tokenizer.say(request.turn.turn_id, *TEXT[:2])
    tokenizer.lose = 1
    tokenizer.say(request.turn.turn_id, TEXT[2])
    tokenizer.say(request.turn.turn_id, *TEXT[3:], END)
    await reader.ended.wait()
    assert reader.events == [*TEXT, END]
    assert isinstance(await tokenizer.inbox.get(), Attach)


async def test_a_lost_tail_is_found_by_the_owners_beat(stand: Stand, tokenizer: ScriptedTokenizer) -> None:
    reader, request = asked(stand)
    await tokenizer.request()
    tokenizer.say(request.turn.turn_id, *TEXT)
    tokenizer.lose = 1
    tokenizer.say(request.turn.turn_id, END)
    await reader.ended.wait()
    assert reader.events == [*TEXT, END]


async def test_repeats_and_frames_of_older_attempts_change_nothing(stand: Stand, tokenizer: ScriptedTokenizer) -> None:
    reader, request = asked(stand)
    await tokenizer.request()
    turn = request.turn.turn_id
    tokenizer.say(turn, *TEXT)
    stale = TurnEvents(turn_id=turn, first=6, events=(TextDelta(text="stale"),), attempt=-1)
    repeat = TurnEvents(turn_id=turn, first=1, events=TEXT[:3])
    stranger = TurnEvents(turn_id="z" * 26, first=1, events=TEXT)
    frame = EventFrame(tokenizer="t1", incarnation=1, number=9, items=(stale, repeat, stranger))
    tokenizer.bus.publish(tokenizer.bus.subjects.to("events", frontend=stand.frontend.instance), encode(frame))
    tokenizer.say(turn, END)
    await reader.ended.wait()
    assert reader.events == [*TEXT, END]


async def test_a_turn_that_is_followed_is_in_the_beat_until_its_owner_has_dropped_it(
    stand: Stand, tokenizer: ScriptedTokenizer
) -> None:
    reader, request = asked(stand)
    turn = request.turn.turn_id
    await tokenizer.request()
    tokenizer.say(turn, *TEXT, END)
    await reader.ended.wait()
    offsets = {live.offset for live in stand.frontend.turns.live()}
    assert offsets == {6}
    del tokenizer.log[turn]
    await stand.until(lambda: not stand.frontend.turns.live())


async def test_an_owner_is_told_to_cancel_a_turn_nobody_here_knows(stand: Stand, tokenizer: ScriptedTokenizer) -> None:
    tokenizer.log["b" * 26] = []
    tokenizer.to["b" * 26] = stand.frontend.instance
    tokenizer.attempts["b" * 26] = 3
    assert (await tokenizer.cancelled()).turn == TurnKey(turn_id="b" * 26, attempt=3)


async def test_a_turn_whose_owner_dies_in_silence_goes_to_another(stand: Stand) -> None:
    async with AsyncExitStack() as others:
        async with stand.tokenizer("t1") as first:
            reader, request = asked(stand)
            await first.request()
            second = await others.enter_async_context(stand.tokenizer("t2"))
        again = await second.request()
        assert again.turn == TurnKey(turn_id=request.turn.turn_id, attempt=1000)
        assert again.conversation == request.conversation
        second.say(request.turn.turn_id, *TEXT, END)
        await reader.ended.wait()
        assert reader.events == [*TEXT, END]


async def test_a_turn_whose_owner_dies_in_the_middle_ends_in_an_error(stand: Stand) -> None:
    async with stand.tokenizer() as first:
        reader, request = asked(stand)
        await first.request()
        first.say(request.turn.turn_id, Accepted(prompt_tokens=1), *TEXT)
        await reader.heard.wait()
    await reader.ended.wait()
    end = reader.events[-1]
    assert isinstance(end, Failed)
    assert (end.error.code, end.error.retry) == ("owner_lost", True)


async def test_the_error_says_do_not_retry_once_a_call_was_published(stand: Stand) -> None:
    async with stand.tokenizer() as first:
        reader, request = asked(stand)
        await first.request()
        call = CallComplete(index=0, id="c", name="f", arguments="{}", key="k", run_by="mesh")
        first.say(request.turn.turn_id, CallBegun(index=0, id="c", name="f"), call)
        await reader.heard.wait()
    await reader.ended.wait()
    end = reader.events[-1]
    assert isinstance(end, Failed)
    assert not end.error.retry


async def test_an_owner_that_was_restarted_under_its_name_gets_the_turn_again(
    stand: Stand, tokenizer: ScriptedTokenizer
) -> None:
    reader, request = asked(stand)
    await tokenizer.request()
    tokenizer.log.clear()
    tokenizer.presence.incarnation += 1
    again = await tokenizer.request()
    assert again.turn == TurnKey(turn_id=request.turn.turn_id, attempt=1000)
    tokenizer.say(request.turn.turn_id, *TEXT, END)
    await reader.ended.wait()
    assert reader.events == [*TEXT, END]


async def test_an_owner_that_renewed_itself_goes_on_with_what_it_still_has(
    stand: Stand, tokenizer: ScriptedTokenizer
) -> None:
    reader, request = asked(stand)
    await tokenizer.request()
    tokenizer.say(request.turn.turn_id, *TEXT[:2])
    await reader.heard.wait()
    tokenizer.lose = 1
    tokenizer.say(request.turn.turn_id, *TEXT[2:], END)
    tokenizer.presence.incarnation += 1
    await reader.ended.wait()
    assert reader.events == [*TEXT, END]


async def test_a_request_that_the_bus_cannot_carry_is_refused(stand: Stand, tokenizer: ScriptedTokenizer) -> None:
    reader, _ = asked(stand, text="x" * 9_000_000)
    await reader.ended.wait()
    (end,) = reader.events
    assert isinstance(end, Failed)
    assert end.error.code == "request_too_large"


async def test_an_owner_that_drains_sends_its_turn_on(stand: Stand, tokenizer: ScriptedTokenizer) -> None:
    tokenizer.refuse = Refused(error=ErrorInfo(code="draining", message="stopping"))
    async with stand.tokenizer("t2") as second:
        second.refuse = None
        reader, request = asked(stand)
        assert (await second.request()).turn.turn_id == request.turn.turn_id
        second.say(request.turn.turn_id, END)
        await reader.ended.wait()


async def test_a_turn_that_its_live_owner_does_not_know_is_lost(stand: Stand, tokenizer: ScriptedTokenizer) -> None:
    reader, request = asked(stand)
    await tokenizer.request()
    tokenizer.say(request.turn.turn_id, *TEXT)
    await reader.heard.wait()
    del tokenizer.log[request.turn.turn_id]
    await reader.ended.wait()
    assert isinstance(reader.events[-1], Failed)


async def test_without_any_owner_a_turn_is_refused_at_once(stand: Stand) -> None:
    reader, _ = asked(stand)
    await stand.until(lambda: not stand.frontend.bus.fresh)
    await reader.ended.wait()
    end = reader.events[-1]
    assert isinstance(end, Failed)
    assert end.error.retry_after > 0
