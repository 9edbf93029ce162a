"""Fixtures for all tests: one real broker a session, a namespace of its own for each test."""

import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import structlog
from catenary_protocols.bus.subjects import Subjects
from catenary_runtime.bus import Bus
from catenary_runtime.testing import NatsServer, bus_to
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

# A loaded machine makes single examples slow, and a failure in CI must be the same failure at home.
settings.register_profile("tests", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")
# Services configure their own logs; a test's must not spend minutes on drawing the locals of a traceback.
structlog.configure(processors=[structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)])
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """A nats-server with JetStream for the whole session."""
    server = NatsServer(Path(tmp_path_factory.mktemp("nats")))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def subjects() -> Subjects:
    """A namespace nobody else uses."""
    return Subjects(f"test{next(_numbers)}.v1")


@pytest.fixture
async def bus(nats_server: NatsServer, subjects: Subjects) -> AsyncIterator[Bus]:
    """A connected bus in the test's namespace."""
    async with bus_to(nats_server, "test", subjects) as one:
        yield one


class OneMesh(LoadScopeScheduling):  # type: ignore[misc]
    """Tests run side by side, each where there is time; those of a mesh in one process, so that it starts once."""

    def _split_scope(self, nodeid: str) -> str:
        return "mesh" if nodeid.startswith("tests/mesh/") else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> OneMesh:
    """Ours, where tests run side by side."""
    return OneMesh(config, log)
