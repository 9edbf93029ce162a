"""A turn that has not ended, and who it is for."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from catenary_protocols.bus.messages import LiveTurn, TurnRequest
from catenary_protocols.ids import TurnKey
from catenary_protocols.turn_events import TurnEvent
from catenary_runtime.bus import Ask, Headers

from catenary_frontend.core.order import Received


class Client(Protocol):
    """Who a turn is for."""

    def deliver(self, events: Sequence[TurnEvent], *, ended: bool) -> None:
        """The next events, in order; `ended`: the last of them ends the turn."""

    def tick(self, now: float) -> None:
        """Called a few times a second, with the loop's time."""


@dataclass(slots=True)
class OpenTurn:
    """A turn that has not ended. Times are the loop's.

    Attributes:
        headers: the trace, for every message of the turn.
        owner: the tokenizer that has it, or is asked to take it; "" while there is none.
        taken: the owner has said so, or has sent events.
        behind_at: the event that the owner's last beat showed to be missing, or 0.
        unlisted_since: when the owner's beats stopped listing it, or 0.
        elsewhere: the owner's last beat showed its events to go to another frontend.
        called: a call of it was published.
        incarnation: the owner's, when it was asked.
        refused_by: owners, in their incarnations, that will not be asked again.
        ask: what the owner has not answered yet.
    """

    request: TurnRequest
    client: Client
    headers: Headers
    opened_at: float
    owner: str = ""
    incarnation: int = 0
    taken: bool = False
    asked_at: float = 0.0
    behind_at: int = 0
    unlisted_since: float = 0.0
    elsewhere: bool = False
    called: bool = False
    ended: bool = False
    received: Received = field(default_factory=Received)
    refused_by: set[tuple[str, int]] = field(default_factory=set)
    ask: Ask | None = None

    @property
    def id(self) -> str:
        """Its turn id."""
        return self.request.turn.turn_id

    @property
    def key(self) -> TurnKey:
        """Its key: attempts of its owner start there."""
        return self.request.turn

    def live(self) -> LiveTurn:
        """What a beat says of it."""
        return LiveTurn(turn_id=self.id, at=self.owner, attempt=self.key.attempt, offset=self.received.last)

    def forget_ask(self) -> None:
        """Answers to what was asked are not wanted any more."""
        if self.ask is not None:
            self.ask.close()
            self.ask = None
