"""One turn of the engine's: what its results say that is new.

Rule: results are cumulative, and the engine hands out the same object again and again; what counts is how many tokens
were already passed on. Tokens that were passed on are never taken back, even where the engine cuts them off again.
"""

from array import array
from asyncio import TimerHandle
from collections.abc import Collection
from typing import Any

from catenary_protocols.conversation import TokenLogprob
from catenary_protocols.errors import ErrorInfo

from catenary_worker.engines.again import Again
from catenary_worker.engines.base import Delta, EngineTurn, Finish, Started
from catenary_worker.engines.trtllm.halves import packed

_FINISHES: dict[str, Finish] = {"stop": "stop", "length": "length", "cancelled": "cancelled", "not_finished": "length"}
_SILENT_END = ErrorInfo(code="engine_failed", message="TensorRT-LLM ended the turn and did not say why")
_TIMED_OUT = ErrorInfo(code="engine_failed", message="TensorRT-LLM gave the turn up: it took too long")


class Running:
    """A turn from `submit` to its end in the engine, which a cancelled turn reaches after its end in the mesh.

    Attributes:
        wanted: tokens that are still to be generated; with 0, the prompt is computed and nothing said.
        result: what `generate_async` returned; None while the turn waits for its place.
        ended: the mesh was told the end.
        abort: the engine is to abort it when it can.
        again: says what of it is new, where it was moved and had to begin anew.
        timer: ends it at its deadline.
    """

    __slots__ = (
        "_queued_at",
        "_seen",
        "_stops",
        "_wait_s",
        "abort",
        "again",
        "ended",
        "result",
        "started",
        "timer",
        "turn",
        "wanted",
    )

    def __init__(self, turn: EngineTurn, *, wanted: int, stops: Collection[int], now: float) -> None:
        self.turn = turn
        self.wanted = wanted
        self.result: Any = None
        self.started = self.ended = self.abort = False
        self.timer: TimerHandle | None = None
        self.again: Again | None = None
        self._wait_s = 0.0
        self._stops = stops
        self._queued_at = now
        self._seen = 0

    @property
    def ids(self) -> "array[int]":
        """What the engine is given: the prompt and what an earlier attempt generated."""
        return self.turn.prompt + self.turn.generated

    @property
    def private(self) -> bool:
        """Its blocks are nobody else's."""
        return bool(self.turn.salt or self.turn.options.get("lora"))

    @property
    def tokens(self) -> int:
        """KV tokens it holds."""
        return len(self.turn.prompt) + len(self.turn.generated) + self._seen

    def launched(self, result: Any, now: float) -> None:
        """The engine has it."""
        self.result = result
        self._wait_s = max(0.0, now - self._queued_at)

    def read(self, result: Any, block_size: int) -> Delta | None:
        """What this result adds; None if nothing."""
        output = result.outputs[0]
        if self.turn.half == "prefill":
            return self._prefilled(result, output, block_size)
        ids = output.token_ids
        fresh = tuple(ids[self._seen :])
        finish, error = _ending(result, output)
        if finish == "stop" and (cut := self._cut_stop(output)) is not None:
            fresh = (*fresh, cut)
        room = self.wanted - self._seen
        if finish is not None and len(fresh) > room:
            finish, error = "length", None
        fresh = fresh[:room]
        stop_token = finish == "stop" and bool(fresh) and fresh[-1] in self._stops
        if not fresh and finish is None:
            return None
        started = None
        if not self.started:
            started = Started(self._cached(result, output, block_size), self._wait_s)
        logprobs = self._logprobs(output, fresh)
        return self._delta(fresh, started, finish, error, stop_token=stop_token, logprobs=logprobs)

    def _prefilled(self, result: Any, output: Any, block_size: int) -> Delta | None:
        """The first token is computed, and told by the decode half, which hears of it in the handoff."""
        finish, error = _ending(result, output)
        if finish is None:
            return None
        if finish not in {"stop", "length"}:
            return self._delta((), None, finish, error)
        started = Started(self._cached(result, output, block_size), self._wait_s)
        return self._delta((), started, "handoff", None, handoff=packed(output.disaggregated_params))

    def end(self, finish: Finish, error: ErrorInfo | None = None) -> Delta:
        """Its last delta, whatever the engine says later."""
        return self._delta((), None, finish, error)

    def _delta(
        self,
        tokens: tuple[int, ...],
        started: Started | None,
        finish: Finish | None,
        error: ErrorInfo | None,
        *,
        stop_token: bool = False,
        logprobs: tuple[TokenLogprob | None, ...] = (),
        handoff: bytes = b"",
    ) -> Delta:
        turn = self.turn
        offset = len(turn.generated) + self._seen
        self._seen += len(tokens)
        self.started = self.started or started is not None
        self.ended = finish is not None
        return Delta(turn.turn_id, turn.attempt, offset, tokens, started, finish, error, stop_token, logprobs, handoff)

    def _logprobs(self, output: Any, fresh: tuple[int, ...]) -> tuple[TokenLogprob | None, ...]:
        """Of each fresh token; the engine keeps them in step with its ids, and may cut both at a stop token."""
        count = self.turn.options.get("logprobs")
        if not isinstance(count, int):
            return ()
        told = output.logprobs or []
        places = range(self._seen, self._seen + len(fresh))
        return tuple(
            _told(token, told[place], count) if place < len(told) else None
            for token, place in zip(fresh, places, strict=True)
        )

    def _cut_stop(self, output: Any) -> int | None:
        """The stop token that ended the turn, if the engine cut it off its result before we saw it."""
        reason, ids = output.stop_reason, output.token_ids
        missing = isinstance(reason, int) and len(ids) >= self._seen and list(ids[-1:]) != [reason]
        return reason if missing else None

    def _cached(self, result: Any, output: Any, block_size: int) -> int:
        """Prompt tokens reused; the last one is always computed."""
        metrics = getattr(output, "request_perf_metrics", None)
        blocks = metrics.kv_cache_metrics.num_reused_blocks if metrics is not None else 0
        cached = max(getattr(result, "cached_tokens", 0) or 0, blocks * block_size)
        return min(cached, len(self.turn.prompt) - 1)


def _told(token: int, said: Any, count: int) -> TokenLogprob | None:
    """`said` maps ids to their likelihoods; some samplers tell of the sampled token alone."""
    if isinstance(said, float):
        return TokenLogprob(logprob=said)
    if token not in said:
        return None
    likeliest = sorted(said.items(), key=lambda item: -item[1].logprob)[:count]
    return TokenLogprob(logprob=said[token].logprob, top={index: one.logprob for index, one in likeliest})


def _ending(result: Any, output: Any) -> tuple[Finish | None, ErrorInfo | None]:
    reason = output.finish_reason
    if reason == "timeout":
        return "error", _TIMED_OUT
    if reason in _FINISHES:
        return _FINISHES[reason], None
    return ("error", _SILENT_END) if result.finished else (None, None)
