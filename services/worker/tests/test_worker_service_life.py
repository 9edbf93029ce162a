"""A worker's life: loading, what it cannot start with, an engine that breaks, traces, death and freeze as processes."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from catenary_protocols.bus.messages import Refused
from catenary_protocols.bus.subjects import Subjects
from catenary_protocols.conversation import Sampling
from catenary_protocols.errors import CatenaryError, EngineError
from catenary_runtime import telemetry
from catenary_runtime.bus import Bus
from catenary_runtime.config import ConfigError, load
from catenary_runtime.models import get_card
from catenary_runtime.testing import NatsServer, Process, provisioned
from catenary_worker import service as service_module
from catenary_worker.engines.base import Engine, EngineFactory, EngineInfo, EngineSetup, Step, engine_for
from catenary_worker.engines.sim import SimEngine
from catenary_worker.service import WorkerService
from catenary_worker.settings import WorkerSettings
from catenary_worker.testing import (
    BEAT_S,
    DEATH_LIMIT_S,
    PATIENCE_S,
    TokenizerPeer,
    new_key,
    running_worker,
    tokenizer_peer,
    worker_settings,
)
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

W = "w-1"
PROMPT = list(range(300, 340))
ENDLESS = Sampling(max_tokens=100_000, ignore_eos=True)


@pytest.fixture
async def peer(nats_server: NatsServer, subjects: Subjects) -> AsyncIterator[TokenizerPeer]:
    """A tokenizer; the worker is the test's."""
    await provisioned(nats_server.url, subjects)
    async with tokenizer_peer(nats_server, subjects) as peer:
        yield peer


class Wrapped(SimEngine):
    """A simulator that starts when told to and breaks when told to."""

    may_start: asyncio.Event
    broken: asyncio.Event

    async def start(self) -> EngineInfo:
        await self.may_start.wait()
        return await super().start()

    async def steps(self) -> AsyncIterator[Step]:
        async for step in super().steps():
            if self.broken.is_set():
                raise EngineError("the GPU fell off the bus")
            yield step


@pytest.fixture
def wrapped(monkeypatch: pytest.MonkeyPatch) -> type[Wrapped]:
    """The class whose engine workers of this test get."""
    Wrapped.may_start, Wrapped.broken = asyncio.Event(), asyncio.Event()

    def factory(kind: str) -> EngineFactory:
        def make(setup: EngineSetup) -> Engine:
            engine = engine_for(kind)(setup)
            assert isinstance(engine, SimEngine)
            engine.__class__ = Wrapped
            return engine

        return make

    monkeypatch.setattr(service_module, "engine_for", factory)
    return Wrapped


async def failed(settings_error: ExceptionGroup[Exception] | CatenaryError) -> CatenaryError:
    error: BaseException = settings_error
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, CatenaryError)
    return error


async def test_it_is_not_ready_before_its_engine_is_and_refuses_until_then(
    peer: TokenizerPeer, nats_server: NatsServer, subjects: Subjects, wrapped: type[Wrapped], bus: Bus
) -> None:
    async with running_worker(worker_settings(nats_server, subjects, W)) as worker:
        await peer.until(lambda: W in peer.loads)
        assert not peer.loads[W].ready
        ready, rows = worker.health.ready()
        assert not ready
        assert {str(row["check"]) for row in rows} == {"bus", "model", "engine"}
        answer = await peer.ask(W, peer.run_turn(W, new_key(), PROMPT))
        assert isinstance(answer, Refused)
        assert answer.error.code == "no_worker"
        assert answer.error.retry_after > 0
        wrapped.may_start.set()
        load = await peer.until_ready(W)
        card = await get_card(bus, load.model, load.card)
        assert (card.parser, card.context, card.block_size) == ("hermes", 131072, 16)
        assert set(card.artifacts) >= {"tokenizer.json", "chat_template.jinja", "config.json"}
        await peer.until_end(await peer.run(W, PROMPT))


async def test_it_can_be_told_to_stop_while_it_still_loads(
    peer: TokenizerPeer, nats_server: NatsServer, subjects: Subjects, wrapped: type[Wrapped]
) -> None:
    async with running_worker(worker_settings(nats_server, subjects, W)) as worker:
        await peer.until(lambda: W in peer.loads)
        assert worker.phase["model"] != "ready"


