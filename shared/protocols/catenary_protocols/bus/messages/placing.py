"""Between tokenizer, router and kv-indexer: where a turn goes and who holds its prefix."""

from catenary_protocols.bus.messages.base import Message
from catenary_protocols.conversation import Hints, Within
from catenary_protocols.errors import ErrorInfo
from catenary_protocols.ids import TurnKey
from catenary_protocols.wire import Wire


class PlaceTurn(Message, frozen=True):
    """Where should this run? Idempotent by `turn`. Answered by `Queued` each second, then `Placement` or `Refused`.

    Attributes:
        card: content hash of the model; only workers with the same one qualify.
        hashes: sequence hashes of the prompt's whole blocks (u64 LE), in order.
        arrived_at: first arrival of the turn, kept over attempts and routers.
        not_on: workers to avoid (they just failed this turn).
        last_worker: where the session ran last, for ties.
        explain: the placement is to say why.
    """

    turn: TurnKey
    tokenizer: str
    tokenizer_incarnation: int
    model: str
    card: str
    block_size: int
    hashes: bytes
    prompt_tokens: int
    session: str
    arrived_at: float
    max_tokens: int = 0
    hints: Hints = Hints()
    tenant: str = ""
    not_on: tuple[str, ...] = ()
    last_worker: str = ""
    deadline: float = 0.0
    within: Within = Within()
    explain: bool = False


class CancelPlace(Message, frozen=True):
    """The placement is not wanted any more."""

    turn: TurnKey


class PlaceQueued(Message, frozen=True):
    """No room yet; `position` counts from 1. Repeated each second."""

    turn: TurnKey
    router: str
    router_incarnation: int
    position: int


class Candidate(Wire, frozen=True):
    """One worker the router considered: blocks it holds, its estimated time to first token, ms."""

    worker: str
    overlap: int
    cost: float


class Placement(Message, frozen=True):
    """Run it there.

    Attributes:
        decode: where `worker` only prefills, the worker that goes on; "": `worker` does all of it.
        overlap: leading blocks of the prompt the worker holds.
        policy: which policy decided; `candidates` why (best first, at most eight).
        why: what the router tells of it, as JSON, where it was to be explained.
    """

    turn: TurnKey
    router: str
    router_incarnation: int
    worker: str
    worker_incarnation: int
    decode: str = ""
    decode_incarnation: int = 0
    overlap: int = 0
    policy: str = ""
    candidates: tuple[Candidate, ...] = ()
    why: str = ""


class Refused(Message, frozen=True):
    """No, and why; `error.retry_after` is an honest guess."""

    error: ErrorInfo
    turn: TurnKey = TurnKey(turn_id="")


class OverlapQuery(Message, frozen=True):
    """Which workers hold a prefix of these blocks?"""

    model: str
    block_size: int
    hashes: bytes


class WorkerOverlap(Wire, frozen=True):
    """Leading whole blocks that one worker holds."""

    worker: str
    blocks: int


class Overlap(Message, frozen=True):
    """Workers with at least one leading block, and those whose content is known for certain (`known`)."""

    workers: tuple[WorkerOverlap, ...] = ()
    known: tuple[str, ...] = ()
