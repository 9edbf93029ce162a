"""Prefill on one engine, decode on another: the answer is that of one that does both."""

import asyncio
from array import array
from base64 import b64decode
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from catenary_protocols.errors import EngineError, RequestError
from catenary_tokenizers import embedded_path
from catenary_worker.engines.base import Engine, EngineSetup, EngineTurn, engine_for
from catenary_worker.engines.contract import Observed
from catenary_worker.engines.trtllm import TrtEngine, TrtSettings
from catenary_worker.engines.trtllm.standin import StandIn, Version, standin
from catenary_worker.engines.trtllm.standin.types import ARGUMENTS

VERSIONS: list[Version] = ["1.1", "1.2", "1.4"]
PROMPT = array("I", [300 + at % 97 for at in range(70)])
WHOLE = EngineTurn("a", PROMPT, max_tokens=12, ignore_eos=True, temperature=0.0)


class Sims:
    """Simulators."""

    def make(self, role: str) -> Engine:
        return engine_for("sim")(EngineSetup(embedded_path(), options={"time_scale": 0, "role": role}))


class StandIns:
    """TensorRT-LLM of one version."""

    def __init__(self, gpu: StandIn) -> None:
        self.gpu = gpu

    def make(self, role: str) -> Engine:
        settings = TrtSettings.read({"role": role})
        return TrtEngine(Path("m"), settings, eos=(2,), context=2048, on_phase=lambda _: None)


@pytest.fixture(params=["sim", *VERSIONS])
def kind(request: pytest.FixtureRequest) -> Iterator[Sims | StandIns]:
    if request.param == "sim":
        yield Sims()
        return
    with standin(request.param) as gpu:
        yield StandIns(gpu)


@pytest.fixture(params=VERSIONS)
def gpu(request: pytest.FixtureRequest) -> Iterator[StandIn]:
    with standin(request.param) as one:
        yield one


@asynccontextmanager
async def running(engine: Engine) -> AsyncIterator[Observed]:
    seen = Observed(engine, await engine.start())
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(seen.read())
        try:
            yield seen
        finally:
            await engine.stop()


async def prefilled(kind: Sims | StandIns, turn: EngineTurn = WHOLE) -> bytes:
    async with running(kind.make("prefill")) as seen:
        assert seen.info.halves == {"prefill"}
        key = seen.submit(replace(turn, half="prefill"))
        last = await seen.until_end(key)
        assert (last.finish, last.error, seen.tokens[key]) == ("handoff", None, [])
        if seen.info.events != "none":
            await seen.until_stored(len(turn.prompt) // seen.info.block_size * seen.info.block_size)
        return last.handoff


@pytest.mark.parametrize("generated", [[], [5, 6, 7]])
async def test_two_halves_say_what_one_engine_says(kind: Sims | StandIns, generated: list[int]) -> None:
    turn = replace(WHOLE, generated=array("I", generated))
    async with running(kind.make("full")) as seen:
        assert seen.info.halves == {"whole"}
        whole = seen.submit(turn)
        await seen.until_end(whole)
    handoff = await prefilled(kind, turn)
    async with running(kind.make("decode")) as decoding:
        assert decoding.info.halves == {"decode", "whole"}
        key = decoding.submit(replace(turn, half="decode", handoff=handoff))
        assert (await decoding.until_end(key)).finish == "length"
        assert decoding.tokens[key] == seen.tokens[whole]
        block = decoding.info.block_size  # the oldest version tells of whole blocks
        assert decoding.cached[key] >= len(PROMPT) // block * block, "nothing of the prompt was computed again"
        alone = decoding.submit(replace(turn, turn_id="b"))
        await decoding.until_end(alone)
        assert decoding.tokens[alone] == seen.tokens[whole]


async def test_a_handoff_that_is_none_or_another_prompts_goes_no_further(kind: Sims | StandIns) -> None:
    handoff = await prefilled(kind)
    async with running(kind.make("decode")) as seen:
        with pytest.raises(RequestError) as refused:
            seen.submit(replace(WHOLE, half="decode", handoff=b"\xc1"))
        assert refused.value.field == "handoff"
        other = replace(WHOLE, prompt=PROMPT[1:], half="decode", handoff=handoff)
        if isinstance(kind, Sims):
            with pytest.raises(RequestError):
                seen.submit(other)
        else:
            last = await seen.until_end(seen.submit(other))
            assert (last.finish, last.error and last.error.code) == ("error", "invalid_value")


async def test_a_prefill_half_that_is_cancelled_leaves_no_handoff(kind: Sims | StandIns) -> None:
    async with running(kind.make("prefill")) as seen:
        key = seen.submit(replace(WHOLE, half="prefill"))
        seen.engine.cancel(key)
        last = await seen.until_end(key)
        assert (last.finish, last.handoff) == ("cancelled", b"")


# --- TensorRT-LLM ---------------------------------------------------------------------------------------------------


async def test_a_handoff_tells_all_that_the_version_said(gpu: StandIn) -> None:
    handoff = await prefilled(StandIns(gpu))
    told = msgspec.json.decode(handoff)
    assert set(told) == {"first_gen_tokens", "opaque_state"}
    async with running(StandIns(gpu).make("decode")) as seen:
        key = seen.submit(replace(WHOLE, half="decode", handoff=handoff))
        await seen.until_end(key)
        given = gpu.llm.calls[-1]["disaggregated_params"]
        assert (given.request_type, given.first_gen_tokens, given.opaque_state) == (
            "generation_only",
            told["first_gen_tokens"],
            b64decode(told["opaque_state"]),
        )
    assert not any(call.get("streaming") for call in gpu.made[0].calls if call.get("disaggregated_params"))


@pytest.mark.parametrize(("role", "overlap"), [("prefill", True), ("decode", None)])
async def test_halves_have_a_way_for_blocks_and_only_prefill_gives_up_overlap(
    gpu: StandIn, role: str, overlap: bool | None
) -> None:
    async with running(StandIns(gpu).make(role)):
        transfer: Any = gpu.llm.arguments["cache_transceiver_config"]
        assert (transfer.backend, transfer.max_tokens_in_buffer) == ("DEFAULT", 2048)
        assert gpu.llm.arguments.get("disable_overlap_scheduler") == overlap


async def test_a_version_without_a_transceiver_is_an_error_not_a_silence(
    gpu: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tensorrt_llm

    assert "cache_transceiver_config" in ARGUMENTS
    fields = dict.fromkeys(ARGUMENTS - {"cache_transceiver_config"})
    monkeypatch.setattr(tensorrt_llm.llmapi.TorchLlmArgs, "model_fields", fields)
    with pytest.raises(EngineError, match="cache_transceiver_config"):
        await StandIns(gpu).make("decode").start()
