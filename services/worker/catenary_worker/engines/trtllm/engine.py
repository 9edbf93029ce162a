"""TensorRT-LLM behind the worker: its LLM API as an `Engine`.

Every request has a task that reads its results; what became ready in one tick of the loop is one step. A cancelled turn
ends for the mesh at once, and for the engine when it is safe to abort it and it has let go.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

from catenary_protocols.errors import CapacityError, EngineError, ErrorInfo, RequestError
from catenary_protocols.ids import TurnKey

from catenary_worker.engines.again import SaidOtherwiseError, again
from catenary_worker.engines.base import Delta, EngineInfo, EngineLoad, EngineTurn, Finish, KvEvent, Step
from catenary_worker.engines.steps import Steps
from catenary_worker.engines.trtllm.admission import Admission
from catenary_worker.engines.trtllm.api import Api, load_api
from catenary_worker.engines.trtllm.boundary import TurnError, foreign, in_thread
from catenary_worker.engines.trtllm.halves import HALVES
from catenary_worker.engines.trtllm.kv_events import KvTranslator
from catenary_worker.engines.trtllm.launch import allow_mpi, llm_arguments
from catenary_worker.engines.trtllm.polling import Activity, Source, poll
from catenary_worker.engines.trtllm.private import PrivateTurns
from catenary_worker.engines.trtllm.requests import RequestWriter
from catenary_worker.engines.trtllm.running import Running
from catenary_worker.engines.trtllm.settings import TrtSettings
from catenary_worker.engines.trtllm.warmup import Facts, warm_up
from catenary_worker.engines.trtllm.wire import IterationStats, read_stats

_LATE = ErrorInfo(code="deadline_exceeded", message="the turn's deadline passed")


class TrtEngine:
    """See the module.

    Args:
        eos: the model's end-of-sequence ids.
        context: tokens a turn may have; 0 leaves it to TensorRT-LLM.
        on_phase: told what `start` is doing.
    """

    def __init__(
        self,
        model: Path,
        settings: TrtSettings,
        *,
        eos: tuple[int, ...],
        context: int,
        on_phase: Callable[[str], None],
    ) -> None:
        self.settings = settings
        self._model = model
        self._eos = eos
        self._context = context
        self._on_phase = on_phase
        self._steps = Steps()
        self._turns: dict[TurnKey, Running] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._activity = Activity(lambda: self._admission.inside > 0)
        self._private = PrivateTurns()
        self._stats = IterationStats()
        self._iteration: IterationStats | None = None
        self._draining = self._stopped = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._api: Api
        self._llm: Any = None

    # --- life ---------------------------------------------------------------------------------------------------

    async def start(self) -> EngineInfo:
        """See `Engine`. Constructing blocks for minutes (weights, kernels, graphs), so it does in a thread."""
        settings = self.settings
        allow_mpi()
        self._on_phase("importing TensorRT-LLM")
        self._api = api = await asyncio.wrap_future(in_thread("was imported", load_api))
        with foreign("was configured"):
            arguments = llm_arguments(settings, api, self._model, self._context)
        self._on_phase("loading weights")
        self._llm = await asyncio.wrap_future(in_thread("was constructed", lambda: api.llm(**arguments)))
        self._on_phase("warming up")
        self._writer = RequestWriter(api, settings, self._eos)
        try:
            facts = await warm_up(self._llm, self._writer, self._context)
        except EngineError:
            await self.stop()
            raise
        self._context, self._block_size, self._blocks = facts.context, facts.block_size, facts.blocks
        self._admission = Admission(
            max_batch=settings.max_batch, max_waiting=settings.max_waiting, orders_itself=api.takes_priority
        )
        self._kv = KvTranslator(facts.block_size, settings.ranks, self._private)
        self._take_events(facts.events)
        self._poll(facts)
        return EngineInfo(
            model_context=min(facts.context, facts.blocks * facts.block_size),
            block_size=facts.block_size,
            total_blocks=facts.blocks,
            max_batch=settings.max_batch,
            max_batched_tokens=settings.max_batched_tokens,
            features=self._writer.features,
            events="exact" if facts.tells_events else "none",
            ranks=settings.ranks,
            halves=HALVES[settings.role],
        )

    async def drain(self, deadline: float) -> None:
        """See `Engine`."""
        self._draining = True
        try:
            async with asyncio.timeout(max(0.0, deadline - time.time())):
                await self._idle.wait()
        except TimeoutError:
            self._end_all()

    async def stop(self) -> None:
        """See `Engine`. Raises `EngineError` if TensorRT-LLM does not let go in `stop_s`."""
        if self._stopped:
            return
        self._stopped = True
        self._activity.stopped.set()
        self._end_all()
        for task in self._tasks:
            task.cancel()
        llm, self._llm = self._llm, None
        try:
            async with asyncio.timeout(self.settings.stop_s):
                if self._tasks:
                    await asyncio.wait(self._tasks)
                if llm is not None:
                    await asyncio.wrap_future(in_thread("shut down", llm.shutdown))
        except TimeoutError:
            raise EngineError(f"TensorRT-LLM did not shut down in {self.settings.stop_s} s") from None
        finally:
            self._steps.close()

    # --- turns --------------------------------------------------------------------------------------------------

    def submit(self, run: EngineTurn) -> None:
        """See `Engine`."""
        if self._draining or self._stopped:
            raise CapacityError("the worker takes no new turns", code="draining", retry_after=1.0)
        anew = again(run)
        run = run if anew is None else anew.turn
        wanted = self._check(run)
        if self._admission.full:
            raise CapacityError("the engine's queue is full", code="queue_full", retry_after=1.0)
        stops = {*run.stop_token_ids, *(() if run.ignore_eos else self._eos)}
        one = self._turns[run.key] = Running(run, wanted=wanted, stops=stops, now=time.monotonic())
        one.again = anew
        self._idle.clear()
        if run.deadline:
            wait_s = max(0.0, run.deadline - time.time())
            one.timer = asyncio.get_running_loop().call_later(wait_s, self._end, one, "cancelled", _LATE)
        self._admission.add(one)
        self._fill()

    def _check(self, run: EngineTurn) -> int:
        """Tokens to generate. Raises `RequestError`."""
        length = len(run.prompt) + len(run.generated)
        if not run.prompt:
            raise RequestError("the prompt has no tokens", code="invalid_value", field="prompt")
        if run.max_tokens is not None and run.max_tokens < 0:
            raise RequestError("max_tokens must not be negative", code="invalid_value", field="max_tokens")
        room = min(self._context, self._blocks * self._block_size) - length
        if room <= 0:
            message = f"{length} tokens leave no room to generate in a context of {length + room}"
            raise RequestError(message, code="context_length_exceeded", field="prompt")
        if run.key in self._turns:
            raise RequestError(f"turn {run.turn_id} attempt {run.attempt} is already here", field="turn_id")
        self._writer.check(run)
        return room if run.max_tokens is None else min(room, max(0, run.max_tokens - len(run.generated)))

    def cancel(self, turn: TurnKey) -> None:
        """See `Engine`."""
        if (one := self._turns.get(turn)) is not None:
            self._end(one, "cancelled")

    def _end(self, one: Running, finish: Finish, error: ErrorInfo | None = None) -> None:
        """The turn is over for the mesh, now."""
        self._tell(one.end(finish, error))
        if one.result is None:
            self._admission.withdraw(one)
            return
        one.abort = self.settings.aborts != "never"
        if one.started or self.settings.aborts == "always":
            self._abort(one)

    def _abort(self, one: Running) -> None:
        if one.abort:
            one.abort = False
            try:
                with foreign("aborted a turn"):
                    one.result.abort()
            except EngineError as broken:
                self._steps.fail(broken)

    def _end_all(self) -> None:
        for one in list(self._turns.values()):
            self._end(one, "cancelled")

    # --- the engine ---------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Give the engine what it has room for."""
        while not self._stopped and self._steps.broken is None and (one := self._admission.next()) is not None:
            if one.private:
                self._private.began(one.ids, self._block_size)
            try:
                with foreign("took a turn", failed=(self._api.request_error,), refused=True):
                    result = self._llm.generate_async(**self._writer.write(one.turn, max(1, one.wanted)))
            except TurnError as failed:
                self._end(one, "error", failed.info)
                self._let_go(one)
            except EngineError as broken:
                self._let_go(one)
                self._steps.fail(broken)
            else:
                one.launched(result, time.monotonic())
                self._spawn(self._follow(one))
                self._activity.busy.set()

    async def _follow(self, one: Running) -> None:
        """Until the engine is done with the turn."""
        try:
            async for result in self._results(one):
                if one.ended:
                    self._abort(one)
                elif (delta := one.read(result, self._block_size)) is not None:
                    self._hear(one, delta)
            if not one.ended:
                self._steps.fail(EngineError("TensorRT-LLM broke: a turn's results ended before the turn"))
        except TurnError as failed:
            if not one.ended:
                self._tell(one.end("error", failed.info))
        except EngineError as broken:
            self._steps.fail(broken)
        finally:
            self._let_go(one)
            self._fill()

    def _hear(self, one: Running, delta: Delta) -> None:
        try:
            self._tell(delta)
        except SaidOtherwiseError as error:
            self._end(one, "error", error.info)

    async def _results(self, one: Running) -> AsyncIterator[Any]:
        with foreign("ran a turn", failed=(self._api.request_error,)):
            async for result in one.result:
                yield result

    def _let_go(self, one: Running) -> None:
        self._admission.left()
        if one.private:
            self._private.ended(one.ids, self._block_size, time.monotonic())

    # --- steps --------------------------------------------------------------------------------------------------

    def steps(self) -> AsyncIterator[Step]:
        """See `Engine`."""
        return self._steps.read(self._load)

    def _tell(self, delta: Delta) -> None:
        """Raises `SaidOtherwiseError`."""
        key = TurnKey(turn_id=delta.turn_id, attempt=delta.attempt)
        anew = self._turns[key].again
        fresh = delta if anew is None else anew.hear(delta)
        if delta.finish is not None:
            one = self._turns.pop(key)
            if one.timer is not None:
                one.timer.cancel()
            if not self._turns:
                self._idle.set()
        if fresh is not None:
            self._steps.add(fresh)

    def _load(self) -> EngineLoad:
        """From our own books; statistics add what only the engine knows, and may be late. An iteration counts once."""
        cache = self._stats.cache
        iteration, self._iteration = self._iteration or IterationStats(), None
        waiting = self._admission.waiting
        inside = [one for one in self._turns.values() if one.result is not None]
        fresh = [one for one in inside if not one.started]
        queued = min(len(fresh), max(0, len(inside) - self.settings.max_batch))
        return EngineLoad(
            running=len(inside) - queued,
            waiting=len(waiting) + queued,
            waiting_prefill_tokens=sum(one.tokens for one in waiting),
            prefilling_tokens=sum(one.tokens for one in fresh),
            decode_tokens=sum(one.tokens for one in inside if one.started),
            used_blocks=cache.used_num_blocks if cache and inside else 0,
            total_blocks=self._blocks,
            step_ms=iteration.latency_ms,
            prefilled_tokens=iteration.batch.num_ctx_tokens if iteration.batch else 0,
        )

    # --- what the engine tells of itself ------------------------------------------------------------------------

    def _poll(self, facts: Facts) -> None:
        sources = [Source(self._llm.get_stats_async, 0.01, 0.01, 0.1, self._take_stats, lambda: None)]
        if facts.tells_events:
            fetch = self._llm.get_kv_cache_events_async
            sources.append(Source(fetch, 0.005, 0.005, 0.02, self._take_events, self._lose_events))
        for source in sources:
            self._spawn(poll(source, self._activity))

    def _take_events(self, raw: list[object]) -> None:
        self._pass(self._kv.feed(raw, time.monotonic()))

    def _lose_events(self) -> None:
        self._pass(self._kv.lost())

    def _pass(self, events: list[KvEvent]) -> None:
        if events:
            self._steps.add_kv(events)

    def _take_stats(self, raw: list[object]) -> None:
        self._iteration = read_stats(raw[-1])
        self._stats = self._iteration or self._stats

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._steps.fail(EngineError(f"TensorRT-LLM said what nobody understands: {error!r}"))
