"""The router's desk: turns that want a place come in, answers go out.

The rule: every `PlaceTurn` is answered once, by `Placement` or `Refused`, and by `PlaceQueued` each second until then;
the same turn asked again gets the same answer. A turn goes only where there is room (a free slot, prefill that will be
through soon, KV space); without any it waits in the queue, and when even that is full or has no end, it is refused with
a time after which trying again makes sense. Of more turns than may wait, the one that would be served last is refused,
whether it has just come or not: a flood fills no queue against others, and low priority does not keep out high.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from catenary_protocols.bus.messages import Overlap, Placement, PlaceQueued, PlaceTurn, Refused
from catenary_protocols.conversation import Within
from catenary_protocols.errors import ErrorInfo
from catenary_protocols.ids import TurnKey

from catenary_router.core.cost import Seen, Weights, ms_per_token
from catenary_router.core.fleet import Fleet, Placed
from catenary_router.core.history import Decision, History, told
from catenary_router.core.homes import Homes
from catenary_router.core.placement import Policy, choose
from catenary_router.core.popular import Popular
from catenary_router.core.queue import FairQueue
from catenary_router.core.room import Entry, Limits, Pool, Room, new_blocks, output_of
from catenary_router.core.sharing import Sharing

ANYWHERE = Within()
Answer = Placement | PlaceQueued | Refused
REPEAT_S = 0.9
"""A little under a second, since ticks are not exact and silence means death to the asker."""
FIRST_BEATS_S = 1.5
"""A router so young may not have heard every worker yet."""
RETURN_S = 5.0
"""So long turns wait for the last worker of a model to come back."""
REMEMBER_S = 30.0
OVERLAP_STALE_S = 1.0
RATE_WINDOW_S = 10.0
RETRY_LEAST_S, RETRY_MOST_S = 1.0, 120.0


@dataclass(frozen=True, slots=True)
class Decided:
    """An answer to send.

    Attributes:
        decision: for a placement made just now, why there.
        waited_s: since the turn came to the desk.
        hit: share of the prompt's tokens expected in the cache there.
    """

    entry: Entry
    answer: Answer
    decision: Decision | None = None
    waited_s: float = 0.0
    hit: float = 0.0


@dataclass(slots=True)
class Outcome:
    """What to do now: answers to send, and entries whose overlap is to be asked (then call `Desk.overlap`)."""

    answers: list[Decided] = field(default_factory=list)
    ask: list[Entry] = field(default_factory=list)


class Desk:
    """See the module. `router` and `incarnation` sign the answers."""

    def __init__(self, *, router: str, policy: Policy, weights: Weights, limits: Limits, now: float) -> None:
        self.router = router
        self.incarnation = 0
        self.fleet = Fleet()
        self.queue = FairQueue(limits.queue)
        self.history = History()
        self._policy = policy
        self._weights = weights
        self._limits = limits
        self._began = now
        self._sharing = Sharing()
        self._homes = Homes()
        self._popular = Popular()
        self._room = Room(self.fleet, self._sharing, self._homes, self._popular, weights=weights, limits=limits)
        self._entries: dict[str, Entry] = {}
        self._waiting: Counter[Pool] = Counter()
        self._decided: OrderedDict[TurnKey, tuple[Placement, float]] = OrderedDict()
        self._placed_at: deque[float] = deque()
        self.settle = self._sharing.settle
        """Work of a decision that is done once its answer is sent."""

    # --- what comes in ------------------------------------------------------------------------------------------

    def arrive(self, place: PlaceTurn, reply: object, now: float) -> Outcome:
        """A turn wants a place, perhaps not for the first time."""
        turn_id = place.turn.turn_id
        before = self._entries.get(turn_id)
        if before is not None and before.place.turn.attempt > place.turn.attempt:
            return Outcome()
        if before is not None and before.place.turn.attempt == place.turn.attempt:
            before.reply = reply
            return Outcome([self._tell(before, now)] if turn_id in self.queue else [])
        entry = Entry(place, reply, now)
        if (again := self._decided_before(place.turn)) is not None:
            return Outcome([Decided(entry, again)])
        self.drop(turn_id)
        self.fleet.release(turn_id)
        if (refused := self._hopeless(place, now)) is not None:
            return Outcome([Decided(entry, refused)])
        self._entries[turn_id] = entry
        if place.hashes:
            entry.asking = True
            return Outcome(ask=[entry])
        return self.overlap(place.turn, None, now)

    def overlap(self, turn: TurnKey, overlap: Overlap | None, now: float) -> Outcome:
        """What the kv-indexer said of an entry; None: nothing in time, and we go by what its session left at home."""
        entry = self._entries.get(turn.turn_id)
        if entry is None or entry.place.turn != turn:
            return Outcome()
        entry.asking, entry.overlap_at = False, now
        if overlap is not None:
            entry.overlap = {one.worker: one.blocks for one in overlap.workers}
            entry.known = frozenset(overlap.known)
        elif not entry.overlap:
            kept = self._homes.kept(entry.place.session)
            entry.overlap = {worker: tokens // entry.place.block_size for worker, tokens in kept.items()}
        if turn.turn_id in self.queue:
            return self.pump(now)
        if not len(self.queue):
            roomy = self._room.look(entry, now)
            if roomy:
                return Outcome([self._place(entry, roomy, now)])
        return self._enqueue(entry, now)

    def cancel(self, turn: TurnKey) -> None:
        """The placement is not wanted any more, whether it was made or not."""
        entry = self._entries.get(turn.turn_id)
        if entry is not None and entry.place.turn == turn:
            self.drop(turn.turn_id)
        if self._decided.pop(turn, None) is not None:
            self.fleet.release(turn.turn_id)

    def owner_gone(self, tokenizer: str, incarnation: int) -> None:
        """This incarnation of a tokenizer is dead: nobody wants its turns' places."""
        for turn_id, entry in list(self._entries.items()):
            if entry.place.tokenizer == tokenizer and entry.place.tokenizer_incarnation <= incarnation:
                self.drop(turn_id)

    def worker_gone(self, worker: str, incarnation: int) -> None:
        """This incarnation of a worker is dead."""
        self.fleet.gone(worker, incarnation)
        self._sharing.gone(worker)
        self._homes.gone(worker)

    def renew(self, incarnation: int) -> None:
        """We were thought dead: our turns were taken elsewhere."""
        self.incarnation = incarnation
        for turn_id in list(self._entries):
            self.drop(turn_id)
        self._decided.clear()

    def drop(self, turn_id: str) -> None:
        """Forget a turn that waits."""
        entry = self._entries.pop(turn_id, None)
        if entry is not None and self.queue.remove(turn_id):
            self._left(entry.pool)

    # --- what goes out ------------------------------------------------------------------------------------------

    def pump(self, now: float) -> Outcome:
        """Place who waits, as far as there is room; an overlap that is old is asked again first."""
        outcome = Outcome()
        full: set[Pool] = set()
        for turn_id in self.queue:
            if len(full) == len(self._waiting):
                break
            entry = self._entries[turn_id]
            if entry.pool in full or entry.asking:
                continue
            roomy = self._room.look(entry, now)
            if not roomy:
                if not entry.place.not_on:
                    full.add(entry.pool)
            elif entry.place.hashes and now - entry.overlap_at > OVERLAP_STALE_S:
                entry.asking = True
                outcome.ask.append(entry)
            else:
                outcome.answers.append(self._place(entry, roomy, now))
        return outcome

    def tick(self, now: float) -> list[Decided]:
        """Refuse whose last moment has passed, tell the others where they stand, forget what is old."""
        answers: list[Decided] = []
        for turn_id in self.queue.expired(now):
            entry = self._entries[turn_id]
            late = bool(entry.place.deadline) and entry.place.deadline <= now
            code = "deadline_exceeded" if late else "overloaded"
            answers.append(self._refuse(entry, code, "no worker had room in time", now))
        gone = {pool for pool in self._waiting if self._abandoned(pool[0], pool[1], now)}
        for turn_id in self.queue:
            entry = self._entries[turn_id]
            if entry.pool in gone and now - entry.since > FIRST_BEATS_S:
                answers.append(self._refuse(entry, "no_worker", "the model's last worker is gone", now))
            elif self._nowhere(entry.place) and now - entry.since > FIRST_BEATS_S:
                answers.append(self._refuse(entry, "no_worker", "the last worker it may run on is gone", now))
            elif now - entry.told_at >= REPEAT_S:
                answers.append(self._tell(entry, now))
        while self._decided and now - next(iter(self._decided.values()))[1] > REMEMBER_S:
            self._decided.popitem(last=False)
        return answers

    # --- inside -------------------------------------------------------------------------------------------------

    def _decided_before(self, turn: TurnKey) -> Placement | None:
        """The placement this very attempt got, while its worker is still the same."""
        placement, _ = self._decided.get(turn, (None, 0.0))
        if placement is None:
            return None
        worker = self.fleet.workers.get(placement.worker)
        return placement if worker is not None and worker.incarnation == placement.worker_incarnation else None

    def _hopeless(self, place: PlaceTurn, now: float) -> Refused | None:
        """Why this turn can never be placed, as things stand."""
        serving = self.fleet.serving(place)
        if serving:
            caches = [worker.beat.kv_total for worker in serving]
            most = max(caches) * place.block_size
            if place.prompt_tokens >= most and all(caches):
                message = f"the prompt has {place.prompt_tokens} tokens; the KV cache of no worker holds over {most}"
                return _refused(place, "context_length_exceeded", message)
            return None
        if now - self._began < FIRST_BEATS_S:
            return None
        if not self._abandoned(place.model, place.card, now):
            message = f"no worker of {place.model} that the turn may run on is there"
            return _refused(place, "no_worker", message, retry_after=2.0) if self._nowhere(place) else None
        if self.fleet.has_model(place.model):
            return _refused(place, "model_not_ready", f"no worker of {place.model} is ready", retry_after=2.0)
        return _refused(place, "no_worker", f"no worker serves {place.model}", retry_after=5.0)

    def _nowhere(self, place: PlaceTurn) -> bool:
        """It may run on some workers only, and none of these takes turns."""
        return place.within != ANYWHERE and not self.fleet.serving(place)

    def _abandoned(self, model: str, card: str, now: float) -> bool:
        """No worker with this model and card takes turns, and none has of late."""
        return now - self.fleet.seen_at(model, card) > RETURN_S

    def _place(self, entry: Entry, candidates: Sequence[Seen], now: float) -> Decided:
        place = entry.place
        last = place.last_worker or self._homes.of(place.session)
        choice = choose(place, candidates, self._policy, last)
        decision = self.history.note(place, choice, self._policy.name, self._weights, now=now, since=entry.since)
        self._count(entry, choice.seen, now)
        prefills = "prefill" in choice.seen.worker.beat.halves
        decoding = self.fleet.decoding(place) if prefills else None
        placement = Placement(
            turn=place.turn,
            router=self.router,
            router_incarnation=self.incarnation,
            worker=choice.seen.worker.name,
            worker_incarnation=choice.seen.worker.incarnation,
            decode=decoding.name if decoding else "",
            decode_incarnation=decoding.incarnation if decoding else 0,
            overlap=choice.seen.overlap,
            policy=self._policy.name,
            candidates=choice.candidates,
            why=told(decision) if place.explain else "",
        )
        self._decided[place.turn] = (placement, now)
        if self.queue.served(place.turn.turn_id):
            self._left(entry.pool)
        self._entries.pop(place.turn.turn_id, None)
        hit = 1.0 - choice.seen.new_tokens / max(1, place.prompt_tokens)
        return Decided(entry, placement, decision, now - entry.since, hit)

    def _left(self, pool: Pool) -> None:
        self._waiting[pool] -= 1
        self._waiting += Counter()  # drops what is at zero

    def _count(self, entry: Entry, seen: Seen, now: float) -> None:
        """From now on the turn weighs on its worker, and its blocks are there for its siblings."""
        place = entry.place
        seen.worker.take(Placed(place.turn, seen.new_tokens, new_blocks(entry, seen.worker), now), entry.marks)
        self._sharing.placed(seen.worker.name, entry.hashes[seen.overlap :], now)
        found = seen.overlap * place.block_size
        self._homes.placed(place.session, seen.worker.name, place.prompt_tokens, found, now)
        self._popular.placed(place.session, entry.marks, now)
        self._placed_at.append(now)

    def _enqueue(self, entry: Entry, now: float) -> Outcome:
        place = entry.place
        turn_id = place.turn.turn_id
        was_full = self.queue.full
        self.queue.put(
            turn_id,
            place.session,
            waited_s=self._waited_elsewhere_s(place, now),
            charge_s=self._charge_s(entry),
            expires=min(now + self._limits.wait_s, place.deadline or float("inf")),
            priority=place.hints.priority,
            strict_priority=place.hints.strict_priority,
        )
        self._waiting[entry.pool] += 1
        last = self._entries[self.queue.last] if was_full else None
        if last is entry:
            return Outcome([self._too_many(entry, now)])
        outcome = self.pump(now)
        if last is not None and last.place.turn.turn_id in self.queue:
            outcome.answers.append(self._too_many(last, now))
        if turn_id in self.queue:
            outcome.answers.append(self._tell(entry, now))
        return outcome

    def _waited_elsewhere_s(self, place: PlaceTurn, now: float) -> float:
        """Whole seconds since the turn's first arrival: less is the way here, and would only shuffle turns."""
        return min(self._limits.wait_s, max(0.0, now - (place.arrived_at or now)) // 1)

    def _charge_s(self, entry: Entry) -> float:
        """Seconds of a worker's time the turn will take where it does best."""
        best = max((min(held, len(entry.hashes)) for held in entry.overlap.values()), default=0)
        new_tokens = max(1, entry.place.prompt_tokens - best * entry.place.block_size)
        serving = self.fleet.serving(entry.place)
        per_token = min((ms_per_token(worker, self._weights) for worker in serving), default=0.0)
        step = min((worker.beat.decode_ms or self._weights.decode_ms for worker in serving), default=0.0)
        slots = max((worker.slots for worker in serving), default=1)
        return (new_tokens * per_token + output_of(entry.place) * step / slots) / 1000.0

    def _tell(self, entry: Entry, now: float) -> Decided:
        entry.told_at = now
        position = self.queue.position(entry.place.turn.turn_id)
        queued = PlaceQueued(
            turn=entry.place.turn, router=self.router, router_incarnation=self.incarnation, position=position
        )
        return Decided(entry, queued)

    def _refuse(self, entry: Entry, code: str, why: str, now: float) -> Decided:
        self.drop(entry.place.turn.turn_id)
        return Decided(
            entry, _refused(entry.place, code, why, self._retry_after(entry.place, now)), waited_s=now - entry.since
        )

    def _too_many(self, entry: Entry, now: float) -> Decided:
        return self._refuse(entry, "queue_full", f"{len(self.queue) - 1} turns wait before it", now)

    def _retry_after(self, place: PlaceTurn, now: float) -> float:
        """When a turn that came now would find room: by the pace of late, else by the work that waits."""
        while self._placed_at and now - self._placed_at[0] > RATE_WINDOW_S:
            self._placed_at.popleft()
        if self._placed_at:
            wait = (len(self.queue) + 1) * RATE_WINDOW_S / len(self._placed_at)
        else:
            wait = self.queue.charge_s / max(1, len(self.fleet.serving(place)))
        return round(min(RETRY_MOST_S, max(RETRY_LEAST_S, wait)), 1)


def _refused(place: PlaceTurn, code: str, message: str, retry_after: float = 0.0) -> Refused:
    return Refused(turn=place.turn, error=ErrorInfo(code=code, message=message, retry_after=retry_after))
