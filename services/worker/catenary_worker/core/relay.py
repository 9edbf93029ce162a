"""One engine step to what each tokenizer gets of it. The per-token path: one pass, one small value a token.

Rule: a delta is kept with its turn before anybody hears of it; it is not sent while its turn waits for its owner's
word.
"""

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from catenary_protocols.bus.messages import TurnTokens
from catenary_protocols.errors import ErrorInfo

from catenary_worker.core.turns import Turn
from catenary_worker.engines.base import Delta

UNEXPLAINED = ErrorInfo(code="engine_failed", message="the engine failed while it ran this turn")


@dataclass(slots=True)
class Relayed:
    """Items by tokenizer, and the turns that came to a new stage in this step."""

    frames: dict[str, list[TurnTokens]] = field(default_factory=dict)
    tokens: int = 0
    started: list[Turn] = field(default_factory=list)
    prefilled: list[Turn] = field(default_factory=list)
    ended: list[Turn] = field(default_factory=list)


def relay(deltas: Iterable[Delta], turns: Mapping[str, Turn], now: float) -> Relayed:
    """Keep the tokens of a step; deltas of turns that are not here, or that we ended ourselves, are dropped."""
    out = Relayed()
    frames, count = out.frames, 0
    for delta in deltas:
        turn = turns.get(delta.turn_id)
        if turn is None or turn.attempt != delta.attempt or turn.finish:
            continue
        tokens, ids = delta.tokens, turn.ids
        packed = tokens[0].to_bytes(4, "little") if len(tokens) == 1 else array("I", tokens).tobytes()
        count += len(tokens)
        if delta.started is not None or delta.finish is not None or not ids:
            item = _turning_point(delta, turn, packed, now, out)
        elif delta.logprobs:
            item = _told(delta, packed)
        else:
            item = TurnTokens(turn_id=delta.turn_id, attempt=delta.attempt, offset=delta.offset, tokens=packed)
        ids += packed
        if delta.logprobs:
            turn.logprobs += delta.logprobs
        if not turn.held_since:
            frame = frames.get(turn.owner)
            if frame is None:
                frames[turn.owner] = [item]
            else:
                frame.append(item)
    out.tokens = count
    return out


def _told(delta: Delta, packed: bytes) -> TurnTokens:
    """A delta of a turn that wants to know how likely its tokens are."""
    return TurnTokens(
        turn_id=delta.turn_id, attempt=delta.attempt, offset=delta.offset, tokens=packed, logprobs=delta.logprobs
    )


def _turning_point(delta: Delta, turn: Turn, packed: bytes, now: float, out: Relayed) -> TurnTokens:
    """A delta that begins or ends something."""
    first = delta.started is not None
    if delta.started is not None:
        turn.cached, turn.queued_s = delta.started.cached_tokens, delta.started.queued_s
        out.started.append(turn)
    if packed and not turn.ids:
        turn.prefill_s = max(0.0, now - turn.admitted_at - turn.queued_s)
        out.prefilled.append(turn)
    if delta.finish is not None:
        turn.finish, turn.stop_token, turn.error = delta.finish, delta.stop_token, delta.error
        turn.handoff = delta.handoff
        if delta.finish == "error" and delta.error is None:
            turn.error = UNEXPLAINED
        out.ended.append(turn)
    return TurnTokens(
        turn_id=delta.turn_id,
        attempt=delta.attempt,
        offset=delta.offset,
        tokens=packed,
        cached=turn.cached if first else None,
        queued_s=turn.queued_s if first else 0.0,
        prefill_s=turn.prefill_s if packed and not turn.ids else 0.0,
        finish=turn.finish,
        stop_token=turn.stop_token,
        error=turn.error,
        logprobs=delta.logprobs,
        handoff=turn.handoff,
    )
