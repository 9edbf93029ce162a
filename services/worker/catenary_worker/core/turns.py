"""The turns of this worker, whose they are, and how long their tokens are kept.

Rule: of a turn only its newest attempt is here. It runs while its owner wants it, and what it generated stays until the
owner no longer speaks of it; what was cancelled, confirmed or overtaken does not come back for `TOMBSTONE_S`.

Times are seconds of one monotonic clock that the caller reads.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from catenary_protocols.bus.messages import LiveTurn, TurnTokens
from catenary_protocols.conversation import TokenLogprob
from catenary_protocols.errors import ErrorInfo
from catenary_protocols.ids import TurnKey
from msgspec import structs

from catenary_worker.engines.base import Finish

TOMBSTONE_S = 30.0
KEPT_BYTES = 64 * 1024 * 1024
BEATS_THAT_COUNT = 2
"""Beats of the owner that must agree, since one may have left before the message it does not know of."""
TURN_BYTES = 512
LOGPROB_BYTES = 128
ID_BYTES = 4
PART_TOKENS = 4096
"""Sent again at once: with the likeliest twenty of each, some two megabytes."""


@dataclass(slots=True, eq=False)
class Turn:
    """One attempt.

    Attributes:
        owner, owner_incarnation: the tokenizer that asked for it.
        base: tokens generated before this attempt; offsets count from the original prompt.
        ids: what this attempt generated (u32 LE).
        logprobs: of each of these, for a turn that asked; else empty.
        handoff: what a prefill half ended with.
        cached: prompt tokens the engine reused; None until it started.
        finish: "" while it runs.
        held_since: its owner must say whether it goes on; tokens are kept and not sent. 0: they are sent.
        unlisted: beats of the owner in a row that did not speak of it.
    """

    turn_id: str
    attempt: int
    owner: str
    owner_incarnation: int
    base: int
    admitted_at: float
    ids: bytearray = field(default_factory=bytearray)
    logprobs: list[TokenLogprob | None] = field(default_factory=list)
    cached: int | None = None
    queued_s: float = 0.0
    prefill_s: float = 0.0
    finish: Literal["", Finish] = ""
    stop_token: bool = False
    handoff: bytes = b""
    error: ErrorInfo | None = None
    ended_at: float = 0.0
    held_since: float = 0.0
    unlisted: int = 0

    @property
    def key(self) -> TurnKey:
        """Turn and attempt."""
        return TurnKey(turn_id=self.turn_id, attempt=self.attempt)

    @property
    def offset(self) -> int:
        """Tokens generated since the original prompt."""
        return self.base + len(self.ids) // ID_BYTES

    @property
    def size(self) -> int:
        """About how many bytes it keeps."""
        told = sum(1 + len(one.top) for one in self.logprobs if one is not None)
        return len(self.ids) + len(self.handoff) + TURN_BYTES + LOGPROB_BYTES * told

    def tokens_from(self, offset: int) -> TurnTokens:
        """All there is from an offset on, and the end if it came."""
        start = max(offset, self.base)
        return TurnTokens(
            turn_id=self.turn_id,
            attempt=self.attempt,
            offset=start,
            tokens=bytes(self.ids[(start - self.base) * ID_BYTES :]),
            cached=self.cached,
            queued_s=self.queued_s,
            prefill_s=self.prefill_s,
            finish=self.finish,
            stop_token=self.stop_token,
            error=self.error,
            logprobs=tuple(self.logprobs[start - self.base :]),
            handoff=self.handoff,
        )

    def parts_from(self, offset: int) -> list[TurnTokens]:
        """The same in parts that fit into a message each; the last one tells the end."""
        whole = self.tokens_from(offset)
        count = len(whole.tokens) // ID_BYTES
        parts = [
            structs.replace(
                whole,
                offset=whole.offset + at,
                tokens=whole.tokens[at * ID_BYTES : (at + PART_TOKENS) * ID_BYTES],
                logprobs=whole.logprobs[at : at + PART_TOKENS],
                finish="",
                stop_token=False,
                error=None,
                handoff=b"",
            )
            for at in range(0, count - PART_TOKENS, PART_TOKENS)
        ]
        return [*parts, self.tokens_from(whole.offset + len(parts) * PART_TOKENS)]


class Turns:
    """See the module. `here` maps turn ids to turns, running and ended; read it, change it through methods."""

    def __init__(self, *, death_limit: float, kept_bytes: int = KEPT_BYTES) -> None:
        self.here: dict[str, Turn] = {}
        self.running = 0
        self.kept = 0
        self._death_limit = death_limit
        self._kept_limit = kept_bytes
        self._ended: dict[str, Turn] = {}
        self._tombstones: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._news: list[TurnKey] = []

    # --- coming and going ---------------------------------------------------------------------------------------

    def judge(self, key: TurnKey, now: float) -> Literal["new", "known", "fenced"]:
        """What a request to run this attempt is: `fenced` if it was cancelled or a newer attempt was here."""
        turn = self.here.get(key.turn_id)
        if turn is not None and key.attempt <= turn.attempt:
            return "known" if key.attempt == turn.attempt else "fenced"
        self._forget_tombstones(now)
        attempt, _ = self._tombstones.get(key.turn_id, (-1, 0.0))
        return "fenced" if key.attempt <= attempt else "new"

    def add(self, turn: Turn) -> None:
        """It runs from now on; an older attempt must have been removed."""
        self.here[turn.turn_id] = turn
        self.running += 1

    def end(self, turn: Turn, now: float) -> None:
        """Its `finish` was set: it is kept until its owner knows, or until others need the room."""
        self.running -= 1
        self._news.append(turn.key)
        turn.ended_at = now
        turn.unlisted = 0
        self._ended[turn.turn_id] = turn
        self.kept += turn.size
        while self.kept > self._kept_limit and self._ended:
            self._remove(next(iter(self._ended.values())), now)

    def cancel(self, key: TurnKey, now: float) -> Turn | None:
        """Forget this attempt and any older one, for good; the one that was here."""
        self._bury(key, now)
        turn = self.here.get(key.turn_id)
        if turn is None or turn.attempt > key.attempt:
            return None
        self._remove(turn, now)
        return turn

    def live(self) -> tuple[LiveTurn, ...]:
        """What a beat says: all turns whose tokens are here, ended ones too, so that a lost end can be asked for."""
        return tuple(
            LiveTurn(turn_id=turn.turn_id, attempt=turn.attempt, at=turn.owner, offset=turn.offset)
            for turn in self.here.values()
        )

    def ended(self) -> tuple[TurnKey, ...]:
        """Attempts that ended, however they did, since this was last asked."""
        ended, self._news = tuple(self._news), []
        return ended

    # --- what owners' beats say ---------------------------------------------------------------------------------

    def beat(self, owner: str, listed: Mapping[str, LiveTurn], now: float) -> list[Turn]:
        """A beat of a living owner: forgets what it has got whole; returns what it no longer wants, removed."""
        gone = []
        for turn in self._of(owner):
            said = listed.get(turn.turn_id)
            if said is not None and said.attempt == turn.attempt:
                turn.unlisted = 0
                known = said.offset >= turn.offset and now - turn.ended_at > 2 * self._death_limit
                if turn.finish and known:
                    self._remove(turn, now)
            elif turn.finish or now - turn.admitted_at > self._death_limit:
                turn.unlisted += 1
                if turn.unlisted >= BEATS_THAT_COUNT:
                    self._remove(turn, now)
                    gone.append(turn)
        return gone

    def owner_gone(self, owner: str, now: float) -> list[Turn]:
        """The owner is dead: its turns, removed."""
        gone = self._of(owner)
        for turn in gone:
            self._remove(turn, now)
        return gone

    def owner_renewed(self, owner: str, incarnation: int, listed: Mapping[str, LiveTurn], now: float) -> list[Turn]:
        """The owner has a new incarnation: turns it lists go on; the others, removed."""
        gone = []
        for turn in self._of(owner):
            said = listed.get(turn.turn_id)
            if said is not None and said.attempt == turn.attempt:
                turn.owner_incarnation = incarnation
            elif turn.owner_incarnation < incarnation:
                self._remove(turn, now)
                gone.append(turn)
        return gone

    def strays(self, owners: Collection[str], now: float) -> list[Turn]:
        """Turns whose owner has not been heard of for the death limit since they came, removed."""
        late = now - self._death_limit
        gone = [turn for turn in self.here.values() if turn.owner not in owners and turn.admitted_at < late]
        for turn in gone:
            self._remove(turn, now)
        return gone

    # --- our own new incarnation --------------------------------------------------------------------------------

    def hold(self, now: float) -> None:
        """We were thought dead: every turn waits for its owner's word."""
        for turn in self.here.values():
            turn.held_since = now

    def unanswered(self, now: float) -> list[Turn]:
        """Held turns whose owner has been silent for the death limit, removed."""
        gone = [turn for turn in self.here.values() if turn.held_since and now - turn.held_since > self._death_limit]
        for turn in gone:
            self._remove(turn, now)
        return gone

    # --- inside -------------------------------------------------------------------------------------------------

    def _of(self, owner: str) -> list[Turn]:
        return [turn for turn in self.here.values() if turn.owner == owner]

    def _remove(self, turn: Turn, now: float) -> None:
        del self.here[turn.turn_id]
        if self._ended.pop(turn.turn_id, None) is None:
            self.running -= 1
            self._news.append(turn.key)
        else:
            self.kept -= turn.size
        self._bury(turn.key, now)

    def _bury(self, key: TurnKey, now: float) -> None:
        attempt, _ = self._tombstones.pop(key.turn_id, (-1, 0.0))
        self._tombstones[key.turn_id] = (max(attempt, key.attempt), now + TOMBSTONE_S)
        self._forget_tombstones(now)

    def _forget_tombstones(self, now: float) -> None:
        while self._tombstones:
            turn_id, (_, until) = next(iter(self._tombstones.items()))
            if until > now:
                return
            del self._tombstones[turn_id]


def listed_at(worker: str, turns: Iterable[LiveTurn]) -> dict[str, LiveTurn]:
    """Of a beat's live turns, those at this worker."""
    return {turn.turn_id: turn for turn in turns if turn.at == worker}
