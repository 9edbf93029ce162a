"""The other side of every turn: what frontends confirm, lose, and do when they die or come back."""

import asyncio

import structlog
from catenary_protocols.bus.messages import Beat, LiveTurn
from catenary_protocols.errors import ErrorInfo
from catenary_runtime.presence import Peer

from catenary_tokenizer_service.turn import Phase, Turn
from catenary_tokenizer_service.turns import Turns

log = structlog.get_logger()


def _lost(turn: Turn) -> ErrorInfo:
    """What a frontend that was only cut off tells the client when it is back."""
    error = "the service that answers you was away from the mesh for too long"
    return ErrorInfo(code="disconnected", message=error, retry=not turn.published)


class Frontends:
    """Watches the frontends of our turns."""

    def __init__(self, turns: Turns, resumable_s: float) -> None:
        self._turns = turns
        self._resumable_s = resumable_s

    def beat(self, peer: Peer) -> None:
        """It says how far it is with each of its turns; an ended turn it no longer names has been received."""
        if not isinstance(peer.beat, Beat):
            return
        offsets = {live.turn_id: live.offset for live in peer.beat.turns}
        for turn in self._of(peer.instance):
            if turn.turn_id in offsets:
                turn.confirmed = max(turn.confirmed, offsets[turn.turn_id])
            elif turn.phase is Phase.ENDED and peer.beat.sent_at > 0:
                self._not_named(turn, peer)

    def _not_named(self, turn: Turn, peer: Peer) -> None:
        """The beat may be older than the end of the turn: only one made well after it counts."""
        now = asyncio.get_running_loop().time()
        if now - turn.ended_at > 2 * self._turns.beat_s:
            turn.confirmed = turn.log.last
        log.debug("turn.not_named", turn_id=turn.turn_id, frontend=peer.instance)

    def down(self, peer: Peer) -> None:
        """Its turns are wanted by nobody; resumable ones may yet be attached to."""
        self._turns.outbox.links.forget(peer.instance)
        for turn in self._of(peer.instance):
            if turn.phase is Phase.ENDED:
                continue
            if turn.request.resumable:
                turn.orphaned_at = asyncio.get_running_loop().time()
            else:
                self._turns.cancel(turn, "frontend died", _lost(turn))

    def renewed(self, _old: Peer, new: Peer) -> None:
        """It was cut off and goes on with the turns it names; the others died with it."""
        kept = {live.turn_id for live in new.beat.turns}
        for turn in self._of(new.instance):
            if turn.turn_id not in kept and turn.phase is not Phase.ENDED and not turn.request.resumable:
                self._turns.cancel(turn, "frontend restarted", _lost(turn))

    def tick(self, now: float) -> None:
        """Cancel resumable turns that nobody came back for."""
        for turn in list(self._turns.live.values()):
            if turn.orphaned_at and turn.phase is not Phase.ENDED and now - turn.orphaned_at > self._resumable_s:
                self._turns.cancel(turn, "nobody came back")

    def live_turns(self) -> tuple[LiveTurn, ...]:
        """What our beat says of our turns."""
        return tuple(
            LiveTurn(
                turn_id=turn.turn_id,
                attempt=turn.generated.attempt,
                at=turn.worker if turn.phase is Phase.RUNNING else "",
                offset=turn.generated.count,
                events=turn.log.last,
                to=turn.frontend,
            )
            for turn in self._turns.live.values()
        )

    def _of(self, frontend: str) -> list[Turn]:
        return [turn for turn in self._turns.live.values() if turn.frontend == frontend]
