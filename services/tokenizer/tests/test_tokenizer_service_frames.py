"""Event frames: what is asked for again arrives whole, however much it is."""

import asyncio

import pytest
from catenary_protocols.bus.codec import Decoder
from catenary_protocols.bus.messages import EventFrame, Retention
from catenary_protocols.turn_events import TextDelta, TurnEvent
from catenary_runtime.bus import LONGEST_MESSAGE, Bus
from catenary_runtime.presence import Presence
from catenary_tokenizer_service.core.calls import policy_for
from catenary_tokenizer_service.core.generated import Generated
from catenary_tokenizer_service.egress.frames import Outbox
from catenary_tokenizer_service.testing import FRONTEND, asking, turn_request
from catenary_tokenizer_service.turn import Turn
from nats.aio.msg import Msg

_frame = Decoder(EventFrame)
BIG = LONGEST_MESSAGE // 3


def turn_with(events: int) -> Turn:
    """A turn whose log no message could hold."""
    turn = Turn(turn_request(asking("x")), {}, FRONTEND, policy_for([], [], "auto"), Generated(0), Retention())
    turn.log.append([TextDelta(text=f"{number}" + "x" * BIG) for number in range(events)])
    return turn


@pytest.mark.parametrize("logs", [[1], [5], [2, 2, 1], [4, 1]])
async def test_logs_longer_than_a_message_come_in_several(bus: Bus, logs: list[int]) -> None:
    came: dict[str, list[TurnEvent]] = {}
    numbers: list[int] = []
    whole = asyncio.Event()

    def keep(msg: Msg) -> None:
        frame = _frame(msg.data)
        numbers.append(frame.number)
        for item in frame.items:
            had = came.setdefault(item.turn_id, [])
            assert item.first == len(had) + 1
            had += item.events
        if sum(map(len, came.values())) == sum(logs):
            whole.set()

    await bus.subscribe(bus.subjects.to("events", frontend=FRONTEND), keep)
    outbox = Outbox(bus, Presence(bus, "tokenizer", "t", lambda: pytest.fail("no beat is due")))
    turns = [turn_with(events) for events in logs]
    for turn in turns:
        outbox.again(turn, 0)
    async with asyncio.timeout(20):
        await whole.wait()
    assert came == {turn.turn_id: turn.log.events for turn in turns}
    assert numbers == list(range(1, len(numbers) + 1))
