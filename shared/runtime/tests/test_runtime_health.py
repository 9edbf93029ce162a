"""The admin port: the status code is the contract, the body explains; logs are JSON without secrets of the format."""

import asyncio
import gc
import json
import subprocess
import sys
import time
import warnings
from collections.abc import MutableMapping
from email.utils import parsedate_to_datetime
from typing import Any

import pytest
from catenary_runtime.health import DATE_S, Health, admin_app, server_for

LOGS = """
import logging as stdlib
import structlog
from catenary_runtime import logging
logging.setup("worker", "w-1", "info")
structlog.get_logger().info("turn.done", tokens=3)
structlog.get_logger().debug("not shown")
stdlib.getLogger("nats").warning("from a library")
try:
    1 / 0
except ZeroDivisionError:
    structlog.get_logger().exception("service.crashed")
"""


async def get(health: Health, path: str) -> tuple[int, str]:
    """Status and body through the ASGI face."""
    sent: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.disconnect"}

    await admin_app(health)({"type": "http", "path": path}, receive, send)
    return sent[0]["status"], sent[1]["body"].decode()


@pytest.mark.parametrize(("engine", "stopping", "status"), [(True, False, 200), (False, False, 503), (True, True, 503)])
async def test_ready_needs_every_check_and_no_end_in_sight(engine: bool, stopping: bool, status: int) -> None:
    health = Health("worker", {"bus": lambda: (True, "connected"), "engine": lambda: (engine, "loading")})
    health.stopping = stopping
    code, body = await get(health, "/ready")
    told = json.loads(body)
    assert (code, told["ready"], told["service"]) == (status, status == 200, "worker")
    assert {row["check"]: row["ok"] for row in told["checks"]}["engine"] is engine
    assert (await get(health, "/health"))[0] == 200
    assert (await get(health, "/health/ready"))[0] == status


@pytest.mark.parametrize("rounds", range(8))
async def test_a_server_that_is_cancelled_while_it_starts_leaves_no_socket_open(rounds: int) -> None:
    server = server_for(admin_app(Health("worker")), "127.0.0.1", 0)
    serving = asyncio.create_task(server.serve())
    for _ in range(rounds):
        await asyncio.sleep(0)
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    server.close()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        gc.collect()
    assert not told


@pytest.mark.parametrize("well", [True, False])
async def test_a_warning_is_told_and_keeps_no_traffic_away(well: bool) -> None:
    health = Health("worker", {"bus": lambda: (True, "connected")}, {"disk": lambda: (well, "nearly full")})
    code, body = await get(health, "/ready")
    assert (code, json.loads(body)["ready"]) == (200, True)
    assert {"check": "disk", "ok": well, "detail": "nearly full"} in json.loads(body)["checks"]
    assert health.warning() == ("" if well else "disk: nearly full")


async def test_other_paths_are_not_found_and_say_what_there_is() -> None:
    assert await get(Health("worker"), "/admin") == (404, "/health /ready /metrics\n")


async def test_metrics_are_in_prometheus_text() -> None:
    status, body = await get(Health("worker"), "/metrics")
    assert status == 200
    assert "# TYPE catenary_bus_dropped_total counter" in body


async def test_a_server_dates_its_answers_and_leaves_when_told() -> None:
    server = server_for(admin_app(Health("worker")), "127.0.0.1", 0)
    serving = asyncio.create_task(server.serve())
    reader, writer = await asyncio.open_connection("127.0.0.1", await server.started_on())
    writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    head, _, _ = (await reader.read()).partition(b"\r\n\r\n")
    (date,) = [line for line in head.decode().lower().splitlines() if line.startswith("date: ")]
    assert abs(parsedate_to_datetime(date.removeprefix("date: ")).timestamp() - time.time()) < 2 * DATE_S
    writer.close()
    server.leave()
    async with asyncio.timeout(DATE_S / 2):
        await serving


async def test_a_server_that_never_started_can_be_closed() -> None:
    server_for(admin_app(Health("worker")), "127.0.0.1", 0).close()


def test_logs_off_a_terminal_are_json_lines_with_who_wrote_them() -> None:
    done = subprocess.run([sys.executable, "-c", LOGS], capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [(line["event"], line["level"]) for line in lines] == [
        ("turn.done", "info"),
        ("from a library", "warning"),
        ("service.crashed", "error"),
    ]
    assert lines[0]["tokens"] == 3
    assert {line["service"] for line in lines} == {"worker"}
    assert "ZeroDivisionError" in lines[2]["exception"]
