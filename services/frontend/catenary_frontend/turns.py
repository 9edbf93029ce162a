"""The open turns of this frontend: each is given to an owner, followed by sequence number, and always ends.

An owner (a tokenizer service) is picked by rendezvous hash of the session. What is lost is asked for with `Attach`; an
owner that dies loses its turns to the next one if `core.owners` says so. Everything here happens in callbacks.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
import structlog
from catenary_protocols.bus.codec import Decoder, encode
from catenary_protocols.bus.messages import (
    Attach,
    Attached,
    Beat,
    CancelTurn,
    EventFrame,
    LiveTurn,
    Message,
    Refused,
    TurnRequest,
    TurnTaken,
)
from catenary_protocols.errors import ErrorInfo, TransportError
from catenary_protocols.ids import RESUBMIT_STEP, TurnKey
from catenary_protocols.turn_events import TERMINAL, CallComplete, Failed, TurnEvent
from catenary_runtime.bus import Ask, Bus, Headers
from catenary_runtime.presence import Listener, Peer, Presence
from catenary_runtime.rendezvous import ranked
from nats.aio.msg import Msg

from catenary_frontend.core.order import Received
from catenary_frontend.core.owners import may_resubmit, nobody, owner_lost
from catenary_frontend.metrics import ATTACHED, RESUBMITTED

log = structlog.get_logger()
_frame = Decoder(EventFrame)
_answer: Decoder[TurnTaken | Refused | Attached] = Decoder(TurnTaken | Refused | Attached)  # type: ignore[arg-type]  # a union

PATIENCE_S = 5.0
"""How long a turn waits for an owner while there is none, or for its owner's first word."""
ASK_AGAIN_S = 1.0
"""A request or `Attach` without an answer is sent again after this long."""
CONFIRM_S = 30.0
"""How long an ended turn is told in beats to an owner that does not drop it."""
ASK_ANOTHER = frozenset({"draining", "model_not_ready"})
"""Refusals that speak of one owner only."""


class Client(Protocol):
    """Who a turn is for."""

    def deliver(self, events: Sequence[TurnEvent], *, ended: bool) -> None:
        """The next events, in order; `ended`: the last of them ends the turn."""

    def tick(self, now: float) -> None:
        """Called a few times a second, with the loop's time."""


@dataclass(slots=True)
class OpenTurn:
    """A turn that has not ended. Times are the loop's."""

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
    called: bool = False
    received: Received = field(default_factory=Received)
    refused_by: set[str] = field(default_factory=set)
    ask: Ask | None = None

    @property
    def key(self) -> TurnKey:
        """Its key: attempts of its owner start there."""
        return self.request.turn

    def live(self) -> LiveTurn:
        """What a beat says of it."""
        return LiveTurn(turn_id=self.key.turn_id, at=self.owner, attempt=self.key.attempt, offset=self.received.last)


