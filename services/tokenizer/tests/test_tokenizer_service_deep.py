"""What is nested beyond all bounds fails its own turn, and no other."""

import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from catenary_protocols.bus.messages import TurnRequest
from catenary_protocols.conversation import Conversation, Sampling, TextPart, Tool, UserMessage
from catenary_protocols.ids import TurnKey, new_turn_id
from catenary_protocols.turn_events import Failed
from catenary_runtime.bus import Bus
from catenary_runtime.testing import NatsServer
from catenary_tokenizer_service.testing import FRONTEND, Peers, owner_among
from catenary_tokenizers import embedded_path

ASKED = (UserMessage(parts=(TextPart(text="x"),)),)
DEEP = '{"not":' * 950 + "{}" + "}" * 950


@pytest.fixture
async def peers(nats_server: NatsServer, bus: Bus, tmp_path: Path) -> AsyncIterator[Peers]:
    async with owner_among(nats_server, bus, embedded_path(), tmp_path) as (_, peers):
        yield peers


async def submitted(peers: Peers, name: str, conversation: Conversation, answer_schema: str = "") -> str:
    turn_id = new_turn_id(int(time.time() * 1000), name.encode().ljust(10, b"."))
    request = TurnRequest(
        turn=TurnKey(turn_id=turn_id),
        frontend=FRONTEND,
        frontend_incarnation=1,
        model=peers.card.model,
        session="s",
        conversation=conversation,
        sampling=Sampling(),
        arrived_at=time.time(),
        answer_schema=answer_schema,
    )
    await peers.submit(request)
    return turn_id


@pytest.mark.parametrize("what", ["tool", "deferred tool", "option", "answer"])
async def test_nesting_without_end_fails_its_turn_alone(peers: Peers, what: str) -> None:
    tools = (Tool(name="t", schema=DEEP, deferred=what == "deferred tool"),) if "tool" in what else ()
    template = json.dumps({"x": 0}).replace("0", DEEP) if what == "option" else ""
    deep = Conversation(messages=ASKED, tools=tools, template=template)
    turn_id = await submitted(peers, "deep", deep, DEEP if what == "answer" else "")
    log = peers.events.setdefault(turn_id, [])
    await peers.until(lambda: any(isinstance(event, Failed) for event in log))
    await peers.run_of(await submitted(peers, "plain", Conversation(messages=ASKED)))
