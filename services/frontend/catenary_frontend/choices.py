"""Several answers to one request: each choice is a turn of its own, and their events come to the client as one stream.

The prompt is told of once, and its tokens count once. When one choice fails, the answer does; the others are stopped.
"""

from collections.abc import Callable, Sequence

import msgspec
from catenary_protocols.turn_events import Accepted, Finished, Started, TurnEvent, Usage

from catenary_frontend.turn import Client


class Choices:
    """The turns of one request. `stop` cancels those that run."""

    def __init__(self, client: Client, count: int, stop: Callable[[str], None]) -> None:
        self._client = client
        self._stop = stop
        self._running = set(range(count))
        self._told: set[type] = set()
        self._usage = Usage()

    def client_of(self, choice: int) -> Client:
        """Who the turn of a choice is for."""
        return _Choice(self, choice)

    def deliver(self, choice: int, events: Sequence[TurnEvent], *, ended: bool) -> None:
        """The next events of a choice."""
        if choice not in self._running:
            return
        news = [self._summed(one) for one in events if not self._known(one)]
        if ended:
            self._end(choice, events[-1])
        if news:
            self._client.deliver(news, ended=not self._running)

    def tick(self, now: float) -> None:
        """Time passes."""
        self._client.tick(now)

    def _known(self, one: TurnEvent) -> bool:
        """Whether the client has heard it from another choice."""
        if not isinstance(one, Accepted | Started):
            return False
        known = type(one) in self._told
        self._told.add(type(one))
        return known

    def _summed(self, one: TurnEvent) -> TurnEvent:
        if not isinstance(one, Finished):
            return one
        before, own = self._usage, one.usage
        self._usage = Usage(
            prompt_tokens=own.prompt_tokens,
            completion_tokens=before.completion_tokens + own.completion_tokens,
            cached_tokens=max(before.cached_tokens, own.cached_tokens),
            reasoning_tokens=before.reasoning_tokens + own.reasoning_tokens,
        )
        return msgspec.structs.replace(one, usage=self._usage)

    def _end(self, choice: int, end: TurnEvent) -> None:
        self._running.discard(choice)
        if not isinstance(end, Finished) or end.reason == "cancelled":
            self._running.clear()
            self._stop("another choice failed")


class _Choice:
    """`turn.Client` of one choice."""

    def __init__(self, choices: Choices, choice: int) -> None:
        self._choices = choices
        self._choice = choice

    def deliver(self, events: Sequence[TurnEvent], *, ended: bool) -> None:
        """Its next events."""
        self._choices.deliver(self._choice, events, ended=ended)

    def tick(self, now: float) -> None:
        """Time passes."""
        self._choices.tick(now)
