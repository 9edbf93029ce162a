"""Fixtures for all tests: one real broker a session, a namespace of its own for each test."""

import asyncio
import faulthandler
import gc
import itertools
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Generator, Iterator
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
TEARDOWN_S = 120.0
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

    def remove_node(self, node: object) -> str | None:
        """A process died; the test that it ran is not tried again."""
        crashed: str | None = super().remove_node(node)
        for scope, tests in list(self.workqueue.items()):
            tests.pop(crashed, None)
            if not tests:
                del self.workqueue[scope]
        return crashed


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> OneMesh:
    """Ours, where tests run side by side."""
    return OneMesh(config, log)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Every test ends: pytest-timeout looks away once a test has failed, and its teardown could then wait for ever."""
    marker = item.get_closest_marker("timeout")
    limit = float(marker.args[0] if marker else item.config.getini("timeout"))
    guard = threading.Timer(limit + TEARDOWN_S, give_up, [item])
    guard.daemon = True
    guard.start()
    try:
        return (yield)
    finally:
        guard.cancel()


def give_up(item: pytest.Item) -> None:
    """Say what all tasks wait for, then end this process and its children: xdist goes on in another one."""
    item.config.pluginmanager.getplugin("capturemanager").suspend_global_capture()
    sys.stderr.write(f"ERROR {item.nodeid} did not end; what it waited for:\n")
    for task in [one for one in gc.get_objects() if isinstance(one, asyncio.Task) and not one.done()]:
        task.print_stack(limit=4, file=sys.stderr)
    sys.stderr.flush()
    faulthandler.dump_traceback(file=sys.stderr)
    for children in Path("/proc/self/task").glob("*/children"):
        for child in children.read_text().split():
            os.kill(int(child), signal.SIGTERM)
    os._exit(1)
