"""One mesh for all tests that leave it whole: the simulator goes as fast as it can, and takes scripts."""

import secrets
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
from catenary_runtime.bus import Bus
from catenary_tokenizers import embedded_path

from tests.mesh import ops
from tests.mesh.harness import PATIENT, RunningMesh, Script, running_mesh
from tests.mesh.otlp import Receiver, receiving


@pytest.fixture(scope="session")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMesh]:
    """No waiting in the engines."""
    flags = ("--time-scale", "0", "--sim-script")
    with running_mesh(tmp_path_factory.mktemp("mesh"), *flags, environment=PATIENT) as one:
        yield one


@pytest.fixture(scope="session")
def spans() -> Iterator[Receiver]:
    """Where the paced mesh sends its traces."""
    with receiving() as one:
        yield one


@pytest.fixture(scope="session")
def paced_mesh(tmp_path_factory: pytest.TempPathFactory, spans: Receiver) -> Iterator[RunningMesh]:
    """Engines in real time, traced."""
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": spans.url}
    flags = ("--time-scale", "1", "--sim-script")
    with running_mesh(tmp_path_factory.mktemp("paced"), *flags, environment=environment) as one:
        yield one


@pytest.fixture(scope="session")
def ops_mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMesh]:
    """A fast model, a slow one and one that takes images; odd answers are logged with their text."""
    folder = tmp_path_factory.mktemp("ops")
    flags = ("--config", str(ops.config(folder, embedded_path())), "--sim-script")
    with running_mesh(folder, *flags, environment=ops.ENVIRONMENT) as one:
        yield one


@pytest.fixture
async def client(mesh: RunningMesh) -> AsyncIterator[httpx.AsyncClient]:
    async with mesh.client() as one:
        yield one


@pytest.fixture
async def mesh_bus(mesh: RunningMesh) -> AsyncIterator[Bus]:
    async with mesh.bus() as one:
        yield one


@pytest.fixture
async def script(mesh: RunningMesh, mesh_bus: Bus) -> AsyncIterator[Script]:
    one = Script(mesh_bus, mesh.workers, f"script-{secrets.token_hex(4)}")
    yield one
    await one.forget()


@pytest.fixture
async def engines(ops_mesh: RunningMesh) -> AsyncIterator[Script]:
    async with ops_mesh.bus() as bus:
        one = Script(bus, ops_mesh.workers, f"ops-{secrets.token_hex(4)}")
        yield one
        await one.forget()
