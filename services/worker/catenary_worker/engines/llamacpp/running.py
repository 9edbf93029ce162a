"""One turn on its way through llama.cpp: its stream's events to deltas, and to what its slot holds."""

import asyncio
import time
from array import array
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from catenary_protocols.conversation import TokenLogprob
from catenary_protocols.errors import ErrorInfo
from catenary_protocols.ids import TurnKey

from catenary_worker.engines.again import Again
from catenary_worker.engines.base import Delta, EngineTurn, Finish, Started
from catenary_worker.engines.llamacpp.held import HeldBack
from catenary_worker.engines.llamacpp.slots import Slot, Slots
from catenary_worker.engines.llamacpp.stream import Likely, Message, Progress

_BROKEN = "\ufffd"
"""What stands for bytes that are no character; a model may also have said it."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What a turn must know of tokens: which may end a sequence, and which spell a text."""

    eos: AbstractSet[int]
    controls: AbstractSet[int]
    held: HeldBack


class Running:
    """A turn that was taken.

    Attributes:
        ids: prompt and all that was generated.
        end: length that these may reach.
        pending: prompt tokens still to be computed.
        slot: where it runs.
        reuses: whether it goes on from what the slot held.
        alternatives: how many are to be told with each token; None: nothing is told of its likelihood.
        task: reads its stream; None while it waits.
        timer: ends it at its deadline.
        again: says what of it is new, where it was moved and had to begin anew.
    """

    def __init__(self, turn: EngineTurn, room: int, grammar: str, vocabulary: Vocabulary, slots: Slots) -> None:
        self.turn = turn
        self.key: TurnKey = turn.key
        self.grammar = grammar
        asked = turn.options.get("logprobs")
        self.alternatives = asked if isinstance(asked, int) else None
        self.ids = array("I", [*turn.prompt, *turn.generated])
        self.end = len(self.ids) + room
        self.pending = len(self.ids)
        self.slot: Slot | None = None
        self.reuses = False
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.again: Again | None = None
        self._vocabulary = vocabulary
        self._slots = slots
        self._stops = frozenset(turn.stop_token_ids) | (frozenset() if turn.ignore_eos else vocabulary.eos)
        self._stops_after = len(turn.prompt) + turn.min_tokens
        self._arrived = time.monotonic()
        self._started = False
        self._told = self._first = len(self.ids)
        self._logprobs: list[TokenLogprob | None] = []
        self._counted = 0
        self._torn = False

    def begin(self) -> Slot:
        """Take a slot."""
        self.slot, shared = self._slots.take(self.ids, self.turn.salt, time.monotonic())
        self.slot.session = self.turn.session
        self.reuses = shared > 0
        return self.slot

    def release(self) -> None:
        """Give the slot back."""
        if self.slot is not None:
            self._slots.release(self.slot, time.monotonic(), self.turn.retention)

    def part(self) -> tuple[int, bool]:
        """How far one request may go, and whether an end of sequence may come in it.

        Before `min_tokens` none may; llama.cpp can only forbid it for a whole request, so that another one follows.
        """
        self._counted = 0
        early = not self.turn.ignore_eos and len(self.ids) < min(self._stops_after, self.end)
        return min(self._stops_after, self.end) if early else self.end, not early and not self.turn.ignore_eos

    # --- events -------------------------------------------------------------------------------------------------

    def read(self, message: Message) -> Delta | None:
        """What an event brings the turn; None for nothing."""
        if message.prompt_progress is not None:
            return self._computed(message.prompt_progress)
        if message.stop:
            return self._stopped(message)
        if len(self.ids) >= self.end:  # no token was wanted, and one was needed to compute the prompt
            return self._give("length")
        tokens = self._tokens(message)
        self._learn(message.completion_probabilities, len(tokens))
        for token in tokens:
            self.ids.append(token)
            if token in self._stops and len(self.ids) > self._stops_after:
                self._hold(len(self.ids) - 1)
                return self._give("stop", stop_token=True)
        self._hold(len(self.ids) - 1)
        # A control token may be an end of sequence of llama.cpp's own: the next event tells.
        return self._give(waits=int(self.ids[-1] in self._vocabulary.controls))

    def last(self, finish: Finish, error: ErrorInfo | None = None) -> Delta:
        """The end of a turn that goes on."""
        return self._delta(self._told, finish=finish, error=error)

    def _computed(self, progress: Progress) -> Delta | None:
        slot = self.slot
        if slot is not None and progress.cache < min(len(slot.tokens), len(self.ids) - 1):
            self._slots.cut(slot, progress.cache)  # it could not go on from there after all
        self._hold(progress.processed)
        self.pending = len(self.ids) - progress.processed
        if self._started:
            return None
        self._started = True
        cached = min(progress.cache, len(self.turn.prompt) - 1)
        return self._delta(self._told, Started(cached, time.monotonic() - self._arrived))

    def _tokens(self, message: Message) -> tuple[int, ...]:
        missing = message.tokens_predicted - self._counted - len(message.tokens)
        self._counted = message.tokens_predicted
        if missing <= 0:
            return message.tokens
        found = self._vocabulary.held.find(message.content, missing, message.tokens[-1])
        if found is None or _BROKEN in message.content:
            self._torn = True  # from here on the slot holds what nobody knows
        return (*(found or ()), *message.tokens)

    def _learn(self, likely: tuple[Likely, ...], count: int) -> None:
        """llama.cpp tells of the last token alone when several make a character."""
        if self.alternatives is None:
            return
        known = [_told(one, self.alternatives) for one in likely[-count:]]
        self._logprobs += [*[None] * (count - len(known)), *known]

    def _stopped(self, message: Message) -> Delta | None:
        if message.stop_type == "eos":
            return self._give("stop", stop_token=self._told < len(self.ids))
        self._torn = self._torn or message.tokens_predicted > self._counted
        if not self._torn and len(self.ids) < self.end:
            return self._give()
        return self._give("length")

    # --- inside -------------------------------------------------------------------------------------------------

    def _hold(self, length: int) -> None:
        """The slot holds so many of the ids."""
        if self.slot is not None and not self._torn and length > len(self.slot.tokens):
            self._slots.add(self.slot, self.ids[len(self.slot.tokens) : length])

    def _give(self, finish: Finish | None = None, *, waits: int = 0, stop_token: bool = False) -> Delta | None:
        upto = len(self.ids) - waits
        if upto == self._told and finish is None:
            return None
        return self._delta(upto, finish=finish, stop_token=stop_token)

    def _delta(
        self,
        upto: int,
        started: Started | None = None,
        finish: Finish | None = None,
        error: ErrorInfo | None = None,
        *,
        stop_token: bool = False,
    ) -> Delta:
        offset, tokens = self._told - len(self.turn.prompt), tuple(self.ids[self._told : upto])
        logprobs = tuple(self._logprobs[self._told - self._first : upto - self._first])
        self._told = upto
        return Delta(self.turn.turn_id, self.turn.attempt, offset, tokens, started, finish, error, stop_token, logprobs)


def _told(likely: Likely, count: int) -> TokenLogprob:
    return TokenLogprob(logprob=likely.logprob, top={other.id: other.logprob for other in likely.top_logprobs[:count]})
