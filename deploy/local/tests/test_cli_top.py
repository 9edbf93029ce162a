"""`catenary top`: what beats tell."""

from catenary_cli.top import Watch
from catenary_protocols.bus.codec import encode
from catenary_protocols.bus.messages import Beat, LiveTurn
from nats.aio.client import Client
from nats.aio.msg import Msg


async def test_a_turn_that_ended_is_not_counted_while_its_client_may_come_back() -> None:
    turns = (
        LiveTurn(turn_id="prepared", at=""),
        LiveTurn(turn_id="queued", at="", events=1),
        LiveTurn(turn_id="placed", at="worker-1", events=1),
        LiveTurn(turn_id="running", at="worker-2", offset=3, events=5),
        LiveTurn(turn_id="answered", at="", offset=9, events=12),
        LiveTurn(turn_id="failed", at="", events=2),
    )
    watch = Watch()
    beat = Beat(service="tokenizer", instance="tokenizer", incarnation=1, turns=turns)
    await watch.on_beat(Msg(_client=Client(), data=encode(beat)))
    view = watch.view(1.0)
    assert (view.turns, view.unplaced) == (4, 2)
