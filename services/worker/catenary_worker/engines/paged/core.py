"""A paged engine without clock and loop: turns in, one step at a time out.

    core.submit(turn, now);  step, seconds = core.step(now);  …

`now` is whatever clock the caller keeps (deadlines and retention are on it); `seconds` is what the step took, so the
caller says when the next one is. The simulator's shell sleeps them, a virtual clock adds them up.
"""

from collections import OrderedDict
from heapq import heappop, heappush
from itertools import count

from catenary_protocols.conversation import TokenLogprob
from catenary_protocols.errors import CapacityError, ErrorInfo, RequestError
from catenary_protocols.ids import TurnKey
from catenary_tokenizers.blocks import HASH_BYTES

from catenary_worker.engines.base import Delta, EngineLoad, EngineTurn, Finish, Retention, Started, Step
from catenary_worker.engines.paged.blocks import NO_BLOCK, BlockPool
from catenary_worker.engines.paged.events import EventLog
from catenary_worker.engines.paged.executor import Batch, Ended, Executed, Executor
from catenary_worker.engines.paged.scheduler import Limits, Scheduler
from catenary_worker.engines.paged.sequence import Sequence

SESSIONS = 8192
"""Of so many the end of the last turn is known."""


class PagedCore:
    """Scheduler, block pool and executor put together."""

    def __init__(self, limits: Limits, executor: Executor, *, eos: frozenset[int] = frozenset()) -> None:
        self.limits = limits
        self.context = min(limits.context, limits.blocks * limits.block_size)
        self._executor = executor
        self._eos = eos
        self._log = EventLog()
        self._pool = BlockPool(limits.blocks, self._log)
        self._scheduler = Scheduler(limits, self._pool)
        self._turns: dict[TurnKey, Sequence] = {}
        self._ending: dict[Sequence, ErrorInfo | None] = {}
        self._deadlines: list[tuple[float, int, TurnKey]] = []
        self._arrivals = count()
        self._ends: OrderedDict[str, int] = OrderedDict()
        self._retained: list[tuple[str, Retention, float]] = []

    @property
    def live(self) -> int:
        """Turns that have not ended."""
        return len(self._turns)

    @property
    def cached(self) -> dict[int, int | None]:
        """Every full block held: hash → parent's hash."""
        return self._pool.cached

    @property
    def preemptions(self) -> int:
        """How often a turn gave its blocks back."""
        return self._scheduler.preemptions

    def submit(self, turn: EngineTurn, now: float) -> None:
        """Queue a turn. Raises `RequestError` (too long, empty, known, other hashes), `CapacityError` (queue full)."""
        if not turn.prompt:
            raise RequestError("the prompt has no tokens", code="invalid_value", field="prompt")
        if turn.max_tokens is not None and turn.max_tokens < 0:
            raise RequestError("max_tokens must not be negative", code="invalid_value", field="max_tokens")
        if turn.hashes and len(turn.hashes) != len(turn.prompt) // self.limits.block_size * HASH_BYTES:
            raise RequestError("these are not the hashes of the prompt", code="invalid_value", field="hashes")
        length = len(turn.prompt) + len(turn.generated)
        if length >= self.context:
            message = f"{length} tokens leave no room to generate in a context of {self.context}"
            raise RequestError(message, code="context_length_exceeded", field="prompt")
        if turn.key in self._turns:
            raise RequestError(f"turn {turn.turn_id} attempt {turn.attempt} is already here", field="turn_id")
        if self._scheduler.waiting_count >= self.limits.max_waiting:
            raise CapacityError("the engine's queue is full", code="queue_full", retry_after=1.0)
        arrival = next(self._arrivals)
        sequence = Sequence(
            turn,
            block_size=self.limits.block_size,
            context=self.context,
            eos=self._eos,
            arrival=arrival,
            now=now,
        )
        self._turns[turn.key] = sequence
        self._scheduler.enqueue(sequence)
        if turn.deadline:
            heappush(self._deadlines, (turn.deadline, arrival, turn.key))

    def cancel(self, key: TurnKey) -> bool:
        """End a turn with the next step; False if it is not here or already told so."""
        sequence = self._turns.get(key)
        if sequence is None or sequence in self._ending:
            return False
        self._ending[sequence] = None
        return True

    def retain(self, session: str, retention: Retention, now: float) -> None:
        """Keep what the session's last turn left so long; said to hold for turns that end with the next step too."""
        self._retained.append((session, retention, now))

    def cancel_all(self) -> None:
        """End every turn with the next step."""
        self._ending |= dict.fromkeys(self._turns.values())

    def step(self, now: float) -> tuple[Step, float]:
        """Run one iteration; what it computed is there `seconds` after `now`."""
        self._pool.tick(now)
        deltas = self._end_cancelled(now)
        self._settle()
        batch, admitted = self._scheduler.plan()
        for sequence in admitted:
            if not sequence.admitted:
                self._begin(sequence)
        seconds = 0.0
        if batch.sampling or batch.partial:
            executed = self._executor.run(batch)
            seconds = executed.seconds
            self._advance_partial(batch, deltas, now)
            self._advance_sampling(batch, executed, deltas, now)
        return Step(deltas, self._log.drain(), self._load(batch, seconds)), seconds

    def _begin(self, sequence: Sequence) -> None:
        sequence.admitted = True
        sequence.cached_tokens = min(sequence.computed, sequence.prompt_length - 1)
        self._executor.begin(sequence)

    def _end_cancelled(self, now: float) -> list[Delta]:
        ending, self._ending = self._ending, {}
        while self._deadlines and self._deadlines[0][0] <= now:
            _, arrival, key = heappop(self._deadlines)
            late = self._turns.get(key)
            if late is not None and late.arrival == arrival:
                ending.setdefault(late, ErrorInfo(code="deadline_exceeded", message="the turn's deadline passed"))
        deltas = []
        for sequence, error in ending.items():
            if self._turns.get(sequence.turn.key) is sequence:
                self._scheduler.remove(sequence)
                deltas.append(self._last(sequence, (), "cancelled", now, error=error))
        return deltas

    def _settle(self) -> None:
        retained, self._retained = self._retained, []
        for session, retention, since in retained:
            if (name := self._ends.get(session)) is not None:
                self._pool.settle(name, retention, since)

    def _advance_partial(self, batch: Batch, deltas: list[Delta], now: float) -> None:
        for sequence in batch.partial:
            sequence.computed += sequence.scheduled
            self._seal(sequence)
            if not sequence.told:
                deltas.append(
                    Delta(sequence.turn_id, sequence.attempt, self._offset(sequence), (), self._tell(sequence, now))
                )

    def _advance_sampling(self, batch: Batch, executed: Executed, deltas: list[Delta], now: float) -> None:
        ended, told = executed.ended, executed.logprobs
        plain = not ended and not told
        for row, (sequence, tokens) in enumerate(zip(batch.sampling, executed.tokens, strict=True)):
            ids = sequence.ids
            offset = len(ids) - sequence.prompt_length
            sequence.computed += sequence.scheduled
            if sequence.computed >= sequence.seal_at:
                self._seal(sequence)
            sequence.prefilling = False
            if len(tokens) == 1 and len(ids) + 1 < sequence.end and tokens[0] not in sequence.stops and plain:
                ids.append(tokens[0])
                started = None if sequence.told else self._tell(sequence, now)
                deltas.append(Delta(sequence.turn_id, sequence.attempt, offset, tokens, started))
            else:
                deltas.append(self._ponder(sequence, tokens, ended.get(row), now, told.get(row, ())))

    def _ponder(
        self,
        sequence: Sequence,
        tokens: tuple[int, ...],
        ended: Ended | None,
        now: float,
        logprobs: tuple[TokenLogprob, ...],
    ) -> Delta:
        """The general case: several tokens, any that may end the turn, or some of which more is told."""
        offset = self._offset(sequence)
        room = max(0, sequence.end - len(sequence.ids))
        least = sequence.turn.min_tokens - offset
        for index, token in enumerate(tokens[:room]):
            if token in sequence.stops and index + 1 > least:
                tokens = tokens[: index + 1]
                return self._last(sequence, tokens, "stop", now, stop_token=True, logprobs=logprobs)
        if len(tokens) >= room:
            return self._last(sequence, tokens[:room], "length", now, logprobs=logprobs)
        if ended is not None:
            return self._last(sequence, tokens, ended.finish, now, error=ended.error, logprobs=logprobs)
        sequence.ids.extend(tokens)
        started = None if sequence.told else self._tell(sequence, now)
        return Delta(sequence.turn_id, sequence.attempt, offset, tokens, started, logprobs=logprobs)

    def _last(
        self,
        sequence: Sequence,
        tokens: tuple[int, ...],
        finish: Finish,
        now: float,
        *,
        error: ErrorInfo | None = None,
        stop_token: bool = False,
        logprobs: tuple[TokenLogprob, ...] = (),
    ) -> Delta:
        if sequence.running:
            self._scheduler.remove(sequence)
        offset = self._offset(sequence)
        started = self._tell(sequence, now) if sequence.admitted and not sequence.told else None
        self._leave(sequence, now)
        del self._turns[sequence.turn.key]
        self._executor.end(sequence)
        said = logprobs[: len(tokens)]
        return Delta(sequence.turn_id, sequence.attempt, offset, tokens, started, finish, error, stop_token, said)

    def _leave(self, sequence: Sequence, now: float) -> None:
        """Its blocks stay as long as it said."""
        retention, session = sequence.turn.retention, sequence.turn.session
        self._pool.release(sequence.blocks, now=now, retention=retention if retention.priority > 0 else Retention())
        sequence.blocks = []
        if not sequence.sealed:
            return
        end = sequence.hash_of(sequence.sealed - 1)
        if retention.priority < 0:
            self._pool.settle(end, retention, now)
        if session:
            self._ends[session] = end
            self._ends.move_to_end(session)
            if len(self._ends) > SESSIONS:
                self._ends.popitem(last=False)

    def _seal(self, sequence: Sequence) -> None:
        blocks, index = sequence.blocks, sequence.sealed
        while sequence.computed >= sequence.seal_at:
            parent = blocks[index - 1] if index else NO_BLOCK
            name, tokens = sequence.hash_of(index), sequence.tokens_of(index)
            blocks[index] = self._pool.seal(blocks[index], name, parent, tokens, sequence.turn.salt)
            index += 1
            sequence.seal_at += sequence.block_size
        sequence.sealed = index

    def _offset(self, sequence: Sequence) -> int:
        return len(sequence.ids) - sequence.prompt_length

    def _tell(self, sequence: Sequence, now: float) -> Started:
        sequence.told = True
        return Started(sequence.cached_tokens, max(0.0, now - sequence.queued_at))

    def _load(self, batch: Batch, seconds: float) -> EngineLoad:
        scheduler, pool = self._scheduler, self._pool
        return EngineLoad(
            running=len(scheduler.running),
            waiting=scheduler.waiting_count,
            waiting_prefill_tokens=scheduler.waiting_tokens,
            prefilling_tokens=sum(sequence.pending for sequence in batch.partial),
            decode_tokens=batch.decode_tokens,
            used_blocks=pool.used,
            total_blocks=pool.total,
            step_ms=seconds * 1000,
            prefilled_tokens=batch.prefill_tokens,
        )
