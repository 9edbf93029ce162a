"""A mesh with all its doors shut: accounts and TLS at the broker, keys and TLS at the APIs. Those who belong get through,
and nothing secret is left lying about."""

import asyncio
import contextlib
import json
import os
import re
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
from catenary_frontend.core.keys import hash_of
from catenary_protocols.bus.accounts import accounts, executor_user
from catenary_protocols.bus.subjects import SERVICES, Role, Subjects
from catenary_runtime.bus import Bus
from catenary_runtime.testing import NatsServer
from nats.aio.msg import Msg

from tests.mesh.harness import MODEL, PATIENCE_S, WEATHER, RunningMesh, Script, running_mesh, stream
from tests.mesh.otlp import Receiver, receiving
from tests.mesh.test_mesh_tools_examples import LOOKUP, ROOT, python

pytestmark = pytest.mark.slow
KEY, OTHER = "sk-canary-key-one", "sk-canary-key-two"
PASSWORD = "canary-password-"
OPERATOR: Role = "operator"
SAID = "canary-prompt"
CANARIES = ("canary-key", PASSWORD, SAID, "canary-system", "canary-output", "canary-thought", "canary-schema")
APIS = ("/v1/chat/completions", "/v1/responses", "/v1/messages")


@dataclass
class Doors:
    mesh: RunningMesh
    server: NatsServer
    authority: Path
    spans: Receiver
    environment: dict[str, str]

    @property
    def trust(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.authority))

    def client(self, key: str = KEY) -> httpx.AsyncClient:
        headers = {"authorization": f"Bearer {key}"}
        return httpx.AsyncClient(base_url=self.mesh.api, verify=self.trust, headers=headers, timeout=PATIENCE_S)

    def broker(self, user: str) -> str:
        return self.server.url_of(user, PASSWORD + user).replace("nats://", "tls://")

    @asynccontextmanager
    async def bus(self) -> AsyncIterator[Bus]:
        bus = Bus(self.broker("catenary"), self.mesh.subjects, "doors", death_limit=1e9, tls=self.trust)
        await bus.connect()
        try:
            yield bus
        finally:
            await bus.close()


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    folder = tmp_path_factory.mktemp("doors")
    made = trustme.CA()
    issued = made.issue_cert("127.0.0.1")
    authority, chain, key = folder / "ca.pem", folder / "chain.pem", folder / "key.pem"
    made.cert_pem.write_to_path(authority)
    chain.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(key)
    keys = folder / "keys.toml"
    keys.write_text(
        f'[[keys]]\nhash = "{hash_of(KEY)}"\ntenant = "one"\nmesh_tools = ["*"]\n'
        f'[[keys]]\nhash = "{hash_of(OTHER)}"\ntenant = "two"\n'
    )
    users = {role: PASSWORD + role for role in (*SERVICES, OPERATOR)}
    executors = {"lookup": PASSWORD + executor_user("lookup")}
    server = NatsServer(
        folder / "nats",
        password=f"{PASSWORD}catenary",
        more={
            "accounts": accounts(Subjects(), users, f"{PASSWORD}catenary", executors),
            "tls": {"cert_file": str(chain), "key_file": str(key)},
        },
    )
    with receiving() as spans, contextlib.closing(_Started(server)):
        environment = {
            "CATENARY_NATS": server.url.replace("nats://", "tls://"),
            "CATENARY_NATS_CA": str(authority),
            "CATENARY_FRONTEND_KEYS_FILE": str(keys),
            "CATENARY_LOG_LEVEL": "debug",
            "OTEL_EXPORTER_OTLP_ENDPOINT": spans.url,
        }
        for role in SERVICES:
            url = server.url_of(role, users[role]).replace("nats://", "tls://")
            environment[f"CATENARY_{role.replace('-', '_').upper()}_NATS"] = url
        flags = ("--tls-cert", str(chain), "--tls-key", str(key), "--time-scale", "0", "--sim-script")
        with running_mesh(folder, *flags, environment=environment) as mesh:
            yield Doors(mesh, server, authority, spans, environment)


