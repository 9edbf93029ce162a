"""What a leaked password opens at a real broker: its own door, and no other.

Who may do what is written down here once more, by hand or from the channels, so that a right too many is seen.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import nats
import pytest
from catenary_protocols.bus.accounts import MESH, accounts, executor_user
from catenary_protocols.bus.permissions import inbox
from catenary_protocols.bus.subjects import BROKER_DISCONNECTS, CHANNELS, SERVICES, Role, Subjects
from catenary_runtime.bus import Bus
from catenary_runtime.testing import NatsServer, provisioned
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js.errors import Error as JetStreamError

SUBJECTS = Subjects()
USERS: tuple[Role, ...] = (*SERVICES, "approver", "operator")
TOOLS = ("lookup", "send mail")
STRANGE = ("$SYS.REQ.SERVER.PING", BROKER_DISCONNECTS.replace("*", MESH), "_INBOX.somebody.x", "other.mesh.turn.t1")
KEY = "01jdq3v5zk8h7w2n9c4xbr6t0m-0-0"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    one = NatsServer(
        Path(tmp_path_factory.mktemp("doors")),
        more={
            "accounts": accounts(
                SUBJECTS, {role: role for role in USERS}, "pw", {tool: executor_user(tool) for tool in TOOLS}
            )
        },
        password="pw",
    )
    one.start()
    asyncio.run(provisioned(one.url, SUBJECTS, TOOLS))
    yield one
    one.kill()


class Door:
    """A connection with somebody's password, and what the broker refused it."""

    def __init__(self, nc: Client, refused: list[str]) -> None:
        self.nc, self._refused = nc, refused

    async def may_publish(self, subject: str) -> bool:
        return not await self._refusals(self.nc.publish(subject, b""))

    async def may_hear(self, subject: str) -> bool:
        return not await self._refusals(self.nc.subscribe(subject))

    async def _refusals(self, doing: object) -> list[str]:
        self._refused.clear()
        await doing  # type: ignore[misc]  # a coroutine of nats-py, which is not typed
        await self.nc.flush()  # nats-py pings before it writes what waits, so that only the second answer
        await self.nc.flush()  # stands behind the refusal
        return list(self._refused)


@asynccontextmanager
async def door(server: NatsServer, user: str) -> AsyncIterator[Door]:
    refused: list[str] = []

    async def note(error: Exception) -> None:
        refused.append(str(error))

    nc = await nats.connect(
        server.url_of(user, user),
        error_cb=note,
        allow_reconnect=False,
    )
    try:
        yield Door(nc, refused)
    finally:
        await nc.close()


def example(channel: str, role: str) -> str:
    """A subject of a channel as this role would use it."""
    names = dict.fromkeys(("tokenizer", "router", "model", "worker", "frontend", "tool", "run_by", "key", "what"), "x")
    return SUBJECTS.to(channel, service=role, instance="x", **names)


@pytest.mark.parametrize("role", USERS)
async def test_a_role_may_send_and_hear_its_channels_and_no_others(server: NatsServer, role: Role) -> None:
    async with door(server, role) as one:
        for channel in CHANNELS.values():
            subject = example(channel.name, role)
            assert await one.may_publish(subject) == (role in channel.senders), subject
            hears = role in channel.receivers or role == "operator"
            assert await one.may_hear(subject) == hears, subject
        if role != "operator":
            assert await one.may_hear(BROKER_DISCONNECTS) == (role in SERVICES)
            for subject in (
                SUBJECTS.everything(),
                "_INBOX.>",
                "$SYS.>",
                "$JS.API.STREAM.DELETE.x",
                "$KV.>",
                "$O.>",
                ">",
            ):
                assert not await one.may_hear(subject), subject
        assert not any([await one.may_publish(subject) for subject in STRANGE])


@pytest.mark.parametrize("role", SERVICES)
async def test_a_service_beats_in_its_own_name_and_is_answered_where_nobody_listens(
    server: NatsServer, role: Role
) -> None:
    async with door(server, role) as one:
        for other in SERVICES:
            assert await one.may_publish(SUBJECTS.to("beat", service=other, instance="x")) == (other == role)
            assert await one.may_hear(inbox(other, "x.1")) == (other == role)


async def test_services_are_told_which_connections_of_the_mesh_end_and_no_others(server: NatsServer) -> None:
    told: asyncio.Queue[Msg] = asyncio.Queue()
    heard: list[str] = []
    async with mesh(server) as bus:
        await bus.subscribe(BROKER_DISCONNECTS, told.put_nowait)
        await bus.nc.subscribe("$SYS.>", cb=_noting(heard))
        await bus.nc.flush()
        for user in (executor_user("lookup"), "worker"):
            async with door(server, user):
                pass
        assert b'"user":"worker"' in (await told.get()).data
        await bus.nc.flush()
        assert told.empty()
        assert set(heard) == {BROKER_DISCONNECTS.replace("*", MESH)}


STREAMS = {
    "TOOLS": SUBJECTS.tool_stream,
    "models": f"KV_{SUBJECTS.models_bucket}",
    "artifacts": f"OBJ_{SUBJECTS.artifacts_bucket}",
    "responses": f"KV_{SUBJECTS.responses_bucket}",
}
READS = {
    "frontend": {"models", "responses"},
    "tokenizer": {"models", "artifacts", "responses"},
    "router": set[str](),
    "kv-indexer": set[str](),
    "worker": {"models", "artifacts"},
    "tool-dispatch": {"TOOLS"},
    "approver": set[str](),
}


