"""Bytes on every subject that a service listens on: random, cut, changed, of a newer and of an older peer.

Whatever cannot be read is counted; whatever can is of turns, workers and tools that nobody has. Nobody falls over it.
"""

import random
from collections.abc import Iterator

import httpx
import msgspec
import pytest
from catenary_protocols.bus import messages as m
from catenary_protocols.bus.codec import encode, encode_json
from catenary_protocols.bus.examples import example
from catenary_protocols.bus.registry import TRAFFIC
from catenary_protocols.bus.subjects import CHANNELS
from catenary_protocols.wire import Wire

from tests.faults.stand import LETTER, PATIENCE_S, Part, Stand
from tests.faults.turns import CALLS, LONG, MODEL, Clients

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(200)]
TIMES = 12
"""How often each message is cut and changed."""
LONGEST = 600
STRANGER = "stranger"
COMMANDS = {m.Drain}
"""Does what it says, whoever sends it."""
NO_MESSAGES = (b"", b"\xc1", b"{", b"[]", b"null", b"\x81\xa4type" + b"\x91" * 5000, b'{"id":' * 2000)


def written(kind: type[Wire]) -> bytes:
    made = example(kind)
    return encode(made) if isinstance(made, m.Message) else encode_json(made)


def of_other_versions(kind: type[Wire]) -> Iterator[bytes]:
    """With fields that nobody knows yet, and without those that an older peer does not have."""
    made = example(kind)
    packs = isinstance(made, m.Message)
    fields = msgspec.to_builtins(made, builtin_types=(bytes, msgspec.Raw) if packs else (msgspec.Raw,))
    needed = {field.encode_name for field in msgspec.structs.fields(kind) if field.required} | {"type"}
    pack = msgspec.msgpack.encode if packs else msgspec.json.encode
    yield pack({**fields, "mood": "good", "since": [{"deep": None}]})
    yield pack({name: value for name, value in fields.items() if name in needed})


def changed(rng: random.Random, data: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(out))
        out[at : at + rng.randint(0, 3)] = rng.randbytes(rng.randint(0, 3))
        out = out or bytearray(b"\x00")
    return bytes(out)


def garbage(rng: random.Random, channel: str) -> Iterator[bytes]:
    yield from NO_MESSAGES
    for _ in range(TIMES):
        yield rng.randbytes(rng.randint(1, LONGEST))
    for kind in TRAFFIC[channel].messages:
        if kind in COMMANDS:
            continue
        whole = written(kind)
        yield whole
        yield from of_other_versions(kind)
        for _ in range(TIMES):
            yield whole[: rng.randrange(len(whole))]
            yield changed(rng, whole)


def subject_of(stand: Stand, channel: str, part: Part) -> str:
    """Where a part hears this channel: by its own name, or what strangers may say to all."""
    names = dict.fromkeys(("service", "instance", "tool", "run_by", "key", "what", "worker"), STRANGER)
    own = {part.service: part.name} if channel not in {"kv", "load"} else {}
    return stand.subjects.to(channel, **{**names, "model": MODEL, **own})


async def undecodable(part: Part) -> float:
    async with httpx.AsyncClient(timeout=PATIENCE_S) as http:
        lines = (await http.get(f"{part.url}/metrics")).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("catenary_bus_undecodable_total{"))


def crashes(part: Part) -> int:
    log = part.process.log_path.read_text()
    return log.count("bus.callback_failed") + log.count("service.crashed")


async def test_nobody_falls_over_what_is_no_message_or_another_versions(clients: Clients, stand: Stand) -> None:
    for request in (LONG, CALLS):
        await clients.truth(request)
    rng = random.Random(7)  # noqa: S311  # a repeatable one
    before = {name: (await undecodable(part), crashes(part)) for name, part in stand.parts.items()}
    incarnations = stand.watch.incarnations.copy()
    known = stand.watch.calls.keys() | set()
    async with clients.turns(LONG, CALLS) as turns:
        for part in stand.parts.values():
            for channel in CHANNELS.values():
                if part.service in channel.receivers:
                    for data in garbage(rng, channel.name):
                        stand.bus.publish(subject_of(stand, channel.name, part), data, reply="_INBOX.nobody")
            await stand.bus.nc.flush()
        for turn, request in zip(turns, (LONG, CALLS), strict=True):
            await clients.same(turn, request)
    for name, part in stand.parts.items():
        assert part.alive, name
        assert crashes(part) == before[name][1], part.process.log_path
        assert await undecodable(part) > before[name][0], name
        assert stand.watch.incarnations[name] == incarnations[name], name
    async with clients.turns(LONG, CALLS) as turns:
        for turn, request in zip(turns, (LONG, CALLS), strict=True):
            await clients.same(turn, request)
    for key in stand.watch.calls.keys() - known:
        if stand.watch.calls[key].tool != LETTER:
            del stand.watch.calls[key]
    for name in stand.watch.beats.keys() - stand.parts.keys():
        del stand.watch.beats[name]
