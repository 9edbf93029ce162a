"""The mesh of the operation tests: a fast model, a slow one, one that takes images; and what it tells of itself."""

import asyncio
import json
import shutil
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.mesh.harness import MODEL, PATIENCE_S, RunningMesh
from tests.models.build import build

PACED = "paced"
"""Served slowly: some 10 ms a token."""
VISION = "m-vision"
CONFIG = """
[[models]]
name = "catenary-sim"
workers = 2
sim = {{ blocks = 32768, time_scale = 0 }}

[[models]]
name = "paced"
path = {paced}
workers = 1
sim = {{ time_scale = 2 }}

[[models]]
name = "m-vision"
path = {vision}
workers = 1
parser = "hermes"
reasoning = "none"
context = 131072
sim = {{ time_scale = 0 }}
"""
_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Certificates that a client would load each time anew, for nothing."""
ENVIRONMENT = {
    "CATENARY_TOKENIZER_LOG_CONTENT": "true",
    "CATENARY_FRONTEND_RESUME_S": "0.5",
}


def config(folder: Path, embedded: Path) -> Path:
    """The mesh's `catenary.toml`."""
    vision = build(folder / "models")[VISION]
    paced = folder / PACED
    shutil.copytree(embedded, paced)  # files of its own: models of the same files share their workers
    facts = json.loads((paced / "config.json").read_text())
    (paced / "config.json").write_text(json.dumps({**facts, "model_type": PACED}))
    file = folder / "ops.toml"
    file.write_text(CONFIG.format(paced=json.dumps(str(paced)), vision=json.dumps(str(vision))))
    return file


@dataclass(frozen=True)
class Ask:
    """A request with the words `text` in the form of one API."""

    path: str
    body: Callable[[str, str], dict[str, Any]]


APIS = {
    "chat": Ask("/v1/chat/completions", lambda model, text: {"model": model, "messages": [_user(text)]}),
    "messages": Ask(
        "/v1/messages", lambda model, text: {"model": model, "max_tokens": 9000, "messages": [_user(text)]}
    ),
    "responses": Ask("/v1/responses", lambda model, text: {"model": model, "input": text, "store": False}),
    "stored response": Ask("/v1/responses", lambda model, text: {"model": model, "input": text}),
}


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def chat(text: str, model: str = MODEL, **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": [_user(text)], **more}


async def metric(mesh: RunningMesh, service: str, name: str, **labels: str) -> float:
    """A metric's sum over all instances of a service and all series that have these labels."""
    total = 0.0
    async with httpx.AsyncClient(timeout=PATIENCE_S, verify=_NO_TLS) as http:
        for one in mesh.state["processes"]:
            if one["service"] == service:
                page = (await http.get(f"{mesh.url(one['instance'])}/metrics")).text
                total += sum(
                    sample.value
                    for family in text_string_to_metric_families(page)
                    for sample in family.samples
                    if sample.name == name and labels.items() <= sample.labels.items()
                )
    return total


async def until_metric(mesh: RunningMesh, service: str, name: str, value: float, **labels: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await metric(mesh, service, name, **labels) != value:
            pass


async def until_idle(mesh: RunningMesh) -> None:
    """Until nobody knows of any turn any more."""
    await until_metric(mesh, "frontend", "catenary_inflight_turns", 0)
    await until_metric(mesh, "tokenizer", "catenary_tokenizer_turns", 0)
    await until_metric(mesh, "router", "catenary_route_queue_depth", 0)
    await until_metric(mesh, "worker", "catenary_worker_turns", 0)


@asynccontextmanager
async def connection(mesh: RunningMesh) -> AsyncIterator[tuple[Any, Any]]:
    """A connection to the frontend, without HTTP."""
    reader, writer = await asyncio.open_connection(*address(mesh))
    try:
        yield reader, writer
    finally:
        writer.close()


def address(mesh: RunningMesh) -> tuple[str, int]:
    """Where the frontend listens."""
    host, port = mesh.api.removeprefix("http://").split(":")
    return host, int(port)


async def deaf(mesh: RunningMesh, receive: int) -> socket.socket:
    """A connection of a client that does not read: its kernel takes in about `receive` bytes for it."""
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
    one.setblocking(False)
    await asyncio.get_running_loop().sock_connect(one, address(mesh))
    return one


def post(path: str, body: dict[str, Any]) -> bytes:
    """A request as bytes, the last one of its connection."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n"
    return f"{head}connection: close\r\n\r\n".encode() + data
