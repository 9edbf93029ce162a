"""A broker for each module, since some are restarted; callers have a namespace of their own on it."""

from collections.abc import AsyncIterator, Iterator

import pytest
from catenary_runtime.testing import NatsServer
from catenary_tool_dispatch.testing import Caller, caller_on


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """The broker."""
    broker = NatsServer(tmp_path_factory.mktemp("nats"))
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture
async def caller(server: NatsServer) -> AsyncIterator[Caller]:
    """Who publishes calls and hears of results."""
    async with caller_on(server) as one:
        yield one