class OpenTurns:
    """See the module."""

    def __init__(self, bus: Bus, presence: Presence) -> None:
        self._bus = bus
        self._presence = presence
        self._open: dict[str, OpenTurn] = {}
        self._ended: dict[str, tuple[LiveTurn, float]] = {}
        self._cut_at = -1.0
        self._was_cut = False
        self._loop = asyncio.get_running_loop()
        self.on_idle: Callable[[], None] = lambda: None

    async def start(self) -> None:
        """Listen for events and for owners."""
        self._presence.listen(
            Listener(on_beat=self._owner_beat, on_down=self._owner_down, on_renewed=self._owner_renewed)
        )
        self._presence.on_renewed = lambda _: self._attach_all("renewed")
        await self._bus.subscribe(self._bus.subjects.to("events", frontend=self._presence.instance), self._on_frame)

    def __len__(self) -> int:
        return len(self._open)

    def live(self) -> tuple[LiveTurn, ...]:
        """What a beat says: open turns, and ended ones whose owners still hold their logs."""
        return (*(turn.live() for turn in self._open.values()), *(live for live, _ in self._ended.values()))

    def open(self, request: TurnRequest, client: Client, headers: Headers) -> OpenTurn:
        """Submit a turn; all that follows goes to `client`, a refusal as `Failed`."""
        turn = OpenTurn(request, client, headers, self._loop.time())
        self._open[request.turn.turn_id] = turn
        self._submit(turn)
        return turn

    def cancel(self, turn: OpenTurn, reason: str) -> None:
        """The client wants no more of it."""
        if self._open.pop(turn.key.turn_id, None) is not None:
            self._forget_ask(turn)
            if turn.owner:
                self._send(turn.owner, CancelTurn(turn=turn.key, reason=reason))
            self._left()

    def fail_all(self, error: ErrorInfo) -> None:
        """End every open turn, since this frontend stops."""
        for turn in list(self._open.values()):
            if turn.owner:
                self._send(turn.owner, CancelTurn(turn=turn.key, reason=error.code))
            self._fail(turn, error)

    # --- owners -------------------------------------------------------------------------------------------------

    def _submit(self, turn: OpenTurn) -> None:
        peers = [peer for peer in self._presence.live("tokenizer") if peer.takes_work]
        names = ranked(turn.request.session, (p.instance for p in peers if p.instance not in turn.refused_by))
        turn.owner, turn.taken = "", False
        if not names:
            if not self._may_wait(turn):
                self._fail(turn, nobody(retry_after=1.0))
            return
        turn.owner = names[0]
        turn.incarnation = next(peer.incarnation for peer in peers if peer.instance == turn.owner)
        self._ask_owner(turn, turn.request, lambda: self._nobody_there(turn))

    def _may_wait(self, turn: OpenTurn) -> bool:
        """Whether an owner may still turn up: nobody was seen yet, or we are just back from a cut."""
        waited = self._loop.time() - turn.opened_at
        return waited < PATIENCE_S and (self._presence.cut_off or self._bus.fresh or bool(turn.refused_by))

    def _ask_owner(self, turn: OpenTurn, message: TurnRequest | Attach, on_nobody: Callable[[], None]) -> None:
        self._forget_ask(turn)
        turn.asked_at = self._loop.time()
        subject = self._bus.subjects.to("turn", tokenizer=turn.owner)
        try:
            turn.ask = self._bus.ask(
                subject, encode(message), lambda msg: self._on_answer(turn, msg), on_nobody, headers=turn.headers
            )
        except TransportError as error:
            self._fail(turn, ErrorInfo(code="request_too_large", message=error.message))

    def _nobody_there(self, turn: OpenTurn) -> None:
        if turn.key.turn_id in self._open and not turn.received.last:
            if not self._bus.fresh:
                turn.refused_by.add(turn.owner)
            self._submit(turn)

    def _on_answer(self, turn: OpenTurn, msg: Msg) -> None:
        answer = _answer(msg.data)
        if turn.key.turn_id not in self._open:
            return
        if isinstance(answer, TurnTaken):
            turn.taken = True
            turn.incarnation = answer.incarnation
        self._forget_ask(turn)
        if isinstance(answer, Refused):
            self._refused(turn, answer.error)

    def _refused(self, turn: OpenTurn, error: ErrorInfo) -> None:
        if error.code in ASK_ANOTHER and not turn.received.last:
            turn.refused_by.add(turn.owner)
            self._submit(turn)
        else:
            self._fail(turn, error)

    def _owner_renewed(self, old: Peer, new: Peer) -> None:
        """An owner that was cut off or frozen goes on with the turns it still lists; the others died with it."""
        listed = {live.turn_id for live in new.beat.turns}
        for turn in self._of(old):
            if turn.key.turn_id in listed:
                turn.incarnation = new.incarnation
                self._attach(turn, "owner renewed")
            else:
                self._owner_is_lost(turn)

    def _owner_down(self, peer: Peer) -> None:
        for turn in self._of(peer):
            self._owner_is_lost(turn)

    def _of(self, peer: Peer) -> list[OpenTurn]:
        if peer.service != "tokenizer":
            return []
        return [turn for turn in self._open.values() if turn.owner == peer.instance]

    def _owner_is_lost(self, turn: OpenTurn) -> None:
        if not may_resubmit(last_event=turn.received.last, submitted_at=turn.opened_at, cut_at=self._cut_at):
            self._fail(turn, owner_lost(calls_published=turn.called))
            return
        RESUBMITTED.inc()
        log.warning("turn.resubmitted", turn=turn.key.turn_id, lost=turn.owner)
        turn.refused_by.add(turn.owner)
        key = TurnKey(turn_id=turn.key.turn_id, attempt=turn.key.attempt + RESUBMIT_STEP)
        turn.request = msgspec.structs.replace(turn.request, turn=key)
        self._submit(turn)

    def _owner_beat(self, peer: Peer) -> None:
        if not isinstance(peer.beat, Beat) or peer.service != "tokenizer":
            return
        listed = set()
        for live in peer.beat.turns:
            if live.to == self._presence.instance:
                listed.add(live.turn_id)
                self._compare(peer, live)
        for turn_id, (live, _) in list(self._ended.items()):
            if live.at == peer.instance and turn_id not in listed:
                del self._ended[turn_id]
        self._look_for_unlisted(peer, listed)

    def _compare(self, peer: Peer, live: LiveTurn) -> None:
        """A log that is ahead in two beats running has lost its way to us: a beat may overtake a frame."""
        turn = self._open.get(live.turn_id)
        if turn is None:
            if live.turn_id not in self._ended:
                self._send(peer.instance, CancelTurn(turn=TurnKey(turn_id=live.turn_id, attempt=live.attempt)))
        elif turn.owner == peer.instance:
            behind = live.events > turn.received.last
            if behind and turn.behind_at == turn.received.last + 1:
                self._attach(turn, "behind")
            turn.behind_at = turn.received.last + 1 if behind else 0

    def _look_for_unlisted(self, peer: Peer, listed: set[str]) -> None:
        """A turn that its live owner does not know any more is lost as if the owner had died."""
        now = self._loop.time()
        for turn in list(self._open.values()):
            if turn.owner != peer.instance or not turn.taken:
                continue
            if turn.key.turn_id in listed:
                turn.unlisted_since = 0.0
            elif not turn.unlisted_since:
                turn.unlisted_since = now
            elif now - turn.unlisted_since > 2 * self._presence.death_limit:
                self._owner_is_lost(turn)

    # --- events -------------------------------------------------------------------------------------------------

    def _on_frame(self, msg: Msg) -> None:
        frame = _frame(msg.data)
        fresh: dict[str, Sequence[TurnEvent]] = {}
        for item in frame.items:
            turn = self._open.get(item.turn_id)
            if turn is not None and turn.owner == frame.tokenizer and item.attempt >= turn.key.attempt:
                events = turn.received.take(item.first, item.events)
                if events is None:
                    self._attach(turn, "gap")
                elif events:
                    earlier = fresh.get(item.turn_id)
                    fresh[item.turn_id] = (*earlier, *events) if earlier else events
        for turn_id, events in fresh.items():
            self._deliver(self._open[turn_id], events)

    def _deliver(self, turn: OpenTurn, events: Sequence[TurnEvent]) -> None:
        turn.taken = True
        turn.unlisted_since = 0.0
        if not turn.called:
            turn.called = any(type(event) is CallComplete and event.run_by != "" for event in events)
        ended = isinstance(events[-1], TERMINAL)
        if ended:
            self._close(turn)
        turn.client.deliver(events, ended=ended)
        if ended:
            self._left()

    def _close(self, turn: OpenTurn) -> None:
        del self._open[turn.key.turn_id]
        self._forget_ask(turn)
        if turn.received.last and turn.owner:
            self._ended[turn.key.turn_id] = (turn.live(), self._loop.time() + CONFIRM_S)

    def _fail(self, turn: OpenTurn, error: ErrorInfo) -> None:
        if turn.key.turn_id in self._open:
            self._close(turn)
            turn.client.deliver((Failed(error=error),), ended=True)
            self._left()

    def _attach(self, turn: OpenTurn, why: str) -> None:
        if turn.ask is not None and self._loop.time() - turn.asked_at < ASK_AGAIN_S:
            return
        ATTACHED.labels(why=why).inc()
        message = Attach(
            turn_id=turn.key.turn_id,
            frontend=self._presence.instance,
            frontend_incarnation=self._presence.incarnation,
            after=turn.received.last,
        )
        self._ask_owner(turn, message, lambda: None)

    def _attach_all(self, why: str) -> None:
        for turn in list(self._open.values()):
            if turn.taken:
                self._forget_ask(turn)
                self._attach(turn, why)

    # --- the clock ----------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """One round: notice our own cuts, submit what waits, forget what is old, let clients look at the time."""
        now = self._loop.time()
        cut = self._presence.cut_off
        if cut:
            self._cut_at = now
        elif self._was_cut:
            self._attach_all("back")
        self._was_cut = cut
        self._ended = {key: entry for key, entry in self._ended.items() if entry[1] > now}
        for turn in list(self._open.values()):
            if not turn.owner:
                self._submit(turn)
            elif not turn.taken and not cut:
                self._remind(turn, now)
            turn.client.tick(now)

    def _remind(self, turn: OpenTurn, now: float) -> None:
        if now - max(turn.opened_at, self._cut_at) > PATIENCE_S:
            self._send(turn.owner, CancelTurn(turn=turn.key, reason="no answer"))
            self._fail(turn, nobody(retry_after=1.0))
        elif now - turn.asked_at > ASK_AGAIN_S:
            self._ask_owner(turn, turn.request, lambda: self._nobody_there(turn))

    def _send(self, owner: str, message: Message) -> None:
        self._bus.publish(self._bus.subjects.to("turn", tokenizer=owner), encode(message))

    def _forget_ask(self, turn: OpenTurn) -> None:
        if turn.ask is not None:
            turn.ask.close()
            turn.ask = None

    def _left(self) -> None:
        if not self._open:
            self.on_idle()