@pytest.mark.parametrize("role", READS)
async def test_a_role_reads_its_streams_and_changes_none(server: NatsServer, role: Role) -> None:
    async with door(server, role) as one:
        for name, stream in STREAMS.items():
            read = f"$JS.API.STREAM.MSG.GET.{stream}"
            assert await one.may_publish(read) == (name in READS[role]), read
            for verb in ("DELETE", "UPDATE", "MSG.DELETE"):
                assert not await one.may_publish(f"$JS.API.STREAM.{verb}.{stream}")
        assert not await one.may_publish("$JS.API.STREAM.CREATE.mine")
        writes = {"responses": f"$KV.{SUBJECTS.responses_bucket}.k", "models": f"$KV.{SUBJECTS.models_bucket}.k"}
        assert await one.may_publish(writes["responses"]) == (role in {"frontend", "tokenizer"})
        assert await one.may_publish(writes["models"]) == (role == "worker")


# --- executors --------------------------------------------------------------------------------------------------


@asynccontextmanager
async def mesh(server: NatsServer) -> AsyncIterator[Bus]:
    bus = Bus(server.url, SUBJECTS, "mesh", death_limit=1e9)
    await bus.connect()
    try:
        yield bus
    finally:
        await bus.close()


@pytest.mark.parametrize("tool", TOOLS)
async def test_an_executor_takes_the_calls_of_its_tool_and_publishes_their_results(
    server: NatsServer, tool: str
) -> None:
    results: asyncio.Queue[Msg] = asyncio.Queue()
    async with mesh(server) as bus, door(server, executor_user(tool)) as one:
        await bus.subscribe(SUBJECTS.to("tool_result", tool=tool), results.put_nowait)
        cancels = await one.nc.subscribe(SUBJECTS.to("tool_cancel", tool=tool))
        calls = await one.nc.jetstream().pull_subscribe_bind(SUBJECTS.executor_consumer(tool), SUBJECTS.tool_stream)
        await one.nc.flush()
        await bus.js.publish(
            SUBJECTS.to("tool_call", tool=tool, run_by="mesh"), b"call", headers={"traceparent": "00-1"}
        )
        (call,) = await calls.fetch(1, timeout=5)
        assert (call.data, call.headers) == (b"call", {"traceparent": "00-1"})
        await call.in_progress()
        subject, once = SUBJECTS.to("tool_result", tool=tool, key=KEY), {"Nats-Msg-Id": f"result:{tool}"}
        stored = [await one.nc.jetstream().publish(subject, b"done", headers=once) for _ in range(2)]
        assert [ack.duplicate for ack in stored] == [None, True]
        await call.ack_sync()
        assert (await results.get()).data == b"done"
        bus.publish(SUBJECTS.to("tool_cancel", tool=tool, key=KEY), b"stop")
        assert (await cancels.next_msg(5)).data == b"stop"
        consumer = await bus.js.consumer_info(SUBJECTS.tool_stream, SUBJECTS.executor_consumer(tool))
        assert (consumer.num_pending, consumer.num_ack_pending) == (0, 0)


async def test_an_executor_sees_nothing_else_and_reaches_nobody(server: NatsServer) -> None:
    heard: list[str] = []
    async with mesh(server) as bus, door(server, executor_user("lookup")) as one:
        await bus.nc.subscribe(">", cb=_noting(heard))
        js = one.nc.jetstream()
        for channel in CHANNELS.values():
            for subject in (example(channel.name, "executor"), SUBJECTS.to(channel.name)):
                assert not await one.may_publish(subject), subject
                assert not await one.may_hear(subject), subject
        for subject in (">", SUBJECTS.everything(), "$JS.>", "$SYS.>", "$SRV.>"):
            assert not await one.may_hear(subject), subject
        other = f"{SUBJECTS.tool_stream}.{SUBJECTS.executor_consumer('send mail')}"
        for subject in (
            *(
                f"$JS.API.{verb}.{SUBJECTS.tool_stream}"
                for verb in ("STREAM.INFO", "STREAM.MSG.GET", "CONSUMER.CREATE")
            ),
            *(f"$JS.API.CONSUMER.MSG.NEXT.{other}", f"$JS.ACK.{other}.1.1.1.1.0"),
        ):
            assert not await one.may_publish(subject), subject
        with pytest.raises((NatsError, JetStreamError)):
            await js.publish(SUBJECTS.to("tool_result", tool="send mail", key=KEY), b"forged", timeout=0.5)
        await bus.nc.flush()
        heard.clear()
        # The broker hands out a call at whatever subject was named; here that is one of the executor's own account.
        await bus.js.publish(SUBJECTS.to("tool_call", tool="lookup", run_by="mesh"), b"call")
        consumer = f"{SUBJECTS.tool_stream}.{SUBJECTS.executor_consumer('lookup')}"
        await one.nc.publish(
            f"$JS.API.CONSUMER.MSG.NEXT.{consumer}", json.dumps({"batch": 1}).encode(), reply=example("do", "x")
        )
        await one.nc.flush()
        await bus.nc.flush()
        assert example("do", "x") not in heard


def _noting(heard: list[str]) -> Callable[[Msg], Awaitable[None]]:
    async def note(msg: Msg) -> None:
        heard.append(msg.subject)

    return note


@pytest.mark.parametrize(("user", "password"), [("", ""), ("frontend", "wrong"), ("frontend", "router")])
async def test_without_its_password_nobody_comes_in(server: NatsServer, user: str, password: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    await reader.readline()  # what the broker says of itself
    told = {"user": user, "pass": password} if user else {}
    writer.write(f"CONNECT {json.dumps({'verbose': False, **told})}\r\nPING\r\n".encode())
    assert (await reader.read()).startswith(b"-ERR 'Authorization Violation'")
    writer.close()
    await writer.wait_closed()
