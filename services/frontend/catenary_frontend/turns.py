"""The open turns of this frontend: each is followed by sequence number, and always ends.

What is lost on the way is noticed (a gap, a beat that is ahead, a cut of our own) and asked for with `Attach`. Events
reach clients from the bus callback: no task and no queue stand between.
"""

import asyncio
from collections.abc import Callable, Sequence

from catenary_protocols.bus.codec import Decoder
from catenary_protocols.bus.messages import Attached, Beat, CancelTurn, EventFrame, LiveTurn, TurnRequest
from catenary_protocols.errors import ErrorInfo
from catenary_protocols.ids import TurnKey
from catenary_protocols.turn_events import TERMINAL, CallComplete, Failed, TurnEvent
from catenary_runtime.bus import Bus, Headers
from catenary_runtime.presence import Listener, Peer, Presence
from nats.aio.msg import Msg

from catenary_frontend.owners import Owners
from catenary_frontend.turn import Client, OpenTurn

_frame = Decoder(EventFrame)
_ELSEWHERE = ErrorInfo(code="cancelled", message="the answer goes on elsewhere")
CONFIRM_S = 30.0
"""How long an ended turn is told in beats to an owner that does not drop it."""


class OpenTurns:
    """See the module."""

    def __init__(self, bus: Bus, presence: Presence) -> None:
        self._bus = bus
        self._presence = presence
        self._owners = Owners(bus, presence, self._fail)
        self._open: dict[str, OpenTurn] = {}
        self._ended: dict[str, tuple[LiveTurn, float]] = {}
        self._cut_since = 0.0
        self._now = asyncio.get_running_loop().time
        self.on_idle: Callable[[], None] = lambda: None

    async def start(self) -> None:
        """Listen for events and for owners."""
        self._presence.listen(Listener(on_beat=self._beat, on_down=self._down, on_renewed=self._renewed))
        self._presence.on_renewed = lambda _: self._attach_all("renewed")
        await self._bus.subscribe(self._bus.subjects.to("events", frontend=self._presence.instance), self._on_frame)

    def __len__(self) -> int:
        return len(self._open)

    def live(self) -> tuple[LiveTurn, ...]:
        """What a beat says: open turns, and ended ones whose owners still hold their logs."""
        return (*(turn.live() for turn in self._open.values()), *(live for live, _ in self._ended.values()))

    def open(self, request: TurnRequest, client: Client, headers: Headers) -> OpenTurn:
        """Submit a turn; all that follows goes to `client`, a refusal as `Failed`."""
        turn = OpenTurn(request, client, headers, self._now())
        self._open[turn.id] = turn
        self._owners.submit(turn)
        return turn

    async def find(self, turn_id: str) -> Attached | None:
        """What a turn is whose log some owner has."""
        return await self._owners.find(turn_id)

    def join(self, request: TurnRequest, owner: str, client: Client, headers: Headers) -> OpenTurn:
        """Follow a turn from its first event on that its owner runs or has run; whoever followed it here is let go."""
        before = self._open.get(request.turn.turn_id)
        if before is not None:
            self._let_go(before)
        peer = self._presence.get("tokenizer", owner)
        turn = OpenTurn(request, client, headers, self._now(), owner=owner, taken=True)
        turn.incarnation = peer.incarnation if peer else 0
        self._open[turn.id] = turn
        self._ended.pop(turn.id, None)
        self._owners.attach(turn, "joined")
        return turn

    def cancel(self, turn: OpenTurn, reason: str) -> None:
        """The client wants no more of it."""
        if not turn.ended:
            self._close(turn)
            if turn.owner:
                self._owners.send(turn.owner, CancelTurn(turn=turn.key, reason=reason))
            self._left()

    def fail_all(self, error: ErrorInfo) -> None:
        """End every open turn, since this frontend stops."""
        for turn in list(self._open.values()):
            self._fail(turn, error)

    # --- events -------------------------------------------------------------------------------------------------

    def _on_frame(self, msg: Msg) -> None:
        frame = _frame(msg.data)
        fresh: dict[str, Sequence[TurnEvent]] = {}
        for item in frame.items:
            turn = self._open.get(item.turn_id)
            if turn is not None and turn.owner == frame.tokenizer and item.attempt >= turn.key.attempt:
                events = turn.received.take(item.first, item.events)
                if events is None:
                    self._owners.attach(turn, "gap")
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
        if isinstance(events[-1], TERMINAL):
            self._close(turn)
            turn.client.deliver(events, ended=True)
            self._left()
        else:
            turn.client.deliver(events, ended=False)

    def _fail(self, turn: OpenTurn, error: ErrorInfo) -> None:
        """End a turn by ourselves; its owner, should it have it, may drop it."""
        if turn.ended:
            return
        self._close(turn)
        if turn.owner:
            self._owners.send(turn.owner, CancelTurn(turn=turn.key, reason=error.code))
        turn.client.deliver((Failed(error=error),), ended=True)
        self._left()

    def _close(self, turn: OpenTurn) -> None:
        turn.ended = True
        turn.forget_ask()
        del self._open[turn.id]
        if turn.received.last:
            self._ended[turn.id] = (turn.live(), self._now() + CONFIRM_S)

    def _let_go(self, turn: OpenTurn) -> None:
        """Its events go to another client now: this one hears no more of it, and its owner nothing of that."""
        turn.ended = True
        turn.forget_ask()
        del self._open[turn.id]
        turn.client.deliver((Failed(error=_ELSEWHERE),), ended=True)
        self._left()

    def _left(self) -> None:
        if not self._open:
            self.on_idle()

    # --- owners -------------------------------------------------------------------------------------------------

    def _of(self, peer: Peer) -> list[OpenTurn]:
        if peer.service != "tokenizer":
            return []
        return [turn for turn in self._open.values() if turn.owner == peer.instance]

    def _down(self, peer: Peer) -> None:
        for turn in self._of(peer):
            self._owners.lost(turn)

    def _renewed(self, old: Peer, new: Peer) -> None:
        """An owner that was cut off or frozen goes on with the turns it still lists; the others died with it."""
        listed = {live.turn_id for live in new.beat.turns}
        for turn in self._of(old):
            if turn.id in listed:
                turn.incarnation = new.incarnation
                self._owners.attach(turn, "owner renewed")
            else:
                self._owners.lost(turn)

    def _beat(self, peer: Peer) -> None:
        if not isinstance(peer.beat, Beat) or peer.service != "tokenizer":
            return
        listed = {live.turn_id: live for live in peer.beat.turns if live.to == self._presence.instance}
        for live in listed.values():
            self._compare(peer, live)
        for live in peer.beat.turns:
            self._look_elsewhere(peer, live)
        for turn_id, (live, _) in list(self._ended.items()):
            if live.at == peer.instance and turn_id not in listed:
                del self._ended[turn_id]
        for turn in self._of(peer):
            self._look_for(turn, listed=turn.id in listed)

    def _compare(self, peer: Peer, live: LiveTurn) -> None:
        """A log that is ahead in two beats running has lost its way to us: a beat may overtake a frame."""
        turn = self._open.get(live.turn_id)
        if turn is None:
            if live.turn_id not in self._ended:
                key = TurnKey(turn_id=live.turn_id, attempt=live.attempt)
                self._owners.send(peer.instance, CancelTurn(turn=key, reason="not known here"))
        elif turn.owner == peer.instance:
            wanted = turn.received.last + 1
            behind = live.events >= wanted
            if behind and turn.behind_at == wanted:
                self._owners.attach(turn, "behind")
            turn.behind_at = wanted if behind else 0

    def _look_elsewhere(self, peer: Peer, live: LiveTurn) -> None:
        """A turn that two beats running show at another frontend was joined there.

        One that is being joined here is still shown where it was.
        """
        turn = self._open.get(live.turn_id)
        if turn is None or turn.owner != peer.instance or not turn.taken or turn.ask is not None:
            return
        if live.to == self._presence.instance:
            turn.elsewhere = False
        elif turn.elsewhere:
            self._let_go(turn)
        else:
            turn.elsewhere = True

    def _look_for(self, turn: OpenTurn, *, listed: bool) -> None:
        """A turn that its live owner does not know any more is lost as if the owner had died."""
        if listed or not turn.taken:
            turn.unlisted_since = 0.0
        elif not turn.unlisted_since:
            turn.unlisted_since = self._now()
        elif self._now() - turn.unlisted_since > 2 * self._presence.death_limit:
            self._owners.lost(turn)

    def _attach_all(self, why: str) -> None:
        for turn in list(self._open.values()):
            if turn.taken:
                turn.forget_ask()
                self._owners.attach(turn, why)

    # --- the clock ----------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """One round: notice our own cuts, submit what waits, forget what is old, let clients look at the time."""
        now = self._now()
        self._look_at_bus(now)
        self._ended = {key: entry for key, entry in self._ended.items() if entry[1] > now}
        for turn in list(self._open.values()):
            if self._cut_since:
                self._owners.wait_for_bus(turn, now, now - self._cut_since)
            elif not turn.owner:
                self._owners.submit(turn)
            elif not turn.taken:
                self._owners.remind(turn, now)
            turn.client.tick(now)

    def _look_at_bus(self, now: float) -> None:
        if self._presence.cut_off:
            self._owners.cut_at = now
            self._cut_since = self._cut_since or now
        elif self._cut_since:
            self._cut_since = 0.0
            self._attach_all("back")
