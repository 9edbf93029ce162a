"""Every message of the mesh's own plane: MessagePack maps, tagged with the class name.

Token ids travel as little-endian u32 bytes, sequence hashes as little-endian u64 bytes. Times are Unix seconds,
deadlines absolute. The tool plane is in `tool_plane` (JSON).
"""

from typing import Literal

from catenary_protocols.conversation import Conversation, Hints, Sampling
from catenary_protocols.errors import ErrorInfo
from catenary_protocols.ids import TurnKey
from catenary_protocols.turn_events import TurnEvent
from catenary_protocols.wire import Wire


class Message(Wire, frozen=True, tag=True):
    """Base of all messages: `type` on the wire is the class name."""


# --- frontend → tokenizer -------------------------------------------------------------------------------------------


class TurnRequest(Message, frozen=True):
    """One turn, to its owner. Answered by `TurnTaken` on the reply subject, then by events on `events.<frontend>`.

    Attributes:
        turn: `attempt` is where the owner starts counting: 0, or 1,000 higher for each time it is submitted again.
        session: hash that names the conversation; places and shares caches.
        salt: keeps tenants' KV caches apart; mixed into every block hash.
        run_tools: names of declared tools whose calls the mesh runs; `("*",)` means all of them.
        resumable: the log is kept for 30 s after the end.
        answer_schema: JSON text of the schema that the final text must satisfy, or "".
        truncate: a prompt that is too long loses the conversation's oldest messages.
        choice, choices: which of how many turns for one request this is; calls of more than one stay off the bus.
        note: what a frontend needs to go on with this turn's answer; `Attached` brings it to another one.
    """

    turn: TurnKey
    frontend: str
    frontend_incarnation: int
    model: str
    session: str
    conversation: Conversation
    sampling: Sampling
    arrived_at: float
    hints: Hints = Hints()
    tenant: str = ""
    salt: str = ""
    api: Literal["chat", "responses", "messages", "completions"] = "chat"
    run_tools: tuple[str, ...] = ()
    resumable: bool = False
    deadline: float = 0.0
    answer_schema: str = ""
    truncate: bool = False
    choice: int = 0
    choices: int = 1
    note: bytes = b""


class TurnTaken(Message, frozen=True):
    """The tokenizer has the turn, in this incarnation."""

    turn: TurnKey
    tokenizer: str
    incarnation: int


class CancelTurn(Message, frozen=True):
    """Stop: from a frontend its turn, from a tokenizer one attempt. Leaves a tombstone of the key for 30 s."""

    turn: TurnKey
    reason: str = ""


class Attach(Message, frozen=True):
    """Send me this turn's events after `after` (a sequence number); the one who has the log answers `Attached`.

    Attributes:
        look: only tell what the turn is; its events go on where they go.
    """

    turn_id: str
    frontend: str
    frontend_incarnation: int
    after: int = 0
    look: bool = False


class Attached(Message, frozen=True):
    """The log is here; its events follow on `events.<frontend>`. `request` comes to those who only look."""

    turn: TurnKey
    tokenizer: str
    last: int
    request: TurnRequest | None = None


class CountTokens(Message, frozen=True):
    """How long would this prompt be? Answered by `TokenCount` or `Refused`. `ids`: and of which tokens is it made?"""

    model: str
    conversation: Conversation
    ids: bool = False


class TokenCount(Message, frozen=True):
    """Exact length of the rendered prompt, in tokens; `ids` when they were asked for."""

    tokens: int
    ids: bytes = b""


class Detokenize(Message, frozen=True):
    """What text do these tokens stand for? Answered by `TokenText` or `Refused`."""

    model: str
    ids: bytes


class TokenText(Message, frozen=True):
    """The text, control tokens spelled out."""

    text: str


# --- tokenizer → router ---------------------------------------------------------------------------------------------


class PlaceTurn(Message, frozen=True):
    """Where should this run? Idempotent by `turn`. Answered by `Queued` each second, then `Placement` or `Refused`.

    Attributes:
        card: content hash of the model; only workers with the same one qualify.
        hashes: sequence hashes of the prompt's whole blocks (u64 LE), in order.
        arrived_at: first arrival of the turn, kept over attempts and routers.
        not_on: workers to avoid (they just failed this turn).
        last_worker: where the session ran last, for ties.
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
        overlap: leading blocks of the prompt the worker holds.
        policy: which policy decided; `candidates` why (best first, at most eight).
    """

    turn: TurnKey
    router: str
    router_incarnation: int
    worker: str
    worker_incarnation: int
    overlap: int = 0
    policy: str = ""
    candidates: tuple[Candidate, ...] = ()


class Refused(Message, frozen=True):
    """No, and why; `error.retry_after` is an honest guess."""

    error: ErrorInfo
    turn: TurnKey = TurnKey(turn_id="")


# --- router → kv-indexer --------------------------------------------------------------------------------------------


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


# --- tokenizer → worker ---------------------------------------------------------------------------------------------


