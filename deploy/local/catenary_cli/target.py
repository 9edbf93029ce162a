"""The mesh that a command speaks to: the one that was named, else the one that runs in the data directory here."""

import argparse
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from catenary_protocols.bus.subjects import Subjects
from catenary_protocols.errors import CatenaryError, RequestError
from catenary_runtime.bus import connect_once
from catenary_runtime.tls import broker_tls
from nats.aio.client import Client

from catenary_cli.ask import KEY, get
from catenary_cli.mesh import STATE
from catenary_cli.options import Flags, Options, resolve


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where it is.

    Attributes:
        api: base URL of the HTTP APIs.
        broker: URL, with credentials.
        key: of the APIs, "" without one.
        state: what `mesh.json` holds, empty for a mesh that does not run here.
    """

    options: Options
    api: str
    broker: str
    subjects: Subjects
    key: str = ""
    state: Mapping[str, Any] = field(default_factory=dict)

    async def connect(self, name: str) -> Client:
        """A connection to the broker; raises `TransportError`."""
        tls = broker_tls(self.options.common) if self.options.broker else None
        return await connect_once(self.broker, name, tls=tls)

    def processes(self, service: str) -> list[dict[str, Any]]:
        """Those of `mesh.json`."""
        return [one for one in self.state.get("processes", ()) if one["service"] == service]

    async def models(self) -> list[str]:
        """Names that are served; raises `CatenaryError`."""
        body = await get(self.api, "/v1/models", self.key)
        return [str(one["id"]) for one in msgspec.json.decode(body)["data"]]

    async def model(self, asked: str = "") -> str:
        """The model that was asked for, else the first; raises `CatenaryError`."""
        names = await self.models()
        if asked and asked not in names:
            raise RequestError(f"no model {asked!r}; there are {', '.join(names) or 'none'}", field="model")
        if not names:
            raise CatenaryError(f"the mesh at {self.api} serves no model yet", code="no_worker")
        return asked or names[0]


def add_target(parser: argparse.ArgumentParser, otherwise: str = "the mesh that runs here") -> None:
    """The flags that name a mesh. `otherwise`: which it is when none is named."""
    add = parser.add_argument_group("which mesh").add_argument
    add("--api", default="", metavar="URL", help=f"base URL of its HTTP APIs (default: {otherwise})")
    add("--nats", default="", metavar="URL", help=f"its broker (env CATENARY_NATS; default: {otherwise})")
    add("--namespace", default="", help="first tokens of every subject (default catenary.v1)")
    add("--data-dir", default="", help="data directory of the mesh that runs here (default .data)")
    add("--config", default="", help="catenary.toml to read (env CATENARY_CONFIG; default ./catenary.toml)")


def target(args: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> Target:
    """The mesh of these flags; raises `ConfigError`. Whether it is there shows when it is asked."""
    flags = Flags(config=args.config, nats=args.nats, namespace=args.namespace, data_dir=args.data_dir)
    options = resolve(flags, environ)
    path = options.data_dir / STATE
    state = json.loads(path.read_bytes()) if path.exists() else {}
    if args.api not in {"", state.get("api")} or options.broker not in {"", state.get("broker")}:
        state = {}
    host = "127.0.0.1" if options.host in {"0.0.0.0", "::"} else options.host  # noqa: S104  # compared with, not bound
    return Target(
        options=options,
        api=(args.api or state.get("api") or f"http://{host}:{options.port}").rstrip("/"),
        broker=options.broker or state.get("broker") or options.common.nats,
        subjects=Subjects(args.namespace or state.get("namespace") or options.common.namespace),
        key=environ.get(KEY, ""),
        state=state,
    )