async def test_two_workers_of_the_same_model_have_the_same_card_and_another_block_size_has_another(
    peer: TokenizerPeer, nats_server: NatsServer, subjects: Subjects
) -> None:
    other = '{"time_scale": 0, "block_size": 32}'
    async with (
        running_worker(worker_settings(nats_server, subjects, "w-1")),
        running_worker(worker_settings(nats_server, subjects, "w-2")),
        running_worker(worker_settings(nats_server, subjects, "w-3", engine_options=other)),
    ):
        one, same, different = [(await peer.until_ready(name)).card for name in ("w-1", "w-2", "w-3")]
    assert one == same != different


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"engine": "sims"}, "engine"),
        ({"engine_options": '{"blokcs": 3}'}, "sim"),
        ({"model_path": "/nowhere"}, "model_path"),
        ({"parser": "klingon"}, "parser"),
    ],
)
async def test_what_it_cannot_start_with_is_named(
    peer: TokenizerPeer, nats_server: NatsServer, subjects: Subjects, wrong: dict[str, str], field: str
) -> None:
    service = WorkerService(worker_settings(nats_server, subjects, W, **wrong))
    with pytest.raises(ExceptionGroup) as caught:
        await service.live()
    assert (await failed(caught.value)).field.startswith(field)


@pytest.mark.parametrize(
    ("flag", "value"),
    [("--engine-options", "{"), ("--engine-options", "[1]"), ("--parser", "klingon"), ("--reasoning", "klingon")],
)
def test_what_its_settings_may_not_be_is_told_before_it_starts(flag: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"^{flag}: ") as caught:
        load(WorkerSettings, "worker", [flag, value], {})
    assert caught.value.field == flag


async def test_an_engine_that_breaks_gives_its_turns_back_and_ends_the_worker(
    peer: TokenizerPeer, nats_server: NatsServer, subjects: Subjects, wrapped: type[Wrapped]
) -> None:
    wrapped.may_start.set()
    settings = worker_settings(nats_server, subjects, W, engine_options='{"time_scale": 1}')
    living = asyncio.create_task(WorkerService(settings).live())
    await peer.until_ready(W)
    key = await peer.run(W, PROMPT, sampling=ENDLESS)
    await peer.until(lambda: len(peer.got.get(key, {})) > 2)
    wrapped.broken.set()
    end = await peer.until_end(key)
    assert end.error is not None
    assert (end.finish, end.error.code, end.error.message) == ("error", "worker_lost", "the GPU fell off the bus")
    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.timeout(PATIENCE_S):
            await living
    assert isinstance(await failed(caught.value), EngineError)


async def test_an_error_of_one_turn_is_that_turns_alone(
    peer: TokenizerPeer, nats_server: NatsServer, subjects: Subjects, bus: Bus
) -> None:
    async with running_worker(worker_settings(nats_server, subjects, W, sim_script=True)):
        await peer.until_ready(W)
        script = b'{"id": "s", "texts": ["a b c d"], "fault": {"after": 2, "error": "bad luck"}, "times": 1}'
        await bus.request(subjects.to("sim_script", worker=W), script, within=5)
        key = await peer.run(W, PROMPT)
        end = await peer.until_end(key)
        assert end.error is not None
        assert (end.finish, end.error.message, len(peer.ids(key))) == ("error", "bad luck", 2)
        assert (await peer.until_end(await peer.run(W, PROMPT))).finish == "length"


async def test_a_deadline_that_passes_is_told_as_such(
    peer: TokenizerPeer, nats_server: NatsServer, subjects: Subjects
) -> None:
    settings = worker_settings(nats_server, subjects, W, engine_options='{"time_scale": 1}')
    async with running_worker(settings):
        load = await peer.until_ready(W)
        key = await peer.run(W, PROMPT, sampling=ENDLESS, deadline=load.sent_at + 0.2)
        end = await peer.until_end(key)
        assert end.error is not None
        assert (end.finish, end.error.code) == ("cancelled", "deadline_exceeded")


