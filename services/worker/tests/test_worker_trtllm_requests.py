"""What a turn and the settings become in each version of TensorRT-LLM, and what its results say that is new."""

import struct
import sys
from array import array
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from catenary_protocols.errors import EngineError, RequestError
from catenary_tokenizers import embedded_path
from catenary_worker.core.admission import STRICT_STEP
from catenary_worker.engines.base import EngineSetup, EngineTurn, Penalties, Retention, engine_for
from catenary_worker.engines.trtllm import TrtEngine, TrtSettings
from catenary_worker.engines.trtllm.api import load_api
from catenary_worker.engines.trtllm.launch import allow_mpi, llm_arguments
from catenary_worker.engines.trtllm.requests import RequestWriter, scaled
from catenary_worker.engines.trtllm.running import Running
from catenary_worker.engines.trtllm.standin import Version, standin
from hypothesis import given
from hypothesis import strategies as st

VERSIONS: list[Version] = ["1.1", "1.2", "1.4"]
PROMPT = array("I", range(100, 140))


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> Iterator[Version]:
    with standin(request.param):
        yield request.param


def written(turn: EngineTurn, **settings: Any) -> dict[str, Any]:
    return RequestWriter(load_api(), TrtSettings(**settings), (2, 3)).write(turn, 10)


def arguments(**settings: Any) -> dict[str, Any]:
    return llm_arguments(TrtSettings(**settings), load_api(), Path("m"), 4096)


# --- settings -----------------------------------------------------------------------------------------------------


def test_every_version_gets_reuse_events_chunks_and_statistics(version: Version) -> None:
    wanted = arguments()
    assert {"enable_chunked_prefill", "return_perf_metrics", "enable_iter_perf_stats"} <= {
        name for name, value in wanted.items() if value is True
    }
    assert wanted["kv_cache_config"].enable_block_reuse
    assert wanted["kv_cache_config"].event_buffer_max_size >= 16_384
    assert ("scheduler_config" in wanted) == (version == "1.4")
    assert wanted["guided_decoding_backend"] == "xgrammar"


def test_further_arguments_go_through_and_unknown_ones_are_named(version: Version) -> None:
    assert arguments(llm={"stream_interval": 4})["stream_interval"] == 4
    with pytest.raises(RequestError) as refused:
        arguments(llm={"stream_intervall": 4})
    assert refused.value.field == "trtllm.llm.stream_intervall"


def test_a_wanted_argument_that_a_version_lacks_is_an_error_not_a_silence(
    version: Version, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = sys.modules["tensorrt_llm.llmapi"].TorchLlmArgs.model_fields
    monkeypatch.delitem(fields, "moe_expert_parallel_size")
    assert arguments()
    with pytest.raises(EngineError, match="moe_expert_parallel_size"):
        arguments(expert_parallel=2)


def test_adapters_become_a_lora_configuration(version: Version) -> None:
    wanted = arguments(loras={"french": "/loras/french"}, lora_rank=16)
    assert wanted["enable_lora"]
    assert (wanted["lora_config"].lora_dir, wanted["lora_config"].max_lora_rank) == (["/loras/french"], 16)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"max_bach": 3}, "trtllm"),
        ({"max_batch": 0}, "trtllm.max_batch"),
        ({"block_size": 48}, "trtllm.block_size"),
        ({"event_buffer": 1024}, "trtllm.event_buffer"),
        ({"role": "middle"}, "trtllm.role"),
    ],
)
def test_a_wrong_setting_is_named(options: dict[str, object], field: str) -> None:
    with pytest.raises(RequestError) as refused:
        TrtSettings.read(options)
    assert refused.value.field == field


