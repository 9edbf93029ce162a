"""The simulated engine: the paged core on a loop, at a pace."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace

from catenary_protocols.errors import CapacityError, RequestError
from catenary_protocols.ids import TurnKey
from catenary_tokenizers import ModelTokenizer

from catenary_worker.engines.base import Delta, EngineInfo, EngineTurn, Retention, Step
from catenary_worker.engines.paged import PagedCore, Sequence
from catenary_worker.engines.sim.clock import Pace
from catenary_worker.engines.sim.codec import Codec, spelled
from catenary_worker.engines.sim.constraints import read_constraint
from catenary_worker.engines.sim.executor import TimedExecutor
from catenary_worker.engines.sim.halves import HALVES, check_handle, handed_over
from catenary_worker.engines.sim.likely import Likely
from catenary_worker.engines.sim.phrases import Dice
from catenary_worker.engines.sim.record import Record, TurnRecord
from catenary_worker.engines.sim.scripts import ScriptBook, recite
from catenary_worker.engines.sim.settings import SimSettings
from catenary_worker.engines.sim.speaker import Speaker
from catenary_worker.engines.sim.voice import Speech, Voice
from catenary_worker.engines.sim.writing import Render

_FEATURES = frozenset({"cancel", "guide", "logprobs", "priority", "retention", "salt"})


class SimEngine:
    """An `Engine` without a GPU. With `settings.scripts`, `script`, `unscript` and `report` are for tests."""

    def __init__(self, tokenizer: ModelTokenizer, render: Render, settings: SimSettings, context: int) -> None:
        self.settings = settings
        self._codec = Codec(tokenizer)
        self._speaker = Speaker(self._codec, render)
        self._scripts = ScriptBook()
        self._record = Record()
        executor = TimedExecutor(settings.timing, self._cast, Likely(sorted(tokenizer.table.texts)))
        self._core = PagedCore(settings.limits(context), executor, eos=tokenizer.eos_ids)
        self._records: dict[TurnKey, TurnRecord] = {}
        self._prefills: dict[TurnKey, EngineTurn] = {}
        self._pace = Pace(settings.time_scale)
        self._draining = self._stopped = False
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    async def start(self) -> EngineInfo:
        """See `Engine`."""
        limits = self._core.limits
        return EngineInfo(
            model_context=self._core.context,
            block_size=limits.block_size,
            total_blocks=limits.blocks,
            max_batch=limits.max_batch,
            max_batched_tokens=limits.max_batched_tokens,
            features=_FEATURES | {"images"} if self._codec.sees_images else _FEATURES,
            events="exact",
            hashes="sequence",
            halves=HALVES[self.settings.role],
        )

    def submit(self, run: EngineTurn) -> None:
        """See `Engine`."""
        if self._draining or self._stopped:
            raise CapacityError("the worker takes no new turns", code="draining", retry_after=1.0)
        if run.options.get("lora"):
            raise RequestError("the simulator has no adapters", code="unsupported", field="lora")
        check_handle(run)
        read_constraint(run.options)
        if run.half == "prefill":
            self._core.submit(replace(run, max_tokens=0), time.time())
            self._prefills[run.key] = run
        else:
            self._core.submit(run, time.time())
        self._idle.clear()
        self._wake.set()

    def cancel(self, turn: TurnKey) -> None:
        """See `Engine`."""
        if self._core.cancel(turn):
            self._record.aborted += 1

    def retain(self, session: str, retention: Retention) -> None:
        """See `Retaining`."""
        self._core.retain(session, retention, time.time())

    async def steps(self) -> AsyncIterator[Step]:
        """See `Engine`."""
        while True:
            if not self._core.live:
                self._idle.set()
                if self._stopped:
                    return
                self._pace.rest()
                self._wake.clear()
                await self._wake.wait()
                continue
            step, seconds = self._core.step(time.time())
            await self._pace.take(seconds)
            if self.settings.scripts:
                self._count(step)
            yield self._handing_over(step) if self._prefills else step

    async def drain(self, deadline: float) -> None:
        """See `Engine`."""
        self._draining = True
        try:
            async with asyncio.timeout(max(0.0, deadline - time.time())):
                await self._idle.wait()
        except TimeoutError:
            self._core.cancel_all()
            await self._idle.wait()

    async def stop(self) -> None:
        """See `Engine`."""
        self._stopped = True
        self._core.cancel_all()
        self._wake.set()

    def script(self, spec: Mapping[str, object]) -> str:
        """Take a script (see `scripts`); its id. Raises `RequestError`."""
        if not self.settings.scripts:
            raise RequestError("this engine takes no scripts", code="permission_denied", field="script")
        return self._scripts.add(spec).id

    def unscript(self, name: str) -> bool:
        """Forget a script; False if there is none of this id."""
        return self._scripts.delete(name)

    def report(self) -> dict[str, object]:
        """What the engine got and did, as JSON; `blocks` is its block table: sequence hash → parent's, as hex."""
        blocks = {_hex(name): None if parent is None else _hex(parent) for name, parent in self._core.cached.items()}
        return {**self._record.report(), "blocks": blocks, "preemptions": self._core.preemptions}

    def _cast(self, sequence: Sequence) -> Voice:
        turn = sequence.turn
        parts = self._codec.read(turn.prompt, turn.session)
        end = self._codec.end_for(parts)
        if self.settings.scripts:
            prompt = spelled(parts)
            self._record.calls += 1
            found = self._scripts.text_for(turn.turn_id, prompt)
            if found is not None and found[0].cached_tokens is not None:
                sequence.cached_tokens = min(found[0].cached_tokens, len(turn.prompt) - 1)
            record = TurnRecord(turn, prompt, sequence.cached_tokens)
            self._record.turns.append(record)
            self._records[turn.key] = record
            if found is not None:
                return recite(*found, self._codec, end)
        steps = self._speaker.speak(turn, parts, Dice(turn.prompt, turn.seed), end)
        return Speech(steps, finite=end is None)

    def _handing_over(self, step: Step) -> Step:
        """Prefill halves end in a handle, those that were cancelled or failed do not."""

        def ended(delta: Delta) -> Delta:
            if delta.finish is None:
                return delta
            turn = self._prefills.pop(TurnKey(turn_id=delta.turn_id, attempt=delta.attempt), None)
            return delta if turn is None or delta.finish != "length" else handed_over(delta, turn)

        return Step([ended(delta) for delta in step.deltas], step.kv, step.load)

    def _count(self, step: Step) -> None:
        for delta in step.deltas:
            key = TurnKey(turn_id=delta.turn_id, attempt=delta.attempt)
            record = self._records.get(key)
            if record is not None:
                record.tokens += len(delta.tokens)
                if delta.finish is not None:
                    del self._records[key]


def _hex(name: int) -> str:
    return f"{name:016x}"