async def test_a_traced_turn_has_one_span_for_each_stage(
    peer: TokenizerPeer, nats_server: NatsServer, subjects: Subjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    monkeypatch.setattr(telemetry, "_tracer", provider.get_tracer("test"))
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    settings = worker_settings(nats_server, subjects, W, engine_options='{"time_scale": 1}')
    async with running_worker(settings):
        await peer.until_ready(W)
        await peer.until_end(await peer.run(W, PROMPT))
        await peer.until_end(await peer.run(W, PROMPT, trace=trace))
    told = spans.get_finished_spans()
    assert [span.name for span in told] == ["queue", "prefill", "decode"]
    for earlier, later in pairwise(told):
        assert earlier.end_time == later.start_time
    assert {span.context.trace_id for span in told if span.context} == {0x0AF7651916CD43DD8448EB211C80319C}
    _, prefill, decode = [dict(span.attributes or {}) for span in told]
    assert (prefill["gen_ai.usage.input_tokens"], prefill["gen_ai.usage.cache_read.input_tokens"]) == (40, 32)
    assert (decode["gen_ai.usage.output_tokens"], decode["gen_ai.response.finish_reasons"]) == (16, "length")
    assert decode["catenary.worker.id"] == W
    provider.shutdown()


# --- as a process -----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def worker_process(server: NatsServer, subjects: Subjects, folder: Path) -> AsyncIterator[Process]:
    """`python -m catenary_worker`, in real time; killed at the end if it still runs."""
    flags = {
        "nats": server.url,
        "namespace": subjects.namespace,
        "instance": W,
        "beat-s": str(BEAT_S),
        "death-limit-s": str(DEATH_LIMIT_S),
        "engine-options": '{"time_scale": 1}',
    }
    arguments = [part for name, value in flags.items() for part in (f"--{name}", value)]
    process = Process("catenary_worker", arguments, folder / "worker.log")
    process.start()
    try:
        yield process
    finally:
        if process.process is not None and process.process.poll() is None:
            process.process.kill()
            process.process.wait()


async def test_a_killed_worker_is_dead_and_its_successor_has_none_of_its_turns(
    peer: TokenizerPeer, nats_server: NatsServer, subjects: Subjects, tmp_path: Path
) -> None:
    async with worker_process(nats_server, subjects, tmp_path) as process:
        first = (await peer.until_ready(W)).incarnation
        key = await peer.run(W, PROMPT, sampling=ENDLESS)
        await peer.until(lambda: len(peer.got.get(key, {})) > 2)
        process.signal(signal.SIGKILL)
        await peer.until(lambda: peer.presence.get("worker", W) is None)
    async with worker_process(nats_server, subjects, tmp_path) as process:
        load = await peer.until_ready(W)
        assert load.incarnation > first
        assert load.turns == ()
        peer.resend(W, key, offset=len(peer.got[key]))
        end = await peer.until_end(key)
        assert end.error is not None
        assert end.error.code == "worker_lost"
        assert await asyncio.to_thread(process.stop) == 0


async def test_a_frozen_worker_goes_on_with_what_its_owner_still_wants(
    peer: TokenizerPeer, nats_server: NatsServer, subjects: Subjects, tmp_path: Path
) -> None:
    async with worker_process(nats_server, subjects, tmp_path) as process:
        first = (await peer.until_ready(W)).incarnation
        wanted = await peer.run(W, PROMPT, sampling=ENDLESS)
        moved = await peer.run(W, PROMPT, sampling=ENDLESS)
        await peer.until(lambda: len(peer.got.get(moved, {})) > 2)
        process.signal(signal.SIGSTOP)
        await peer.until(lambda: peer.presence.get("worker", W) is None)
        process.signal(signal.SIGCONT)
        await peer.until(lambda: W in peer.loads and peer.loads[W].incarnation > first)
        assert {turn.turn_id for turn in peer.loads[W].turns} == {wanted.turn_id, moved.turn_id}
        peer.frames.clear()
        peer.resend(W, wanted, offset=len(peer.got[wanted]))
        peer.cancel(W, moved)
        more = len(peer.got[wanted]) + 20
        await peer.until(lambda: len(peer.got[wanted]) > more)
        assert peer.ids(wanted)
        assert {item.turn_id for frame in peer.frames if frame.incarnation > first for item in frame.items} == {
            wanted.turn_id
        }
        process.signal(signal.SIGKILL)