class RunTurn(Message, frozen=True):
    """Run this. `prompt` and `generated` stay apart, so that limits and penalties count from the original prompt.

    Answered by `TurnAdmitted` or `Refused` on the reply subject; a repeat of a known key is answered the same.

    Attributes:
        images: URLs (`data:` or others) of the images whose marks stand in the prompt, in their order.
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


class TurnAdmitted(Message, frozen=True):
    """The engine has it."""

    turn: TurnKey
    worker: str
    incarnation: int


class ResendTokens(Message, frozen=True):
    """Send the tokens of this attempt again, from this offset on; answered on `tokens.<tokenizer>`."""

    turn: TurnKey
    tokenizer: str
    offset: int


class Drain(Message, frozen=True):
    """Take no new turns; finish or hand back what runs by the deadline."""

    deadline: float = 0.0


# --- worker → tokenizer ---------------------------------------------------------------------------------------------


class TurnTokens(Wire, frozen=True):
    """What one turn got in one step.

    Attributes:
        offset: index of the first of `tokens` among all tokens generated since the original prompt.
        cached: prompt tokens the engine reused; set (not None) in the first item of an attempt.
        queued_s, prefill_s: what the engine measured for this attempt, in the first item.
        finish: "" while it goes on, else stop, length, cancelled or error.
        stop_token: the token that ended it is the last of `tokens` and is not visible text.
    """

    turn_id: str
    attempt: int = 0
    offset: int = 0
    tokens: bytes = b""
    cached: int | None = None
    queued_s: float = 0.0
    prefill_s: float = 0.0
    finish: Literal["", "stop", "length", "cancelled", "error"] = ""
    stop_token: bool = False
    error: ErrorInfo | None = None


class TokenFrame(Message, frozen=True):
    """One engine step for one tokenizer. `number` counts frames of this link from 1."""

    worker: str
    incarnation: int
    number: int
    items: tuple[TurnTokens, ...]


# --- tokenizer → frontend -------------------------------------------------------------------------------------------


class TurnEvents(Wire, frozen=True):
    """Events of one turn; `first` is the sequence number of the first of them (from 1)."""

    turn_id: str
    first: int
    events: tuple[TurnEvent, ...]
    attempt: int = 0


class EventFrame(Message, frozen=True):
    """One batch for one frontend. `number` counts frames of this link from 1."""

    tokenizer: str
    incarnation: int
    number: int
    items: tuple[TurnEvents, ...]


# --- KV events ------------------------------------------------------------------------------------------------------


class KvStored(Wire, frozen=True, tag="stored"):
    """Blocks now held, chained: `parent` is the hash before the first of `hashes` (None: start of a prompt)."""

    hashes: bytes
    parent: int | None = None
    tier: Literal["device", "host", "disk"] = "device"


class KvRemoved(Wire, frozen=True, tag="removed"):
    """Blocks no longer held in this tier."""

    hashes: bytes
    tier: Literal["device", "host", "disk"] = "device"


class KvCleared(Wire, frozen=True, tag="cleared"):
    """Nothing is held any more."""


KvEvent = KvStored | KvRemoved | KvCleared


class KvEvents(Message, frozen=True):
    """Events `first`, `first`+1, … of one rank of one worker incarnation (numbers from 1)."""

    worker: str
    incarnation: int
    model: str
    block_size: int
    first: int
    events: tuple[KvEvent, ...]
    rank: int = 0


class KvReplay(Message, frozen=True):
    """Repeat your events from this number on; answered by `KvEvents`, or `SnapshotPage`s if they are gone."""

    rank: int
    first: int


class SnapshotQuery(Message, frozen=True):
    """Page `page` (from 0) of what you hold; later pages name the `as_of` of the first."""

    rank: int
    page: int = 0
    as_of: int = 0


class SnapshotPage(Message, frozen=True):
    """Blocks held as of KV event `as_of`: parents before children. `last`: there are no more pages."""

    worker: str
    incarnation: int
    model: str
    block_size: int
    as_of: int
    page: int
    events: tuple[KvStored, ...]
    last: bool
    rank: int = 0


# --- beats ----------------------------------------------------------------------------------------------------------


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
    """A service is alive. Sent every 250 ms, and at once when something changed."""

    service: str
    instance: str
    incarnation: int
    ready: bool = True
    draining: bool = False
    tails: tuple[LinkTail, ...] = ()
    turns: tuple[LiveTurn, ...] = ()
    sent_at: float = 0.0


class WorkerLoad(Message, frozen=True):
    """A worker is alive, and how busy it is. Its beat.

    Attributes:
        waiting_prefill: prompt tokens not computed yet, of waiting and running turns.
        kv_used, kv_total: blocks; cached but unused blocks do not count as used.
        decode_ms, prefill_tokens_per_s: what the engine measured lately; 0 while unknown.
        kv_last: number of the last KV event, by rank.
        kv_digest: xor of the hashes of all blocks held at `kv_last`, by rank; empty: not told.
        kv_events: exact, mirror or none.
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


# --- model cards ----------------------------------------------------------------------------------------------------


class ModelCard(Message, frozen=True):
    """What a model is. Kept in the `models` bucket under `<token(model)>.<card>`.

    Attributes:
        card: content hash over the artifacts and the fields that change tokens.
        artifacts: file name → object name in the artifacts store.
        parser, reasoning: format names of catenary-parsers.
        context: tokens.
    """

    model: str
    card: str
    context: int
    block_size: int
    artifacts: dict[str, str]
    parser: str = ""
    reasoning: str = "auto"
    created: int = 0
    owned_by: str = "catenary"
    images: bool = False
