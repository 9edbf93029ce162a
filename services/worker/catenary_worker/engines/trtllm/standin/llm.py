"""`LLM`: the paged core, and an executor that has nothing to compute but the next id."""

import asyncio
import inspect
import json
import threading
import time
from array import array
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from catenary_worker.engines.base import EngineTurn, Step
from catenary_worker.engines.paged import Limits, PagedCore
from catenary_worker.engines.paged.executor import Batch, Executed
from catenary_worker.engines.paged.sequence import Sequence
from catenary_worker.engines.trtllm.standin.events import Events, Version
from catenary_worker.engines.trtllm.standin.results import Result, Stream
from catenary_worker.engines.trtllm.standin.types import ARGUMENTS, CALLS


def plainly(ids: "array[int]", seed: int) -> int:
    """The next id, if nobody says otherwise; never below 100."""
    return 100 + (ids[-1] * 31 + len(ids) * 17 + seed) % 800


def state_of(turn: EngineTurn) -> bytes:
    """Where the blocks of a prompt are, as one engine tells another."""
    return b"at 10.0.0.1: " + turn.prompt.tobytes()


@dataclass
class StandIn:
    """What a test sees of the package, and what it may change.

    Attributes:
        blocks: of the KV cache.
        speak: ids so far and seed to the next id.
        entered: a constructor began.
        gate: the constructor waits until it is open; so does `shutdown` of one that hangs.
        refuse: request number → what its result raises.
        lose: KV events to drop before they are fetched.
        reuses: block reuse works with this model.
        block_size: that the model insists on; 0 leaves it as configured.
        stalls: statistics never come.
        pauses: an iteration takes so many seconds.
        log: what happened, in order.
        made: every `LLM`.
    """

    version: Version
    blocks: int = 512
    speak: Callable[["array[int]", int], int] = plainly
    entered: threading.Event = field(default_factory=threading.Event)
    gate: threading.Event = field(default_factory=threading.Event)
    refuse: dict[int, Exception] = field(default_factory=dict)
    lose: int = 0
    reuses: bool = True
    block_size: int = 0
    stalls: bool = False
    pauses: float = 0.0
    hangs: bool = False
    log: list[str] = field(default_factory=list)
    made: "list[Llm]" = field(default_factory=list)

    @property
    def llm(self) -> "Llm":
        """The last one constructed."""
        return self.made[-1]


