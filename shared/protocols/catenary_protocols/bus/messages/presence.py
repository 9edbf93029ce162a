"""What every instance says of itself, four times a second."""

from typing import Literal

from catenary_protocols.bus.messages.base import Message
from catenary_protocols.ids import TurnKey
from catenary_protocols.wire import Wire


class LinkTail(Wire, frozen=True):
    """Number of the last frame sent to one receiver."""

    to: str
    number: int


class LiveTurn(Wire, frozen=True):
    """A turn that is alive at the sender of a beat.

    Attributes:
        at: the other side (worker's beat: its tokenizer; tokenizer's: its worker; frontend's: its tokenizer).
        offset: worker: tokens generated; tokenizer: tokens received; frontend: last event received.
        events: tokenizer's beat: last event sent.
        to: tokenizer's beat: the frontend.
    """

    turn_id: str
    at: str
    attempt: int = 0
    offset: int = 0
    events: int = 0
    to: str = ""


class Beat(Message, frozen=True):
    """A service is alive. Sent every 250 ms, and at once when something changed.

    Attributes:
        warning: what is amiss with it though it takes work, for people.
    """

    service: str
    instance: str
    incarnation: int
    ready: bool = True
    draining: bool = False
    tails: tuple[LinkTail, ...] = ()
    turns: tuple[LiveTurn, ...] = ()
    sent_at: float = 0.0
    warning: str = ""


class WorkerLoad(Message, frozen=True):
    """A worker is alive, and how busy it is. Its beat.

    Attributes:
        waiting_prefill: prompt tokens not computed yet, of waiting and running turns.
        kv_used, kv_total: blocks; cached but unused blocks do not count as used.
        decode_ms, prefill_tokens_per_s: what the engine measured lately; 0 while unknown.
        kv_last: number of the last KV event, by rank.
        kv_digest: xor of the hashes of all blocks held at `kv_last`, by rank; empty: not told.
        kv_events: exact, mirror or none.
        tags: what it is known for; a turn may ask for some.
        halves: what of a turn it takes: whole, prefill, decode.
        ended: attempts that ended since the beat before, so that a turn too short to be in `turns` is not missed.
    """

    worker: str
    incarnation: int
    model: str
    card: str
    block_size: int
    ready: bool = True
    draining: bool = False
    running: int = 0
    waiting: int = 0
    waiting_prefill: int = 0
    kv_used: int = 0
    kv_total: int = 0
    max_batch: int = 0
    decode_ms: float = 0.0
    prefill_tokens_per_s: float = 0.0
    kv_last: tuple[int, ...] = ()
    kv_events: Literal["exact", "mirror", "none"] = "exact"
    tails: tuple[LinkTail, ...] = ()
    turns: tuple[LiveTurn, ...] = ()
    sent_at: float = 0.0
    kv_digest: tuple[int, ...] = ()
    ended: tuple[TurnKey, ...] = ()
    tags: tuple[str, ...] = ()
    halves: tuple[str, ...] = ("whole",)
