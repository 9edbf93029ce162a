"""llama.cpp as an engine: what its slots hold, how turns end, what it refuses."""

import asyncio
import json
import os
import random
import signal
import time
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from catenary_parsers import ToolSpec, structural_tag
from catenary_protocols.errors import CapacityError, EngineError, RequestError
from catenary_tokenizers import embedded_path, load, pack, unpack
from catenary_worker.engines.base import EngineSetup, EngineTurn, engine_for
from catenary_worker.engines.contract import Observed
from catenary_worker.engines.llamacpp import LlamaSettings
from catenary_worker.engines.llamacpp.engine import LlamaEngine
from catenary_worker.engines.llamacpp.server import Address, LlamaServer
from catenary_worker.engines.llamacpp.stream import complete
from catenary_worker.engines.llamacpp.testing import write_tiny_gguf

TOKENIZER = load(embedded_path())
PORTS = {
    "type": "object",
    "properties": {"port": {"enum": ["Oslo", "Bergen"]}},
    "required": ["port"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@asynccontextmanager
async def running(gguf: Path, slots: int = 1, max_waiting: int = 8) -> AsyncIterator[tuple[LlamaEngine, Observed]]:
    engine = LlamaEngine(gguf, TOKENIZER, LlamaSettings(slots=slots, max_waiting=max_waiting), context=1024)
    seen = Observed(engine, await engine.start())
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(seen.read())
        try:
            yield engine, seen
        finally:
            await engine.stop()


def turn(name: str, prompt: list[int], max_tokens: int = 8) -> EngineTurn:
    return EngineTurn(name, array("I", prompt), max_tokens=max_tokens, temperature=0.0, ignore_eos=True)


def resident(pid: int) -> int:
    """Bytes of memory that a process holds."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def word(text: str) -> int:
    (token,) = unpack(TOKENIZER.encode(text, special=True))
    return token


def said(seen: Observed, name: str) -> str:
    return TOKENIZER.decode(pack(next(ids for key, ids in seen.tokens.items() if key.turn_id == name)))


async def test_slots_hold_what_the_events_say(gguf: Path) -> None:
    rng = random.Random(5)  # noqa: S311 - a repeatable load
    async with running(gguf, slots=3) as (engine, seen):
        sessions = {n: [300 + n] * 20 + [400] * n for n in range(6)}
        for round_ in range(8):
            keys = []
            for n in rng.sample(sorted(sessions), 3):
                sessions[n] = [*sessions[n], *(rng.randrange(300, 7000) for _ in range(rng.randrange(1, 40)))]
                keys.append(seen.submit(turn(f"{n}-{round_}", sessions[n], max_tokens=rng.randrange(1, 60))))
            await seen.until_tokens(keys[0], 1)
            engine.cancel(keys[0])
            for key in keys:
                await seen.until_end(key)
        for slot in engine.slots.all:
            promised = slot.tokens.tolist()
            probe = turn(f"probe-{slot.number}", [*promised, 299], max_tokens=1)
            await seen.until_end(seen.submit(probe))
            assert seen.cached[probe.key] >= len(promised) > 0


async def test_what_another_salt_left_in_a_slot_is_not_gone_on_from(gguf: Path) -> None:
    async with running(gguf) as (_, seen):
        for name, salt, cached in (("a", "x", 0), ("b", "x", 39), ("c", "y", 0), ("d", "", 0), ("e", "x", 0)):
            key = seen.submit(replace(turn(name, [300] * 40), salt=salt))
            await seen.until_end(key)
            assert seen.cached[key] == cached


async def test_a_cancelled_turn_frees_its_slot_at_once(gguf: Path) -> None:
    async with running(gguf) as (engine, seen):
        endless = seen.submit(turn("a", [300] * 40, max_tokens=900))
        await seen.until_tokens(endless, 3)
        next_one = seen.submit(turn("b", [301] * 40, max_tokens=1))
        cancelled_at = time.monotonic()
        engine.cancel(endless)
        await seen.until_end(next_one)
        assert time.monotonic() - cancelled_at < 0.5
        assert seen.last[endless].finish == "cancelled"


async def test_a_turn_that_waits_is_cancelled_and_others_keep_their_order(gguf: Path) -> None:
    async with running(gguf, max_waiting=3) as (engine, seen):
        first = seen.submit(turn("first", [300] * 40, max_tokens=60))
        low, high, gone = (
            seen.submit(replace(turn(name, [301 + at] * 40), priority=at))
            for at, name in enumerate(("low", "high", "gone"))
        )
        with pytest.raises(CapacityError):
            seen.submit(turn("full", [300] * 40))
        engine.cancel(gone)
        last = seen.submit(replace(turn("last", [310] * 40), priority=-1))  # there is room again
        order = []
        for key in (gone, first, high, low, last):
            assert (await seen.until_end(key)).finish == ("cancelled" if key == gone else "length")
            order.append((low in seen.last, last in seen.last))
        assert order == [(False, False), (False, False), (False, False), (True, False), (True, True)]


async def test_every_slot_has_room_for_the_whole_context(gguf: Path) -> None:
    async with running(gguf, slots=2) as (_, seen):
        full = [seen.submit(turn(name, [300 + at] * 1000, max_tokens=100)) for at, name in enumerate("ab")]
        for key in full:
            assert (await seen.until_end(key)).finish == "length"
            assert len(seen.tokens[key]) == 24


async def test_a_process_that_dies_while_it_loads_is_an_engine_error(
    gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("catenary_worker.engines.llamacpp.server.sys.executable", "/bin/true")
    with pytest.raises(EngineError, match=r"tiny\.gguf: it died"):
        await LlamaEngine(gguf, TOKENIZER, LlamaSettings(), context=1024).start()


async def test_a_deadline_ends_a_turn(gguf: Path) -> None:
    async with running(gguf) as (_, seen):
        late = replace(turn("a", [300] * 40, max_tokens=900), deadline=time.time() + 0.05)
        last = await seen.until_end(seen.submit(late))
        assert last.finish == "cancelled"
        assert last.error is not None
        assert last.error.code == "deadline_exceeded"


async def test_stop_tokens_end_a_turn_and_not_too_early(gguf: Path) -> None:
    async with running(gguf) as (_, seen):
        free = seen.submit(turn("free", [300] * 40, max_tokens=12))
        await seen.until_end(free)
        third = seen.tokens[free][2]
        assert third not in seen.tokens[free][:2]
        stopped = seen.submit(replace(turn("stopped", [300] * 40), stop_token_ids=(third,)))
        last = await seen.until_end(stopped)
        assert (last.finish, last.stop_token, seen.tokens[stopped]) == ("stop", True, seen.tokens[free][:3])
        least = seen.submit(replace(turn("least", [300] * 40, max_tokens=8), stop_token_ids=(third,), min_tokens=3))
        await seen.until_end(least)
        assert len(seen.tokens[least]) > 3


async def test_the_models_own_end_counts_after_the_least_tokens(gguf: Path) -> None:
    async with running(gguf) as (_, seen):
        for end in ("<|im_end|>", "<|endoftext|>"):  # the model's, and one that llama.cpp knows by itself
            ends = EngineTurn(end, array("I", [300] * 40), max_tokens=20, min_tokens=6, logit_bias={word(end): 100.0})
            last = await seen.until_end(seen.submit(ends))
            assert (last.finish, last.stop_token, last.tokens) == ("stop", True, (word(end),))
            assert len(seen.tokens[ends.key]) == 7


async def test_characters_of_several_tokens_lose_none(gguf: Path) -> None:
    async with running(gguf) as (_, seen):
        text = "x😀漢字 и y"
        guided = replace(turn("a", [300] * 40, 60), options={"structural_tag": {"type": "const_string", "value": text}})
        assert (await seen.until_end(seen.submit(replace(guided, ignore_eos=False)))).finish == "stop"
        assert said(seen, "a").removesuffix("<|im_end|>").removesuffix("<|endoftext|>") == text


@pytest.mark.parametrize("choice", ["required", "sail"])
async def test_a_call_that_is_demanded_is_made(gguf: Path, choice: str) -> None:
    tools = [ToolSpec("count", PORTS), ToolSpec("sail", PORTS)]
    tag = structural_tag("hermes", tools, choice, parallel=False, reasoning="basic", thinking="open")
    bias = {word("</think>"): 60.0, word("<tool_call>"): 50.0}  # random weights would think for ever
    async with running(gguf) as (_, seen):
        guided = turn("a", [300] * 40, 120)
        guided = replace(guided, options={"structural_tag": json.dumps(tag)}, logit_bias=bias, ignore_eos=False)
        assert (await seen.until_end(seen.submit(guided))).finish == "stop"
    thought, _, call = said(seen, "a").partition("<tool_call>")
    assert thought.rstrip() == "</think>"
    made = json.loads(call.partition("</tool_call>")[0])
    assert made["name"] in ({"sail"} if choice == "sail" else {"count", "sail"})
    assert made["arguments"]["port"] in {"Oslo", "Bergen"}


async def test_a_constrained_turn_that_was_moved_says_the_same_or_fails(gguf: Path) -> None:
    async with running(gguf) as (engine, seen):
        sampled = EngineTurn("a", array("I", [300] * 40), max_tokens=60, options={"json_schema": PORTS})
        whole = seen.submit(sampled)
        await seen.until_end(whole)
        told = seen.tokens[whole]
        moved = seen.submit(replace(sampled, attempt=1, generated=array("I", told[:3])))
        assert (await seen.until_end(moved)).finish == "stop"
        assert seen.tokens[moved] == told[3:]
        assert engine.slots.all[0].tokens.tolist() == [*sampled.prompt, *told[:-1]]
        other = seen.submit(replace(sampled, attempt=2, generated=array("I", [*told[:2], 299])))
        last = await seen.until_end(other)
        assert (last.finish, last.offset, seen.tokens[other]) == ("error", 3, [])
        await seen.until_end(seen.submit(turn("next", [300] * 40)))


async def test_what_cannot_be_kept_is_refused(gguf: Path) -> None:
    tag = {"type": "json_schema", "json_schema": PORTS}
    refused = [
        ({"options": {"structural_tag": "{"}}, "guide"),
        ({"options": {"structural_tag": {"type": "regex", "pattern": "["}}}, "guide"),
        ({"options": {"structural_tag": {"type": "spell"}}}, "guide"),
        ({"options": {"structural_tag": {"type": "tag"}}}, "guide"),
        ({"options": {"json_schema": {"type": "nothing"}}}, "guide"),
        ({"options": {"json_schema": PORTS, "structural_tag": tag}}, "guide"),
        ({"options": {"structural_tag": tag}, "min_tokens": 3}, "min_tokens"),
        ({"options": {"images": ["x"]}}, "images"),
        ({"options": {"lora": "x"}}, "lora"),
        ({"max_tokens": -1}, "max_tokens"),
    ]
    engine = LlamaEngine(gguf, TOKENIZER, LlamaSettings(), context=1024)
    for more, field in refused:
        with pytest.raises(RequestError) as caught:
            engine.submit(replace(turn("a", [300] * 40), **more))  # type: ignore[arg-type]  # a table of fields
        assert caught.value.field == field


async def test_a_turn_llama_cpp_refuses_fails_alone(gguf: Path) -> None:
    async with running(gguf) as (_, seen):
        last = await seen.until_end(seen.submit(turn("a", [1 << 20] * 4)))
        assert last.finish == "error"
        assert last.error is not None
        assert last.error.code == "invalid_value"
        assert (await seen.until_end(seen.submit(turn("b", [300] * 40)))).finish == "length"


@pytest.mark.parametrize(
    ("noticed_s", "reason"), [(0.0, "ended by itself, with code -9"), (0.2, "ended by itself"), (60.0, "broke off")]
)
async def test_a_dead_llama_cpp_is_the_end_of_the_engine(
    gguf: Path, monkeypatch: pytest.MonkeyPatch, noticed_s: float, reason: str
) -> None:
    """Its streams may end before its process is seen to be gone."""
    engine = LlamaEngine(gguf, TOKENIZER, LlamaSettings(), context=1024)
    died = LlamaServer.died

    async def died_late(server: LlamaServer) -> int:
        code = await died(server)
        await asyncio.sleep(noticed_s)
        return code

    monkeypatch.setattr(LlamaServer, "died", died_late)
    await engine.start()
    steps = engine.steps()
    engine.submit(turn("a", [300] * 40, max_tokens=900))
    await anext(steps)
    os.kill(engine.pid, signal.SIGKILL)
    with pytest.raises(EngineError, match=reason):
        async for _ in steps:
            pass
    with pytest.raises(CapacityError):
        engine.submit(turn("b", [300] * 40))
    await engine.stop()


async def test_an_answer_that_stops_before_its_end_is_the_engines_fault() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        with pytest.raises(EngineError, match="before its end"):
            await anext(complete(Address(host, port, "key"), {}))


async def test_a_stopped_engine_gives_its_memory_back_and_says_what_it_does_while_it_starts(gguf: Path) -> None:
    grown: list[int] = []
    for _ in range(3):
        phases: list[str] = []
        engine = LlamaEngine(gguf, TOKENIZER, LlamaSettings(), context=1024, on_phase=phases.append)
        await engine.start()
        assert phases == ["loading tiny.gguf"]
        pid = engine.pid
        assert resident(pid) > 10 << 20
        await engine.stop()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        grown.append(resident(os.getpid()))
    assert grown[-1] - grown[0] < 4 << 20


async def test_a_file_it_cannot_load_is_an_engine_error(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF but not really")
    with pytest.raises(EngineError, match=r"m\.gguf"):
        await LlamaEngine(file, TOKENIZER, LlamaSettings(), context=1024).start()


def test_settings_that_are_wrong_are_named(gguf: Path, tmp_path: Path) -> None:
    def made(**options: object) -> LlamaEngine:
        engine = engine_for("llamacpp")(EngineSetup(embedded_path(), options=options))
        assert isinstance(engine, LlamaEngine)
        return engine

    made(gguf=str(gguf))
    for options, field in (
        ({"slots": 0}, "llamacpp.slots"),
        ({"slot": 1}, "llamacpp"),
        ({}, "llamacpp.gguf"),
        ({"gguf": str(tmp_path / "nowhere.gguf")}, "llamacpp.gguf"),
    ):
        with pytest.raises(RequestError) as caught:
            made(**options)
        assert caught.value.field == field