class Llm:
    """`LLM` of one version, which is set by a subclass."""

    gpu: StandIn

    def __init__(self, model: str, *, skip_tokenizer_init: bool = False, dtype: str = "auto", **rest: Any) -> None:
        if unknown := rest.keys() - ARGUMENTS:
            raise ValueError(f"LLM got invalid argument: {sorted(unknown)}")
        if rest.get("guided_decoding_backend") and skip_tokenizer_init:
            raise AssertionError("guided decoding needs a tokenizer")
        gpu = self.gpu
        gpu.log.append(f"constructed in {threading.current_thread().name}")
        gpu.entered.set()
        gpu.gate.wait()
        self.arguments = {"model": model, "skip_tokenizer_init": skip_tokenizer_init, "dtype": dtype, **rest}
        cache = rest["kv_cache_config"]
        self.block_size = gpu.block_size or cache.tokens_per_block
        self.args = SimpleNamespace(max_seq_len=rest.get("max_seq_len", 8192))
        reuse = cache.enable_block_reuse and gpu.reuses
        limit = cache.event_buffer_max_size if reuse else 0
        self.events = Events(gpu.version, self.block_size, gpu.blocks, limit)
        limits = Limits(
            blocks=gpu.blocks,
            block_size=self.block_size,
            context=self.args.max_seq_len,
            max_batch=rest.get("max_batch_size") or 2048,
            max_batched_tokens=rest.get("max_num_tokens") or 8192,
        )
        self.core = PagedCore(limits, self)
        self.calls: list[dict[str, Any]] = []
        self.results: dict[str, Result] = {}
        self.down = False
        self._prefills: dict[str, EngineTurn] = {}
        self._told: dict[str, deque[object]] = {"events": self.events.buffer, "stats": deque(maxlen=1000)}
        self._streams: dict[str, Stream] = {}
        self._running: asyncio.Task[None] | None = None
        gpu.made.append(self)

    # --- requests -----------------------------------------------------------------------------------------------

    def generate_async(self, *positional: Any, **named: Any) -> Result:
        """As `CALLS` says; not a coroutine."""
        call = inspect.signature(type(self).generate_async).bind(self, *positional, **named).arguments
        if self.down:
            raise RuntimeError("LLM is shutting down")
        inputs, sampling = call["inputs"], call["sampling_params"]
        self._validate(inputs, sampling, call)
        self.calls.append(call)
        number = len(self.calls)
        greedy = sampling.temperature == 0 or {sampling.temperature, sampling.top_p, sampling.top_k} == {None}
        end = () if sampling.ignore_eos or sampling.end_id < 0 else (sampling.end_id,)
        lora = call.get("lora_request")
        turn = EngineTurn(
            str(number),
            array("I", inputs),
            max_tokens=sampling.max_tokens,
            min_tokens=sampling.min_tokens or 0,
            stop_token_ids=(*(sampling.stop_token_ids or ()), *end),
            seed=0 if greedy else sampling.seed,
            priority=int(call.get("priority", 0.5) * 1e9) if "scheduler_config" in self.arguments else 0,
            salt=f"{call.get('cache_salt') or ''}{lora.name if lora else ''}",
        )
        turn = self._half_of(turn, call.get("disaggregated_params"))
        result = self.results[turn.turn_id] = Result(number, replace(sampling), lambda: self.core.cancel(turn.key))
        sampling.end_id = -7  # the original writes into what it was given, too
        self.core.submit(turn, time.time())
        if turn.half == "prefill":
            self._prefills[turn.turn_id] = turn
        for kind in self._told:
            self._streams.setdefault(kind, Stream()).mark_undone()
        if self._running is None:
            self._running = asyncio.get_running_loop().create_task(self._run())
        return result

    def _half_of(self, turn: EngineTurn, params: Any) -> EngineTurn:
        """A request of a split engine: only the first token, or all of them after it was computed elsewhere."""
        if params is None:
            return turn
        if "cache_transceiver_config" not in self.arguments:
            raise ValueError("no cache transceiver")
        if params.request_type == "context_only":
            if not self.arguments.get("disable_overlap_scheduler"):
                raise ValueError("context only requests are not supported when overlap is enabled")
            return replace(turn, max_tokens=1, half="prefill")
        first = self.gpu.speak(turn.prompt, turn.seed or 0)
        if (params.opaque_state, params.first_gen_tokens) != (state_of(turn), [first]):
            raise ValueError("the state of another request")
        return replace(turn, half="decode")

    def _leave(self, result: Result, turn: EngineTurn) -> None:
        """What a prefill ends with."""
        output = result.outputs[0]
        first = self.gpu.speak(turn.prompt, turn.seed or 0)
        params = self.calls[result.request_id - 1]["disaggregated_params"]
        output.disaggregated_params = replace(params, first_gen_tokens=[first], opaque_state=state_of(turn))

    def _validate(self, inputs: list[int], sampling: Any, call: dict[str, Any]) -> None:
        if len(inputs) > self.core.limits.max_batched_tokens and not self.arguments.get("enable_chunked_prefill"):
            raise ValueError("prompt longer than max_num_tokens")
        if sampling.end_id is None:
            raise ValueError("tokenizer is required to reset end_id")
        if sampling.end_id == -7:
            raise ValueError("these sampling parameters were used before")
        if sampling.guided_decoding is not None and not self.arguments.get("guided_decoding_backend"):
            raise ValueError("no guided_decoding_backend")
        if not 0 <= call.get("priority", 0.5) <= 1:
            raise ValueError("priority must be between 0 and 1")

    async def _run(self) -> None:
        while self.core.live:
            await asyncio.sleep(self.gpu.pauses)
            step, _ = self.core.step(time.time())
            self._publish(step)
            for delta in step.deltas:
                result = self.results[delta.turn_id]
                if delta.started is not None:
                    self._say_cached(result, delta.started.cached_tokens)
                if delta.finish == "length" and delta.turn_id in self._prefills:
                    self._leave(result, self._prefills[delta.turn_id])
                result.put(self.gpu.refuse.get(result.request_id, delta))
        self._running = None

    async def idle(self) -> None:
        """Return when no request runs."""
        if self._running is not None:
            await asyncio.shield(self._running)

    def _say_cached(self, result: Result, cached: int) -> None:
        if self.gpu.version != "1.1":
            result.cached_tokens = cached
        elif self.calls[result.request_id - 1]["sampling_params"].return_perf_metrics:
            blocks = SimpleNamespace(num_reused_blocks=cached // self.block_size)
            result.outputs[0].request_perf_metrics = SimpleNamespace(kv_cache_metrics=blocks)

    # --- the executor of the core -------------------------------------------------------------------------------

    def begin(self, sequence: Sequence) -> None:
        """See `Executor`."""

    def run(self, batch: Batch) -> Executed:
        """See `Executor`."""
        return Executed(0.001, [(self.gpu.speak(one.ids, one.turn.seed or 0),) for one in batch.sampling])

    def end(self, sequence: Sequence) -> None:
        """See `Executor`."""
        self.events.ended(sequence)

    # --- events and statistics ----------------------------------------------------------------------------------

    def _publish(self, step: Step) -> None:
        for event in step.kv:
            self.events.tell(event)
        while self.gpu.lose and self.events.buffer:
            self.events.buffer.popleft()
            self.gpu.lose -= 1
        load = step.load
        cache = {
            "maxNumBlocks": self.gpu.blocks,
            "usedNumBlocks": load.used_blocks,
            "tokensPerBlock": self.block_size,
        }
        batch = {"numCtxTokens": load.prefilled_tokens}
        if self.arguments.get("enable_iter_perf_stats"):
            stats = {"iterLatencyMS": load.step_ms, "kvCacheStats": cache, "inflightBatchingStats": batch}
            self._told["stats"].append(stats)
        if self.gpu.version == "1.1":
            for kind, items in self._told.items():
                while items:
                    self._streams[kind].queue.put_nowait(json.dumps(items.popleft()))

    def get_kv_cache_events_async(self, timeout: float = 2) -> Any:
        """An iterator; fails before the first request."""
        self.gpu.log.append("polled")
        return self._stream("events", timeout)

    def get_stats_async(self, timeout: float = 2) -> Any:
        """An iterator."""
        return self._stall() if self.gpu.stalls else self._stream("stats", timeout)

    def _stream(self, kind: str, timeout: float) -> Any:
        if kind not in self._streams:
            raise AssertionError("no request yet")
        return self._streams[kind].within(timeout) if self.gpu.version == "1.1" else self._fetch(self._told[kind])

    async def _stall(self) -> AsyncIterator[object]:
        await asyncio.Event().wait()
        yield {}

    async def _fetch(self, items: deque[object]) -> AsyncIterator[object]:
        while items:
            yield json.loads(json.dumps(items.popleft()))

    def shutdown(self) -> None:
        """Idempotent; may hang."""
        self.gpu.log.append("shut down")
        self.down = True
        if self._running is not None:
            self._running.get_loop().call_soon_threadsafe(self._running.cancel)
        if self.gpu.hangs:
            self.gpu.gate.wait()


def llm_of(gpu: StandIn) -> type[Llm]:
    """The class `LLM` with the signature of this version."""

    def generate_async(self: Llm, *positional: Any, **named: Any) -> Result:
        return Llm.generate_async(self, *positional, **named)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    defaults: dict[str, Any] = {"streaming": False, "priority": 0.5, "inputs": inspect.Parameter.empty}
    parameters = [inspect.Parameter(name, kind, default=defaults.get(name)) for name in CALLS[gpu.version].split()]
    signature = inspect.Signature([inspect.Parameter("self", kind), *parameters])
    members: dict[str, object] = {"gpu": gpu, "generate_async": generate_async}
    generate_async.__signature__ = signature  # type: ignore[attr-defined]  # inspect looks for it
    if gpu.version == "1.4":
        members["get_kv_cache_capacity"] = lambda self: {
            "maxNumBlocks": self.gpu.blocks,
            "tokensPerBlock": self.block_size,
        }
    return type("LLM", (Llm,), members)
