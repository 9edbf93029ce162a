"""From options to processes: one list, in the order in which they are drained."""

import json
import secrets
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from catenary_runtime.hub import is_hub_id

from catenary_cli.broker import free_ports
from catenary_cli.models import Model
from catenary_cli.options import Options
from catenary_cli.processes import Plan

MODULES = {
    "frontend": "catenary_frontend",
    "tokenizer": "catenary_tokenizer_service",
    "router": "catenary_router",
    "kv-indexer": "catenary_kv_indexer",
    "tool-dispatch": "catenary_tool_dispatch",
    "worker": "catenary_worker",
}
ANYWHERE = {"0.0.0.0", "::"}  # noqa: S104  # compared with, not bound
UrlOf = Callable[[str], str]
"""Broker URL of a service."""


@dataclass(frozen=True, slots=True)
class Job:
    """One instance of a service and what it takes beside the common flags."""

    service: str
    instance: str
    flags: tuple[str, ...] = ()


def plan_services(options: Options, url_of: UrlOf, port: int) -> list[Plan]:
    """One process for each service, and the workers of each model. On a shared broker, names get a suffix."""
    mark = f"-{secrets.token_hex(2)}" if options.broker else ""
    host = "127.0.0.1" if options.host in ANYWHERE else options.host
    tls = (f"--tls-cert={options.tls_cert}", f"--tls-key={options.tls_key}") if options.tls_cert else ()
    front = Job("frontend", f"frontend{mark}", (f"--host={options.host}", f"--port={port}", *tls))
    others = [Job(name, f"{name}{mark}") for name in MODULES if name not in {"frontend", "worker"}]
    others += _workers(options, mark)
    return [
        _plan(options, url_of, front, f"{'https' if tls else 'http'}://{host}:{port}"),
        *(
            _plan(options, url_of, job, f"http://{options.common.host}:{admin}", f"--admin-port={admin}")
            for job, admin in zip(others, free_ports(len(others)), strict=True)
        ),
    ]


def _workers(options: Options, mark: str) -> Iterator[Job]:
    models = [model for model in options.models for _ in range(model.workers)]
    for number, model in enumerate(models, start=1):
        yield Job("worker", f"worker-{number}{mark}", _worker_flags(model, sim_script=options.flags.sim_script))


def _worker_flags(model: Model, *, sim_script: bool) -> tuple[str, ...]:
    given = {
        "model": model.name,
        "model-path": _absolute(model.path),
        "engine": model.engine,
        "engine-options": json.dumps(model.options) if model.options else "",
        "parser": model.parser,
        "reasoning": model.reasoning,
        "context": str(model.context or ""),
        "sim-script": "true" if sim_script else "",
    }
    return tuple(f"--{name}={value}" for name, value in given.items() if value)


def _absolute(path: str) -> str:
    """Services have working directories of their own; a hub id stays one."""
    return path if not path or is_hub_id(path) else str(Path(path).resolve())


def _plan(options: Options, url_of: UrlOf, job: Job, url: str, *flags: str) -> Plan:
    config = options.flags.config
    return Plan(
        service=job.service,
        instance=job.instance,
        command=(
            sys.executable,
            *("-m", MODULES[job.service]),
            *((f"--config={config}",) if config else ()),
            f"--namespace={options.common.namespace}",
            f"--data-dir={options.data_dir}",
            f"--instance={job.instance}",
            *job.flags,
            *flags,
        ),
        environment={**options.flags.environment, "CATENARY_NATS": url_of(job.service)},
        url=f"{url}/ready",
        drain_s=options.common.drain_s,
    )
