"""One mesh for all faults. Each test gets it whole, and its faults are undone after it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.faults.stand import Stand, standing
from tests.faults.turns import Clients


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Faults take minutes: `make faults` runs them, `make test` does not."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.slow)


COUNTED = pytest.StashKey[dict[str, int]]()
BY_FAULT = pytest.StashKey[dict[str, dict[str, int]]]()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def clients_of_all(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> AsyncIterator[Clients]:
    async with standing(tmp_path_factory.mktemp("faults")) as stand:
        clients = Clients(stand)
        yield clients
        runs, stored = stand.letters(), await stand.stored()
        request.config.stash[COUNTED] = {
            "turns": clients.counts.total() - clients.counts["lost silently"],
            **clients.counts,
            "lost silently": clients.counts["lost silently"],
            "calls": stored,
            "calls run": len(runs),
            "calls run twice": sum(count > 1 for count in runs.values()),
        }


@pytest_asyncio.fixture(loop_scope="session")
async def clients(clients_of_all: Clients, request: pytest.FixtureRequest) -> AsyncIterator[Clients]:
    before = clients_of_all.counts.copy()
    yield clients_of_all
    faults = request.config.stash.setdefault(BY_FAULT, {})
    faults[request.node.name.removeprefix("test_").replace("_", " ")] = dict(clients_of_all.counts - before)
    await clients_of_all.stand.whole()


@pytest.fixture
def stand(clients: Clients) -> Stand:
    return clients.stand


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for fault, became in config.stash.get(BY_FAULT, {}).items():
        terminalreporter.write_line(f"{fault}: " + ", ".join(f"{count} {what}" for what, count in became.items()))
    counts = config.stash.get(COUNTED, None)
    if counts:
        terminalreporter.write_line("faults: " + ", ".join(f"{count} {what}" for what, count in counts.items()))
