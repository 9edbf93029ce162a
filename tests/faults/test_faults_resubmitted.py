"""A turn that is submitted again after a call of it was published: the call is not published twice, the turn ends."""

import json
import secrets
import time
from typing import Any

import pytest
from catenary_protocols.apis.chat import CHAT
from catenary_protocols.bus.codec import Decoder, encode
from catenary_protocols.bus.messages import EventFrame, TurnRequest
from catenary_protocols.ids import RESUBMIT_STEP, TurnKey, new_turn_id
from catenary_protocols.turn_events import CallComplete, Failed, TurnEvent
from msgspec import structs
from nats.aio.msg import Msg

from tests.faults.stand import PATIENCE_S, Stand
from tests.faults.turns import CALLS, Clients

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(150)]
FRONTEND = "a-frontend-of-the-test"
_frame = Decoder(EventFrame)


def request_of(body: dict[str, Any]) -> TurnRequest:
    draft = CHAT.read(json.dumps(body).encode())
    return TurnRequest(
        turn=TurnKey(turn_id=new_turn_id(int(time.time() * 1000), secrets.token_bytes(10))),
        frontend=FRONTEND,
        frontend_incarnation=1,
        model=draft.model,
        session="resubmitted",
        conversation=draft.conversation,
        sampling=draft.sampling,
        run_tools=draft.run_tools,
        arrived_at=time.time(),
    )


async def test_its_call_is_run_once_and_the_turn_ends_in_an_error_not_to_be_retried(
    clients: Clients, stand: Stand
) -> None:
    request = request_of(CALLS)
    turn_id = request.turn.turn_id
    again = structs.replace(request, turn=TurnKey(turn_id=turn_id, attempt=RESUBMIT_STEP))
    told: dict[str, list[TurnEvent]] = {}

    def on_frame(msg: Msg) -> None:
        frame = _frame(msg.data)
        told.setdefault(frame.tokenizer, []).extend(event for item in frame.items for event in item.events)
        stand.watch.heard()

    def calls_of(tokenizer: str) -> list[TurnEvent]:
        return [event for event in told.get(tokenizer, ()) if isinstance(event, CallComplete)]

    events = await stand.bus.subscribe(stand.subjects.to("events", frontend=FRONTEND), on_frame)
    await submit(stand, "tokenizer-1", request)
    await stand.watch.until("a call is out", lambda: stand.watch.called(turn_id))
    stand.parts["tokenizer-1"].kill()
    await submit(stand, "tokenizer-2", again)
    await stand.watch.until("the end", lambda: bool(told.get("tokenizer-2")) and ended(told["tokenizer-2"][-1]))
    end = told["tokenizer-2"][-1]
    assert isinstance(end, Failed)
    assert (end.error.code, end.error.retry) == ("owner_lost", False)
    keys = {call.key for call in stand.watch.calls.values() if call.turn_id == turn_id}
    assert len(keys) == len(calls_of("tokenizer-2")) == 1
    await stand.watch.until("it has a result", lambda: keys <= set(stand.watch.results))
    stored = await stand.bus.js.stream_info(
        stand.subjects.tool_stream, subjects_filter=stand.subjects.to("tool_result", key=next(iter(keys)))
    )
    assert sum((stored.state.subjects or {}).values()) == 1
    assert [stand.letters()[key] for key in keys] == [1]
    await events.unsubscribe()


def ended(event: TurnEvent) -> bool:
    return isinstance(event, Failed)


async def submit(stand: Stand, tokenizer: str, request: TurnRequest) -> None:
    await stand.bus.request(stand.subjects.to("turn", tokenizer=tokenizer), encode(request), within=PATIENCE_S)