class _Started:
    def __init__(self, server: NatsServer) -> None:
        self._server = server
        server.start()

    def close(self) -> None:
        self._server.kill()


async def catenary(doors: Doors, *command: str, **environment: str) -> str:
    """What a command of ours prints."""
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "catenary_cli", *command],
        env={**os.environ, **doors.environment, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


async def test_a_turn_goes_through_and_its_call_is_run_by_an_executor_of_its_own_account(doors: Doors) -> None:
    await catenary(doors, "provision", "--tool", "lookup")
    os.environ["SSL_CERT_FILE"] = str(doors.authority)
    executor = python(str(ROOT / "docs" / "examples" / "executor.py"), doors.broker(executor_user("lookup")), "lookup")
    try:
        async with executor, doors.client() as client, doors.bus() as bus:
            results: asyncio.Queue[Msg] = asyncio.Queue()
            await bus.subscribe(bus.subjects.to("tool_result", tool="lookup"), results.put_nowait)
            await bus.nc.flush()
            request = {
                "model": MODEL,
                "messages": [{"role": "user", "content": f"Please lookup `{SAID}`"}],
                "tools": [LOOKUP],
                "nvext": {"run_tools": True, "tool_dispatch": True},
            }
            await stream(client, request)
            async with asyncio.timeout(PATIENCE_S):
                assert b"looked up" in (await results.get()).data
    finally:
        del os.environ["SSL_CERT_FILE"]


async def test_an_operator_sees_what_the_mesh_does_and_who_is_in_it(doors: Doors) -> None:
    for command in (("top", "--once"), ("services",)):
        said = json.loads(await catenary(doors, *command, "--nats", doors.broker(OPERATOR), "-o", "json"))
        assert all(f'"{service}' in json.dumps(said) for service in SERVICES), command


async def test_what_is_one_tenants_is_nothing_to_another(doors: Doors) -> None:
    async with doors.client() as one, doors.client(OTHER) as other, doors.client("sk-canary-key-wrong") as nobody:
        made = (await one.post("/v1/responses", json={"model": MODEL, "input": f"{SAID} one"})).json()
        ask = {"model": MODEL, "input": "more", "previous_response_id": made["id"]}
        assert (await one.get(f"/v1/responses/{made['id']}")).status_code == 200
        for path in (f"/v1/responses/{made['id']}", f"/v1/responses/{made['id']}/input_items"):
            assert (await other.get(path)).status_code == 404
        assert (await other.get(f"/v1/responses/{made['id']}?stream=true")).status_code == 404
        assert (await other.delete(f"/v1/responses/{made['id']}")).status_code == 404
        assert (await other.post("/v1/responses", json=ask)).status_code == 404
        assert (await one.post("/v1/responses", json=ask)).status_code == 200
        assert [(await nobody.post(path, json={})).status_code for path in APIS] == [401] * 3


async def test_a_prompt_of_one_tenant_warms_no_cache_of_another(doors: Doors) -> None:
    messages = [{"role": "user", "content": f"{SAID} " + "A long beginning that fills many blocks. " * 200}]
    cached = []
    for key in (KEY, KEY, OTHER):
        async with doors.client(key) as client:
            answer = await client.post(
                "/v1/chat/completions", json={"model": MODEL, "messages": messages, "max_tokens": 1}
            )
            cached.append(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert cached[0] == cached[2] == 0
    assert cached[1] > 0


async def test_admin_ports_are_on_loopback_alone(doors: Doors) -> None:
    for one in doors.mesh.state["processes"]:
        host, _, port = one["url"].rpartition("//")[2].partition(":")
        assert host == "127.0.0.1"
        with pytest.raises(OSError, match=r"refused|Connect"):
            await asyncio.open_connection("127.0.0.2", int(port))


async def test_no_secret_and_nothing_that_was_said_is_in_logs_spans_facts_or_metrics(doors: Doors) -> None:
    facts: list[bytes] = []
    async with doors.bus() as bus, doors.client() as client:
        await bus.subscribe(bus.subjects.to("observe"), lambda msg: facts.append(msg.data))
        script = Script(bus, doors.mesh.workers, "canary")
        turns = [await _said(client, path) for path in APIS]
        await script.say("canary-output <think>canary-thought", match="odd")
        turns.append(await _said(client, APIS[0], "odd canary-prompt"))
        await script.say('<tool_call>{"name": "get_weather", "arguments": {"city": "canary-output', match="cut")
        turns.append(await _said(client, APIS[0], "cut canary-prompt"))
        await script.forget()
        for broken in _broken():
            refused = await client.post(APIS[0], **broken)
            assert refused.status_code in {400, 401, 403, 404, 422}, broken
        trace = await asyncio.to_thread(doors.spans.trace_of, turns[0], {"request", "decode"}, PATIENCE_S)
        assert trace
        metrics = [
            (await client.get(f"{one['url']}/metrics")).text
            for one in doors.mesh.state["processes"]
            if one["url"].startswith("http:")
        ]
    shown = await catenary(doors, "config", "show", CATENARY_FRONTEND_API_KEYS=hash_of(KEY))
    logs = {path.name: path.read_text() for path in sorted((doors.mesh.data_dir / "logs").iterdir())}
    assert len(logs) >= len(SERVICES)
    assert all("service.started" in text for text in logs.values())
    assert any(turns[0] in text for text in logs.values())  # the right mesh's logs, to the end
    assert len(facts) >= len(turns)
    for where, text in {
        **logs,
        "up.log": (doors.mesh.data_dir.parent / "up.log").read_text(),
        "nats.log": (doors.server.directory / "nats.log").read_text(),
        "spans": repr(doors.spans.spans),
        "facts": repr(facts),
        "metrics": "\n".join(metrics),
        "config show": shown,
    }.items():
        assert not re.findall(f".*(?:{'|'.join((*CANARIES, hash_of(KEY)))}).*", text), where


async def _said(client: httpx.AsyncClient, path: str, text: str = f"What is the weather in `{SAID}`?") -> str:
    """The turn's id."""
    tool: dict[str, Any] = {**WEATHER["function"], "description": "canary-schema"}  # type: ignore[dict-item]
    of_api: dict[str, dict[str, Any]] = {
        APIS[0]: {
            "messages": [{"role": "system", "content": "canary-system"}, {"role": "user", "content": text}],
            "tools": [{"type": "function", "function": tool}],
        },
        APIS[1]: {"instructions": "canary-system", "input": text, "tools": [{"type": "function", **tool}]},
        APIS[2]: {
            "system": "canary-system",
            "max_tokens": 500,
            "messages": [{"role": "user", "content": text}],
            "tools": [{"name": tool["name"], "description": "canary-schema", "input_schema": tool["parameters"]}],
        },
    }
    request = {"model": MODEL, "nvext": {"run_tools": True}, **of_api[path]}
    answer = await client.post(path, json=request, headers={"x-session-id": SAID})
    assert answer.status_code == 200, answer.text
    return answer.headers["x-catenary-turn-id"]


def _broken() -> Iterator[dict[str, Any]]:
    """Requests that are refused, with something secret wherever a text may stand."""
    user = {"role": "user", "content": SAID}
    yield {"json": {"model": SAID, "messages": [user]}}
    yield {"json": {"model": MODEL, "messages": [{"role": SAID, "content": SAID}]}}
    yield {"json": {"model": MODEL, "messages": SAID}}
    yield {"json": {"model": MODEL, "messages": [user], "nvext": {"run_tools": [SAID]}}}
    yield {"json": {"model": MODEL, "messages": [user], "tools": SAID}}
    yield {"json": {"model": MODEL, "messages": [user], "tool_choice": SAID}}
    yield {"content": b'{"model": "canary-prompt', "headers": {"content-type": "application/json"}}
    yield {"json": {"model": MODEL, "messages": [user]}, "headers": {"authorization": "Bearer sk-canary-key-wrong"}}


def test_the_broker_refused_no_service_anything(doors: Doors) -> None:
    """Last: all that services have done by now was within their rights."""
    refused = [line for line in (doors.server.directory / "nats.log").read_text().splitlines() if "iolation" in line]
    assert not refused
