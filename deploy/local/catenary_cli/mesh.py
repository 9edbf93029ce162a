"""A whole mesh on this machine: broker, streams, six services; up together, drained in order.

The frontend goes first, so that its turns finish while everything behind it still stands; the broker goes last.
"""

import asyncio
import contextlib
import fcntl
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

from catenary_protocols.errors import TransportError
from catenary_runtime.bus import connect_once, redact
from catenary_runtime.provision import provision
from catenary_runtime.tls import broker_tls
from nats.errors import Error as NatsError

from catenary_cli.broker import Broker, claim
from catenary_cli.options import Options
from catenary_cli.plan import plan_services
from catenary_cli.processes import Child, LaunchError, Plan, warnings

STATE = "mesh.json"
MIN_PAYLOAD = 8 * 1024 * 1024
BROKER_S = 15.0
POLL_S = 0.05
Say = Callable[[str], None]


class Mesh:
    """What runs. `running` starts and ends it.

    Attributes:
        broker: URL with the credentials of the person at the terminal.
        url_of: URL with those of a service.
        nats: the broker's process, None when it is somebody else's.
        services: in the order in which they are drained.
    """

    def __init__(self, options: Options, say: Say) -> None:
        self.options = options
        self.say = say
        self.port = claim(options.host, options.port)
        self.broker = options.broker
        self.url_of: Callable[[str], str] = lambda _: options.broker
        self.nats: Child | None = None
        self.services: list[Child] = []

    @property
    def api(self) -> str:
        """Base URL of the HTTP APIs."""
        return self.services[0].plan.url.removesuffix("/ready")

    @property
    def children(self) -> list[Child]:
        """All processes, the broker first."""
        return [*([self.nats] if self.nats else []), *self.services]

    async def start(self) -> None:
        """Bring everything up and wait until all of it is ready; raises `LaunchError`."""
        if not self.broker:
            await self._start_broker()
        await _provision(self.broker, self.options)
        self.services = [self._child(plan) for plan in plan_services(self.options, self.url_of, self.port)]
        for child in self.services:
            await child.start()
        await self._until_ready()
        for child in self.children:
            child.keep()

    async def stop(self) -> None:
        """Drain in order, the workers together."""
        for child in self.services:
            if child.plan.service != "worker":
                await child.stop()
        await asyncio.gather(*(child.stop() for child in self.services))
        if self.nats:
            await self.nats.stop()

    def kill(self) -> None:
        """End everything now."""
        for child in self.children:
            child.kill()

    def state(self) -> dict[str, object]:
        """What `mesh.json` holds, for the other commands and for whoever writes scripts."""
        return {
            "api": self.api,
            "broker": self.broker,
            "namespace": self.options.common.namespace,
            "models": [model.name for model in self.options.models],
            "processes": [
                {
                    "service": child.plan.service,
                    "instance": child.plan.instance,
                    "pid": child.pid,
                    "url": child.plan.url.removesuffix("/ready"),
                    "log": str(child.log),
                }
                for child in self.children
            ],
        }

    def _child(self, plan: Plan) -> Child:
        return Child(plan, self.options.data_dir / "logs" / f"{plan.instance}.log", self.say)

    async def _start_broker(self) -> None:
        broker = Broker.at(self.options.data_dir.resolve() / "nats", self.options.flags.nats_port)
        self.url_of, self.broker = broker.url, broker.url()
        self.nats = self._child(broker.plan(self.options.subjects))
        await self.nats.start()
        deadline = asyncio.get_running_loop().time() + BROKER_S
        while True:
            try:
                nc = await connect_once(self.broker, "catenary-up")
            except TransportError as error:
                if self.nats.ended is not None or asyncio.get_running_loop().time() > deadline:
                    raise LaunchError(f"nats-server did not start: {error.message}\n{self.nats.tail()}") from error
                await asyncio.sleep(POLL_S)
            else:
                await nc.close()
                return

    async def _until_ready(self) -> None:
        """All of them at once: one that was ready may have a model to load since another one is."""
        deadline = asyncio.get_running_loop().time() + self.options.flags.ready_s
        while True:
            told = await asyncio.gather(*(warnings(child.plan.url) for child in self.services))
            waiting = [child for child, said in zip(self.services, told, strict=True) if said is None]
            if not waiting:
                for child, said in zip(self.services, told, strict=True):
                    for line in said or ():
                        self.say(f"warning: {child.plan.instance}: {line}")
                return
            ended = [child for child in waiting if child.ended is not None]
            if ended or asyncio.get_running_loop().time() > deadline:
                why = [
                    f"  {child.plan.instance} {_state(child)}; its log {child.log} ends in\n{child.tail()}"
                    for child in ended or waiting
                ]
                raise LaunchError("\n".join(["the mesh did not become ready:", *why]))
            await asyncio.sleep(POLL_S)


def _state(child: Child) -> str:
    return "is not ready" if child.ended is None else f"ended with exit code {child.ended}"


async def _provision(url: str, options: Options) -> None:
    """Check the broker's limits and make streams and consumers; raises `LaunchError`."""
    nc = await connect_once(url, "catenary-up", tls=broker_tls(options.common) if options.broker else None)
    try:
        if nc.max_payload < MIN_PAYLOAD:
            raise LaunchError(
                f"the broker at {redact(url)} takes messages of {nc.max_payload} bytes; set max_payload: 8MB",
                field="nats",
            )
        await provision(nc.jetstream(), options.subjects, options.tools)
    except (NatsError, TimeoutError) as error:
        raise LaunchError(f"cannot make streams at {redact(url)} (is JetStream on?): {error}", field="nats") from error
    finally:
        await nc.close()


@contextlib.contextmanager
def _alone_in(directory: Path) -> Iterator[None]:
    """One mesh per data directory; raises `LaunchError` when there is one already."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = (directory / "lock").open("w")
    except OSError as error:
        told = f"{directory} cannot be written ({error.strerror}); choose another with --data-dir"
        raise LaunchError(told, field="data_dir") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise LaunchError(f"a mesh runs in {directory} already; choose another with --data-dir") from error
        yield


@contextlib.asynccontextmanager
async def running(options: Options, say: Say) -> AsyncIterator[Mesh]:
    """A mesh that is ready; drained at the end, killed when it cannot start."""
    with _alone_in(options.data_dir):
        mesh = Mesh(options, say)
        state = options.data_dir / STATE
        try:
            await mesh.start()
            state.touch(mode=0o600)
            state.write_text(json.dumps(mesh.state(), indent=2) + "\n")
            yield mesh
        except BaseException:
            mesh.kill()
            raise
        else:
            await mesh.stop()
        finally:
            state.unlink(missing_ok=True)


def broker_of(options: Options) -> str:
    """Broker URL: the one that was named, else that of the mesh that runs in the data directory, else the default."""
    if options.broker:
        return options.broker
    try:
        return str(json.loads((options.data_dir / STATE).read_bytes())["broker"])
    except FileNotFoundError:
        return options.common.nats
