"""What JetStream must hold before services start: made by `catenary provision`, never by services.

tool-dispatch alone may add consumers at run time (`ensure_consumer`), for tools that an MCP server names.
"""

from collections.abc import Iterable

from catenary_protocols.bus.subjects import TOOL_STREAM_CHANNELS, Subjects
from nats.js import JetStreamContext
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    DiscardPolicy,
    KeyValueConfig,
    ObjectStoreConfig,
    RetentionPolicy,
    StorageType,
    StreamConfig,
)
from nats.js.errors import NotFoundError

MB = 1024 * 1024
REDELIVER_S = (5.0, 10.0, 20.0, 40.0)
"""Seconds without a sign of life after which a call is given to another executor: the first time, the second, …"""
MAX_DELIVER = 5


async def provision(js: JetStreamContext, subjects: Subjects, tools: Iterable[str] = ()) -> list[str]:
    """Make or update everything; returns a line for each thing. Idempotent."""
    done = [await _stream(js, subjects)]
    done.append(await _bucket(js, subjects.models_bucket, ttl_s=0, size=16 * MB))
    done.append(await _bucket(js, subjects.responses_bucket, ttl_s=24 * 3600, size=512 * MB))
    done.append(await _store(js, subjects.artifacts_bucket, size=1024 * MB))
    done += [await _consumer(js, subjects, tool) for tool in tools]
    return done


async def _stream(js: JetStreamContext, subjects: Subjects) -> str:
    config = StreamConfig(
        name=subjects.tool_stream,
        subjects=[subjects.to(channel.name) for channel in TOOL_STREAM_CHANNELS],
        storage=StorageType.FILE,
        retention=RetentionPolicy.LIMITS,
        discard=DiscardPolicy.OLD,
        max_age=3600.0,
        max_bytes=256 * MB,
        duplicate_window=600.0,
        allow_direct=True,
    )
    try:
        await js.stream_info(subjects.tool_stream)
    except NotFoundError:
        await js.add_stream(config)
        return f"made stream {subjects.tool_stream}"
    await js.update_stream(config)
    return f"kept stream {subjects.tool_stream}"


async def _bucket(js: JetStreamContext, name: str, *, ttl_s: float, size: int) -> str:
    try:
        config = (await js.stream_info(f"KV_{name}")).config
    except NotFoundError:
        await js.create_key_value(
            KeyValueConfig(bucket=name, ttl=ttl_s or None, max_bytes=size, storage=StorageType.FILE)
        )
        return f"made bucket {name}"
    if (config.max_age or 0, config.max_bytes) != (ttl_s, size):
        await js.update_stream(config.evolve(max_age=ttl_s, max_bytes=size))
    return f"kept bucket {name}"


async def _store(js: JetStreamContext, name: str, *, size: int) -> str:
    try:
        await js.object_store(name)
    except NotFoundError:
        await js.create_object_store(name, config=ObjectStoreConfig(bucket=name, max_bytes=size))
        return f"made object store {name}"
    return f"kept object store {name}"


async def _consumer(js: JetStreamContext, subjects: Subjects, tool: str) -> str:
    name = subjects.executor_consumer(tool)
    try:
        await js.consumer_info(subjects.tool_stream, name)
    except NotFoundError:
        await ensure_consumer(js, subjects, tool)
        return f"made consumer {name}"
    await ensure_consumer(js, subjects, tool)
    return f"kept consumer {name}"


async def ensure_consumer(js: JetStreamContext, subjects: Subjects, tool: str) -> None:
    """The durable pull consumer that every executor of a tool shares. Idempotent."""
    await js.add_consumer(
        subjects.tool_stream,
        ConsumerConfig(
            durable_name=subjects.executor_consumer(tool),
            filter_subject=subjects.to("tool_call", tool=tool, run_by="mesh"),
            deliver_policy=DeliverPolicy.NEW,
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=REDELIVER_S[0],
            backoff=list(REDELIVER_S),
            max_deliver=MAX_DELIVER,
            max_ack_pending=1024,
        ),
    )
