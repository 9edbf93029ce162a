"""A complete engine: it repeats the prompt, a token a step, as many turns at once as come."""

import asyncio
import time
from collections.abc import AsyncIterator

from catenary_protocols.errors import CapacityError, RequestError
from catenary_protocols.ids import TurnKey
from catenary_worker.engines.base import Delta, EngineInfo, EngineLoad, EngineSetup, EngineTurn, Finish, Started, Step

CONTEXT, BATCH = 4096, 64


class EchoEngine:
    """Knows no KV cache: its events are `none`, and the router places its turns by load alone."""

    def __init__(self) -> None:
        self._turns: dict[TurnKey, EngineTurn] = {}
        self._said: dict[TurnKey, int] = {}
        self._cancelled: set[TurnKey] = set()
        self._draining = self._stopped = False
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    async def start(self) -> EngineInfo:
        """Nothing to load."""
        return EngineInfo(
            model_context=CONTEXT,
            block_size=16,
            total_blocks=CONTEXT // 16 * BATCH,
            max_batch=BATCH,
            max_batched_tokens=CONTEXT,
            features=frozenset({"cancel"}),
            events="none",
        )

    def submit(self, run: EngineTurn) -> None:
        """Refuse at once, or see it through."""
        if self._draining or self._stopped:
            raise CapacityError("the engine takes no new turns", code="draining")
        if not 0 < len(run.prompt) + len(run.generated) < CONTEXT:
            raise RequestError(f"a prompt has 1 to {CONTEXT - 1} tokens", field="prompt")
        if len(self._turns) >= BATCH:
            raise CapacityError("the engine is full", code="queue_full", retry_after=1.0)
        self._turns[run.key] = run
        self._idle.clear()
        self._work.set()

    def cancel(self, turn: TurnKey) -> None:
        """The next step ends it."""
        if turn in self._turns:
            self._cancelled.add(turn)

    async def steps(self) -> AsyncIterator[Step]:
        """One token for each turn, then the loop's other work."""
        while True:
            if not self._turns:
                self._idle.set()
                if self._stopped:
                    return
                self._work.clear()
                await self._work.wait()
                continue
            running = list(self._turns.values())
            deltas = [self._advance(turn) for turn in running]
            yield Step(deltas, [], EngineLoad(running=len(running), total_blocks=CONTEXT // 16 * BATCH))
            await asyncio.sleep(0)

    def _advance(self, turn: EngineTurn) -> Delta:
        at = self._said.get(turn.key, len(turn.generated))
        started = None if turn.key in self._said else Started(cached_tokens=0)
        limit = CONTEXT - len(turn.prompt) if turn.max_tokens is None else turn.max_tokens
        token = turn.prompt[at % len(turn.prompt)]
        tokens: tuple[int, ...] = (token,)
        finish: Finish | None = None
        if self._stopped or turn.key in self._cancelled:
            tokens, finish = (), "cancelled"
        elif at >= limit:
            tokens, finish = (), "length"
        elif token in turn.stop_token_ids and at + 1 > turn.min_tokens:
            finish = "stop"
        elif at + 1 >= min(limit, CONTEXT - len(turn.prompt)):
            finish = "length"
        self._said[turn.key] = at + len(tokens)
        if finish is not None:
            del self._turns[turn.key], self._said[turn.key]
            self._cancelled.discard(turn.key)
        return Delta(turn.turn_id, turn.attempt, at, tokens, started, finish, stop_token=finish == "stop")

    async def drain(self, deadline: float) -> None:
        """Let them finish; at the deadline, cancel."""
        self._draining = True
        try:
            async with asyncio.timeout(max(0.0, deadline - time.time())):
                await self._idle.wait()
        except TimeoutError:
            self._cancelled.update(self._turns)
            await self._idle.wait()

    async def stop(self) -> None:
        """Turns that run are cancelled by the last step."""
        self._stopped = True
        self._work.set()


def echo(_: EngineSetup) -> EchoEngine:
    """The entry point."""
    return EchoEngine()
