"""What is nested beyond all bounds fails its own turn, and no other."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from catenary_protocols.conversation import Tool
from catenary_protocols.turn_events import Failed
from catenary_runtime.bus import Bus
from catenary_runtime.testing import NatsServer
from catenary_tokenizer_service.testing import Peers, asking, owner_among, turn_request
from catenary_tokenizers import embedded_path

DEEP = '{"not":' * 950 + "{}" + "}" * 950


@pytest.fixture
async def peers(nats_server: NatsServer, bus: Bus, tmp_path: Path) -> AsyncIterator[Peers]:
    async with owner_among(nats_server, bus, embedded_path(), tmp_path) as (_, peers):
        yield peers


@pytest.mark.parametrize("what", ["tool", "deferred tool", "option", "answer"])
async def test_nesting_without_end_fails_its_turn_alone(peers: Peers, what: str) -> None:
    tools = (Tool(name="t", schema=DEEP, deferred=what == "deferred tool"),) if "tool" in what else ()
    template = json.dumps({"x": 0}).replace("0", DEEP) if what == "option" else ""
    deep = turn_request(asking("x", tools=tools, template=template), answer_schema=DEEP if what == "answer" else "")
    await peers.submit(deep)
    log = peers.events.setdefault(deep.turn.turn_id, [])
    await peers.until(lambda: any(isinstance(event, Failed) for event in log))
    plain = turn_request(asking("x"))
    await peers.submit(plain)
    await peers.run_of(plain.turn.turn_id)
