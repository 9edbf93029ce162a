"""Between frontend and tokenizer: a turn asked for, its events, its counts."""

from typing import Literal

from catenary_protocols.bus.messages.base import Message
from catenary_protocols.conversation import Conversation, Hints, Sampling, Within
from catenary_protocols.ids import TurnKey
from catenary_protocols.turn_events import TurnEvent
from catenary_protocols.wire import Wire


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
        explain: `Accepted` is to say where the prompt left the session's last one, `Started` why it runs where it does.
        session_final: the session's last turn: nobody will come back to its blocks.
        subagent: the session belongs to a sub-agent, and is over with its first answer that calls no tool.
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
    within: Within = Within()
    explain: bool = False
    session_final: bool = False
    subagent: bool = False


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
    """How long would this prompt be? Answered by `TokenCount` or `Refused`.

    Attributes:
        ids: and of which tokens is it made?
        session, tenant: as in `TurnRequest`: what is remembered of a session goes into its prompts.
    """

    model: str
    conversation: Conversation
    ids: bool = False
    session: str = ""
    tenant: str = ""


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