def test_root_may_start_workers_and_what_is_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_ALLOW_RUN_AS_ROOT", "0")
    monkeypatch.delenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", raising=False)
    environment: dict[str, str] = {"OMPI_ALLOW_RUN_AS_ROOT": "0"}
    monkeypatch.setattr("os.environ", environment)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    allow_mpi()
    assert environment == {"OMPI_ALLOW_RUN_AS_ROOT": "0"}
    monkeypatch.setattr("os.geteuid", lambda: 0)
    allow_mpi()
    assert environment == {"OMPI_ALLOW_RUN_AS_ROOT": "0", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def test_without_the_package_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("catenary_worker.engines.trtllm.api.find_spec", lambda _: None)
    with pytest.raises(RequestError, match=r"catenary-worker\[trtllm\]") as refused:
        engine_for("trtllm")(EngineSetup(embedded_path()))
    assert refused.value.field == "engine"


def test_the_factory_reads_ends_of_sequence_from_the_model(version: Version, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("catenary_worker.engines.trtllm.api.find_spec", lambda _: object())
    assert isinstance(engine_for("trtllm")(EngineSetup(embedded_path())), TrtEngine)
    with pytest.raises(RequestError) as refused:
        engine_for("trtllm")(EngineSetup(Path("nowhere")))
    assert refused.value.field == "path"


# --- requests -----------------------------------------------------------------------------------------------------


def test_a_request_says_only_what_the_version_takes(version: Version) -> None:
    turn = EngineTurn("t", PROMPT, priority=3, penalties=Penalties(presence=0.5, repetition=1.1))
    request = written(turn)
    sampling = request["sampling_params"]
    assert ("priority" in request) == (version == "1.4")
    assert request["inputs"] == list(PROMPT)
    assert (sampling.end_id, sampling.stop_token_ids, sampling.max_tokens) == (2, [3], 10)
    assert (sampling.presence_penalty, sampling.repetition_penalty) == (0.5, 1.1)
    assert getattr(sampling, "prompt_ignore_length", 40) == 40
    assert not sampling.detokenize
    assert not sampling.add_special_tokens
    assert written(EngineTurn("t", PROMPT, ignore_eos=True))["sampling_params"].ignore_eos
    assert sampling.include_stop_str_in_output
    assert sampling.return_perf_metrics


def test_limits_of_a_moved_turn_count_from_its_prompt(version: Version) -> None:
    turn = EngineTurn("t", PROMPT, generated=array("I", [5, 6, 7]), min_tokens=5)
    request = written(turn)
    assert request["inputs"] == [*PROMPT, 5, 6, 7]
    assert request["sampling_params"].min_tokens == 2


def test_retention_covers_prompt_and_answer_above_the_ordinary(version: Version) -> None:
    kept = written(EngineTurn("t", PROMPT, retention=Retention(priority=50, seconds=9.0)))["kv_cache_retention_config"]
    (whole,) = kept.ranges
    assert (whole.token_start, whole.token_end, whole.priority) == (0, None, 85)
    assert whole.duration_ms == kept.duration == timedelta(seconds=9)
    assert kept.priority == 85
    highest = written(EngineTurn("t", PROMPT, retention=Retention(priority=500, seconds=1.0)))
    assert highest["kv_cache_retention_config"].priority == 100


def test_blocks_nobody_comes_back_to_are_below_the_ordinary_for_good(version: Version) -> None:
    kept = written(EngineTurn("t", PROMPT, retention=Retention(priority=-1)))["kv_cache_retention_config"]
    assert (kept.ranges[0].priority, kept.ranges[0].duration_ms, kept.priority) == (34, None, 34)


@pytest.mark.parametrize("retention", [Retention(), Retention(priority=5), Retention(seconds=5.0)])
def test_nothing_is_retained_unless_it_is_both_higher_and_for_a_time(version: Version, retention: Retention) -> None:
    assert "kv_cache_retention_config" not in written(EngineTurn("t", PROMPT, retention=retention))


def test_guides_become_json_or_a_structural_tag(version: Version) -> None:
    schema = {"type": "object"}
    by_schema = written(EngineTurn("t", PROMPT, options={"json_schema": schema}))["sampling_params"].guided_decoding
    assert (by_schema.json, by_schema.structural_tag) == (schema, None)
    by_tag = written(EngineTurn("t", PROMPT, options={"structural_tag": "{}"}))["sampling_params"].guided_decoding
    assert (by_tag.json, by_tag.structural_tag) == (None, "{}")


def test_only_xgrammar_takes_structural_tags(version: Version) -> None:
    writer = RequestWriter(load_api(), TrtSettings(guide="llguidance"), ())
    writer.check(EngineTurn("t", PROMPT, options={"json_schema": {}}))
    with pytest.raises(RequestError) as refused:
        writer.check(EngineTurn("t", PROMPT, options={"structural_tag": "{}"}))
    assert refused.value.field == "guide"


def test_salt_goes_through_where_it_is_taken_and_is_refused_where_not(version: Version) -> None:
    writer = RequestWriter(load_api(), TrtSettings(), ())
    turn = EngineTurn("t", PROMPT, salt="tenant")
    assert ("salt" in writer.features) == (version != "1.1")
    if "salt" in writer.features:
        writer.check(turn)
        assert writer.write(turn, 1)["cache_salt"] == "tenant"
    else:
        with pytest.raises(RequestError):
            writer.check(turn)


def test_what_a_version_takes_is_a_feature(version: Version) -> None:
    writer = RequestWriter(load_api(), TrtSettings(loras={"french": "/f"}), ())
    everywhere = {"cancel", "guide", "logprobs", "lora", "priority", "retention"}
    assert writer.features == everywhere | ({"salt"} if version != "1.1" else set())
    assert RequestWriter(load_api(), TrtSettings(guide="none", role="prefill"), ()).features.isdisjoint(
        {"cancel", "guide", "lora"}
    )


def test_an_adapter_is_named_numbered_and_found(version: Version) -> None:
    loras = {"french": "/f", "latin": "/l"}
    request = written(EngineTurn("t", PROMPT, options={"lora": "latin"}), loras=loras)["lora_request"]
    assert (request.name, request.adapter_id, request.path) == ("latin", 2, "/l")
    with pytest.raises(RequestError, match="french, latin"):
        RequestWriter(load_api(), TrtSettings(loras=loras), ()).check(EngineTurn("t", PROMPT, options={"lora": "x"}))


@given(st.integers(-(1 << 15), 1 << 15), st.integers(0, 15), st.integers(-(1 << 15), 1 << 15), st.integers(0, 15))
def test_priorities_keep_their_order_in_the_engines_float(a: int, strict_a: int, b: int, strict_b: int) -> None:
    left, right = (strict_a, a), (strict_b, b)
    values = [
        struct.unpack("f", struct.pack("f", scaled(strict * STRICT_STEP + ordinary)))[0]
        for strict, ordinary in (left, right)
    ]
    assert all(0 <= value <= 1 for value in values)
    assert (values[0] < values[1]) == (left < right)


@given(st.integers(), st.integers(-(1 << 60), 1 << 60))
def test_no_priority_is_out_of_range(a: int, b: int) -> None:
    assert 0 <= scaled(a) <= 1
    assert 0 <= scaled(b) < 1


# --- results ------------------------------------------------------------------------------------------------------


def running(wanted: int = 10, prompt: "array[int]" = PROMPT, **turn: Any) -> Running:
    return Running(EngineTurn("t", prompt, **turn), wanted=wanted, stops={2, 77}, now=0.0)


def said(
    ids: list[int], finish: str | None = None, stop: object = None, *, reused: int | None = None, cached: int = 0
) -> SimpleNamespace:
    metrics = None
    if reused is not None:
        metrics = SimpleNamespace(kv_cache_metrics=SimpleNamespace(num_reused_blocks=reused))
    output = SimpleNamespace(token_ids=ids, finish_reason=finish, stop_reason=stop, request_perf_metrics=metrics)
    return SimpleNamespace(outputs=[output], finished=finish is not None, cached_tokens=cached)


def test_results_are_cumulative_and_several_tokens_may_come_at_once() -> None:
    one = running()
    deltas = [one.read(said(ids), 32) for ids in ([5], [5, 6, 7], [5, 6, 7])]
    assert [(d.offset, d.tokens) for d in deltas if d] == [(0, (5,)), (1, (6, 7))]
    last = one.read(said([5, 6, 7], "length"), 32)
    assert last is not None
    assert (last.offset, last.tokens, last.finish) == (3, (), "length")


def test_a_stop_token_the_engine_cut_off_is_put_back() -> None:
    one = running()
    one.read(said([5]), 32)
    last = one.read(said([5, 6], "stop", 77), 32)
    assert last is not None
    assert (last.tokens, last.stop_token) == ((6, 77), True)


def test_what_was_passed_on_is_never_taken_back() -> None:
    one = running()
    one.read(said([5, 6, 77]), 32)
    last = one.read(said([5, 6], "stop", 77), 32)
    assert last is not None
    assert (last.offset, last.tokens, last.finish) == (3, (), "stop")


def test_no_more_tokens_than_were_asked_for() -> None:
    one = running(wanted=2)
    last = one.read(said([5, 6, 7, 2], "stop"), 32)
    assert last is not None
    assert (last.tokens, last.finish, last.stop_token) == ((5, 6), "length", False)


@pytest.mark.parametrize(("finish", "why"), [("timeout", "too long"), (None, "did not say why")])
def test_an_end_without_a_good_reason_is_an_error(finish: str | None, why: str) -> None:
    result = said([5], finish)
    result.finished = True
    last = running().read(result, 32)
    assert last is not None
    assert last.finish == "error"
    assert last.error is not None
    assert why in last.error.message


@pytest.mark.parametrize(
    ("result", "cached"),
    [
        (said([5], reused=1), 32),
        (said([5], cached=17), 17),
        (said([5], reused=2), 39),
        (said([5], reused=0, cached=99), 39),
        (said([5]), 0),
    ],
)
def test_cached_tokens_are_less_than_the_prompt(result: SimpleNamespace, cached: int) -> None:
    first = running().read(result, 32)
    assert first is not None
    assert first.started is not None
    assert first.started.cached_tokens == cached
