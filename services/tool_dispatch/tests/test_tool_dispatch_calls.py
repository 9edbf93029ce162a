"""Calls through a real broker: what an executor owes to whoever called."""

import json
from collections.abc import AsyncIterator, Iterator

import pytest
from catenary_runtime.testing import NatsServer
from catenary_tool_dispatch.testing import Caller, caller_on, serving


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    broker = NatsServer(tmp_path_factory.mktemp("nats"))
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture
async def caller(server: NatsServer) -> AsyncIterator[Caller]:
    async with caller_on(server) as one:
        yield one


async def test_a_demo_tool_is_run_and_its_result_published(server: NatsServer, caller: Caller) -> None:
    async with serving(server, caller) as service:
        result = await caller.call("calculator", {"expression": "6 * 7"})
    assert json.loads(result.output) == {"expression": "6 * 7", "result": 42}
    assert result.error is None
    assert result.executor == service.instance
    assert result.turn_id == result.key.rsplit("-", 2)[0]
    assert result.started_at > 0
