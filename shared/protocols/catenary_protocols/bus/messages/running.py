"""Between tokenizer and worker: a run, its tokens."""

from typing import Literal

from catenary_protocols.bus.messages.base import Message
from catenary_protocols.conversation import Hints, Sampling, TokenLogprob
from catenary_protocols.errors import ErrorInfo
from catenary_protocols.ids import TurnKey
from catenary_protocols.wire import Wire


class Retention(Wire, frozen=True):
    """How long the blocks of a turn's session are to be kept once the turn has ended.

    Attributes:
        priority: blocks of lower priority are evicted first; 0 is ordinary, below it they go before all others.
        seconds: after which a priority above 0 falls back to it.
    """

    priority: int = 0
    seconds: float = 0.0


class RunTurn(Message, frozen=True):
    """Run this. `prompt` and `generated` stay apart, so that limits and penalties count from the original prompt.

    Answered by `TurnAdmitted` or `Refused` on the reply subject; a repeat of a known key is answered the same.

    Attributes:
        hashes: sequence hashes of the prompt's whole blocks, u64, so that nobody makes them twice; may be empty.
        images: URLs (`data:` or others) of the images whose marks stand in the prompt, in their order.
        image_at: index of each one's mark among the prompt's tokens; its block and those after it are told apart by it.
        retention: what is expected now; `Retain` may tell better when the turn has ended.
        lora: adapter of the model, by the name its worker knows it by.
        half: what of the turn is to be done; the `prefill` half ends with a handoff, which the `decode` half is given.
    """

    turn: TurnKey
    tokenizer: str
    tokenizer_incarnation: int
    model: str
    card: str
    prompt: bytes
    sampling: Sampling
    generated: bytes = b""
    stop_token_ids: tuple[int, ...] = ()
    hints: Hints = Hints()
    salt: str = ""
    session: str = ""
    guide: str = ""
    deadline: float = 0.0
    images: tuple[str, ...] = ()
    image_at: tuple[int, ...] = ()
    retention: Retention = Retention()
    lora: str = ""
    half: Literal["whole", "prefill", "decode"] = "whole"
    handoff: bytes = b""
    hashes: bytes = b""


class TurnAdmitted(Message, frozen=True):
    """The engine has it."""

    turn: TurnKey
    worker: str
    incarnation: int


class Retain(Message, frozen=True):
    """A session's last turn here has ended, and this is how long its blocks are to be kept now.

    Engines that cannot change that afterwards go on with what `RunTurn` said.
    """

    session: str
    retention: Retention


class ResendTokens(Message, frozen=True):
    """Send the tokens of this attempt again, from this offset on; answered on `tokens.<tokenizer>`."""

    turn: TurnKey
    tokenizer: str
    offset: int


class Drain(Message, frozen=True):
    """Take no new turns; finish or hand back what runs by the deadline."""

    deadline: float = 0.0


class TurnTokens(Wire, frozen=True):
    """What one turn got in one step.

    Attributes:
        offset: index of the first of `tokens` among all tokens generated since the original prompt.
        cached: prompt tokens the engine reused; set (not None) in the first item of an attempt.
        queued_s, prefill_s: what the engine measured for this attempt, in the first item.
        finish: "" while it goes on, else stop, length, cancelled, error, or handoff for a prefill half.
        handoff: with which the decode half goes on, on a worker of the same kind.
        stop_token: the token that ended it is the last of `tokens` and is not visible text.
        logprobs: of each of `tokens`, None where the engine does not know; empty unless the turn asks for them.
    """

    turn_id: str
    attempt: int = 0
    offset: int = 0
    tokens: bytes = b""
    cached: int | None = None
    queued_s: float = 0.0
    prefill_s: float = 0.0
    finish: Literal["", "stop", "length", "cancelled", "error", "handoff"] = ""
    stop_token: bool = False
    error: ErrorInfo | None = None
    logprobs: tuple[TokenLogprob | None, ...] = ()
    handoff: bytes = b""


class TokenFrame(Message, frozen=True):
    """One engine step for one tokenizer. `number` counts frames of this link from 1."""

    worker: str
    incarnation: int
    number: int
    items: tuple[TurnTokens, ...]
