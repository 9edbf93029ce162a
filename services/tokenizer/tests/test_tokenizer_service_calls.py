"""Calls onto the bus: nothing is kept of one that nobody waits for any more."""

import pytest
from catenary_protocols.bus.messages import Retention
from catenary_protocols.turn_events import CallComplete
from catenary_runtime.bus import Bus
from catenary_runtime.presence import Presence
from catenary_tokenizer_service.core.calls import policy_for
from catenary_tokenizer_service.core.generated import Generated
from catenary_tokenizer_service.egress.calls import CallPublisher
from catenary_tokenizer_service.egress.frames import Outbox
from catenary_tokenizer_service.testing import asking, turn_request
from catenary_tokenizer_service.turn import Turn


async def test_a_cancelled_call_waits_for_no_acknowledgement(bus: Bus) -> None:
    turn = Turn(
        turn_request(asking("x")), {}, "f", policy_for(["tide"], ["tide"], "auto"), Generated(attempt=0), Retention()
    )
    outbox = Outbox(bus, Presence(bus, "tokenizer", "t", lambda: pytest.fail("no beat is due")))
    calls = CallPublisher(bus, outbox, 60.0, lambda _: pytest.fail("nobody published it before"))
    calls.publish(turn, CallComplete(index=0, id="c", name="tide", arguments="{}", key="t-0-0", run_by="mesh"))
    assert len(bus._asks) == 1
    calls.cancel(turn, "the client left")
    assert not bus._asks
