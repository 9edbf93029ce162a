"""llama.cpp behind the worker: its server's slots as an `Engine`.

Turns wait here, not in llama.cpp: each gets a slot the adapter chose (see `slots`), and a task that reads its stream.
A cancelled turn ends at once; closing its stream frees its slot.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import count
from pathlib import Path

from catenary_protocols.errors import CapacityError, EngineError, ErrorInfo, RequestError
from catenary_protocols.ids import TurnKey
from catenary_tokenizers import ModelTokenizer

from catenary_worker.engines.again import SaidOtherwiseError, again
from catenary_worker.engines.base import Delta, EngineInfo, EngineLoad, EngineTurn, Finish, Retention, Step
from catenary_worker.engines.llamacpp.grammar import Grammars
from catenary_worker.engines.llamacpp.held import HeldBack
from catenary_worker.engines.llamacpp.requests import FEATURES, body, guide_of
from catenary_worker.engines.llamacpp.running import Running, Vocabulary
from catenary_worker.engines.llamacpp.server import Address, LlamaServer
from catenary_worker.engines.llamacpp.settings import LlamaSettings
from catenary_worker.engines.llamacpp.slots import Slots
from catenary_worker.engines.llamacpp.stream import TurnError, complete
from catenary_worker.engines.steps import Steps

_REASON_S = 0.5
"""A process that died is a better reason than the end of its streams, which may be seen first."""
_LATE = ErrorInfo(code="deadline_exceeded", message="the turn's deadline passed")


class LlamaEngine:
    """An `Engine`."""

    def __init__(
        self,
        file: Path,
        tokenizer: ModelTokenizer,
        settings: LlamaSettings,
        context: int,
        on_phase: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.settings = settings
        self.slots = Slots(settings.slots, settings.block_size)
        self._context = context
        self._file = file
        self._on_phase = on_phase
        self._grammars = Grammars(tokenizer.control_tokens)
        controls = frozenset(tokenizer.control_tokens.values())
        self._vocabulary = Vocabulary(tokenizer.eos_ids, controls, HeldBack(tokenizer))
        self._server = LlamaServer(file, settings, context)
        self._address: Address | None = None
        self._watch: asyncio.Task[None] | None = None
        self._turns: dict[TurnKey, Running] = {}
        self._streams: set[asyncio.Task[None]] = set()
        self._waiting: list[tuple[int, int, Running]] = []
        self._arrivals = count()
        self._steps = Steps()
        self._draining = self._stopped = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def pid(self) -> int:
        """Of llama.cpp's process."""
        return self._server.pid

    async def start(self) -> EngineInfo:
        """See `Engine`."""
        self._on_phase(f"loading {self._file.name}")
        self._address = await self._server.start()
        self._watch = asyncio.get_running_loop().create_task(self._watched())
        return EngineInfo(
            model_context=self._context,
            block_size=self.settings.block_size,
            total_blocks=self._total_blocks,
            max_batch=self.settings.slots,
            max_batched_tokens=self.settings.batch,
            features=FEATURES,
            events="mirror",
            hashes="sequence",
        )

    async def drain(self, deadline: float) -> None:
        """See `Engine`."""
        self._draining = True
        try:
            async with asyncio.timeout(max(0.0, deadline - time.time())):
                await self._idle.wait()
        except TimeoutError:
            self._cancel_all()

    async def stop(self) -> None:
        """See `Engine`."""
        if self._stopped:
            return
        self._stopped = True
        self._cancel_all()
        if self._watch is not None:
            self._watch.cancel()
        await self._server.stop()
        await asyncio.gather(*self._streams, return_exceptions=True)
        self._steps.close()

    # --- turns --------------------------------------------------------------------------------------------------

    def submit(self, run: EngineTurn) -> None:
        """See `Engine`."""
        if self._draining or self._stopped:
            raise CapacityError("the worker takes no new turns", code="draining", retry_after=1.0)
        if self._steps.broken is not None:
            raise CapacityError("llama.cpp is broken", code="worker_lost")
        anew = again(run)
        run = run if anew is None else anew.turn
        room = self._room(run)
        grammar = guide_of(run, self._grammars)
        if len(self._waiting) >= self.settings.max_waiting:
            raise CapacityError("the engine's queue is full", code="queue_full", retry_after=1.0)
        one = self._turns[run.key] = Running(run, room, grammar, self._vocabulary, self.slots)
        one.again = anew
        self._idle.clear()
        if run.deadline:
            wait_s = max(0.0, run.deadline - time.time())
            one.timer = asyncio.get_running_loop().call_later(wait_s, self._end, one, "cancelled", _LATE)
        heappush(self._waiting, (-run.priority, next(self._arrivals), one))
        self._fill()

    def _room(self, run: EngineTurn) -> int:
        """Tokens that may be generated. Raises `RequestError`."""
        length = len(run.prompt) + len(run.generated)
        if not run.prompt:
            raise RequestError("the prompt has no tokens", code="invalid_value", field="prompt")
        if run.max_tokens is not None and run.max_tokens < 0:
            raise RequestError("max_tokens must not be negative", code="invalid_value", field="max_tokens")
        room = self._context - length
        if room <= 0:
            message = f"{length} tokens leave no room to generate in a context of {self._context}"
            raise RequestError(message, code="context_length_exceeded", field="prompt")
        if run.key in self._turns:
            raise RequestError(f"turn {run.turn_id} attempt {run.attempt} is already here", field="turn_id")
        return room if run.max_tokens is None else min(room, max(0, run.max_tokens - len(run.generated)))

    def cancel(self, turn: TurnKey) -> None:
        """See `Engine`."""
        if (one := self._turns.get(turn)) is not None:
            self._end(one, "cancelled")

    def retain(self, session: str, retention: Retention) -> None:
        """See `Retaining`."""
        self.slots.retain(session, retention, time.monotonic())

    def _cancel_all(self) -> None:
        for one in list(self._turns.values()):
            self._end(one, "cancelled")

    def _end(self, one: Running, finish: Finish, error: ErrorInfo | None = None) -> None:
        """A turn that goes on is over now; its slot is free when its stream is closed."""
        if one.key not in self._turns:
            return
        self._tell(one, one.last(finish, error))
        self._forget(one)
        if one.task is not None:
            one.task.cancel()
        else:
            self._waiting = [entry for entry in self._waiting if entry[2] is not one]
            heapify(self._waiting)

    def _forget(self, one: Running) -> None:
        del self._turns[one.key]
        if one.timer is not None:
            one.timer.cancel()
        if not self._turns:
            self._idle.set()

    # --- the engine ---------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Give waiting turns their slots."""
        while self._waiting and self.slots.free() and self._address is not None and not self._stopped:
            _, _, one = heappop(self._waiting)
            one.begin()
            one.task = asyncio.get_running_loop().create_task(self._follow(one, self._address))
            self._streams.add(one.task)
            one.task.add_done_callback(partial(self._let_go, one))

    async def _follow(self, one: Running, address: Address) -> None:
        """Until the turn has ended."""
        while one.key in self._turns:
            async with aclosing(complete(address, body(one))) as messages:
                async for message in messages:
                    if (delta := one.read(message)) is not None:
                        self._tell(one, delta)
                        self._tell_kv()
                        if delta.finish is not None:
                            self._forget(one)
                            return

    def _let_go(self, one: Running, task: asyncio.Task[None]) -> None:
        """Its stream is closed."""
        self._streams.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, TurnError | SaidOtherwiseError):
            self._end(one, "error", error.info)
        elif error is not None and not self._stopped:
            reason = error if isinstance(error, EngineError) else EngineError(f"llama.cpp: {error!r}")
            asyncio.get_running_loop().call_later(_REASON_S, self._steps.fail, reason)
        one.release()
        self._tell_kv()
        self._fill()

    async def _watched(self) -> None:
        self._steps.fail(EngineError(f"llama.cpp ended by itself, with code {await self._server.died()}"))

    def _tell(self, one: Running, delta: Delta) -> None:
        """Raises `SaidOtherwiseError`."""
        fresh = delta if one.again is None else one.again.hear(delta)
        if fresh is not None:
            self._steps.add(fresh)

    def _tell_kv(self) -> None:
        if events := self.slots.drain():
            self._steps.add_kv(events)

    # --- steps --------------------------------------------------------------------------------------------------

    def steps(self) -> AsyncIterator[Step]:
        """See `Engine`."""
        return self._steps.read(self._load)

    @property
    def _total_blocks(self) -> int:
        return self.settings.slots * (self._context // self.settings.block_size)

    def _load(self) -> EngineLoad:
        inside = [one for one in self._turns.values() if one.task is not None]
        return EngineLoad(
            running=len(inside),
            waiting=len(self._waiting),
            waiting_prefill_tokens=sum(one.pending for _, _, one in self._waiting),
            prefilling_tokens=sum(one.pending for one in inside),
            decode_tokens=sum(len(one.ids) for one in inside if not one.pending),
            used_blocks=self.slots.used_blocks(),
            total_blocks=self._total_blocks,
        )
