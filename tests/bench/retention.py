"""What retention is worth: agents in tools beside a stream of strangers, on one simulated engine and a virtual clock.

Twelve agents fit into the cache, if the strangers' prompts, which nobody asks for again, do not push them out while they
wait for their tools. Told how long the tools usually take, the engine keeps the agents' blocks ahead of the strangers'.
"""

from __future__ import annotations

import random
import statistics
from array import array
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any

from catenary_tokenizer_service.core.away import Absences
from catenary_worker.engines.base import EngineTurn, Retention
from catenary_worker.engines.sim.settings import SimSettings
from catenary_worker.engines.sim.virtual import VirtualEngine

if TYPE_CHECKING:
    from collections.abc import Callable

AGENTS, TURNS = 12, 20
HISTORY, MORE, OUTPUT = 6_000, 300, 80
STRANGER, STRANGERS_PER_S = 3_000, 4.0
TOOLS = {"read": 2.0, "search": 8.0, "test": 25.0}
"""Median seconds; each call takes between half and twice as long."""
AWAY = 20


def measure() -> dict[str, Any]:
    """Of agents and strangers, with and without."""
    return {name: Play(retain=retain).summary() for name, retain in (("without", False), ("with", True))}


@dataclass
class Play:
    """One run; the same traffic whether blocks are retained or not."""

    retain: bool
    now: float = 0.0
    engine: VirtualEngine = field(default_factory=lambda: VirtualEngine(SimSettings(), 131_072))
    absences: Absences = field(default_factory=Absences)
    first_token_s: dict[str, list[float]] = field(default_factory=lambda: {"agents": [], "strangers": []})
    asked: dict[str, int] = field(default_factory=lambda: {"agents": 0, "strangers": 0})
    cached: dict[str, int] = field(default_factory=lambda: {"agents": 0, "strangers": 0})

    def __post_init__(self) -> None:
        self._numbers = count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._open: dict[str, tuple[str, float, Callable[[array[int]], None]]] = {}
        self._said: dict[str, array[int]] = {}
        self._left = AGENTS
        for number in range(AGENTS):
            rng = random.Random(number)  # noqa: S311  reproducible, not secret
            prompt = fresh(rng, HISTORY)
            self._at(rng.uniform(0, 10), partial(self._agent, f"a{number}", rng, prompt, TURNS))
        self._at(0.0, partial(self._strangers, random.Random(99)))  # noqa: S311  reproducible, not secret

    def summary(self) -> dict[str, float]:
        """Play, then tell."""
        while self._left:
            due = self.engine.due
            if due is not None and (not self._events or due <= self._events[0][0]):
                self._step()
            else:
                self.now, _, what = heappop(self._events)
                what()
        agents, strangers = (sorted(self.first_token_s[who]) for who in ("agents", "strangers"))
        return {
            "agents_cached": round(self.cached["agents"] / self.asked["agents"], 3),
            "agents_ttft_ms": round(1000 * statistics.mean(agents), 1),
            "agents_ttft_p99_ms": round(1000 * agents[int(0.99 * len(agents))], 1),
            "strangers_ttft_ms": round(1000 * statistics.mean(strangers), 1),
        }

    def _agent(self, name: str, rng: random.Random, prompt: array[int], turns: int) -> None:
        self.absences.back("", name, self.now)
        tool = rng.choice(list(TOOLS))

        def ended(said: array[int]) -> None:
            if turns == 1:
                self._left -= 1
                return
            if self.retain:
                self.absences.left(name, (tool,), self.now)
                away = Retention(AWAY, self.absences.expected("", (tool,)))
                self.engine.core.retain(name, away, self.now)
            pause = TOOLS[tool] * rng.uniform(0.5, 2.0)
            following = prompt + said + fresh(rng, MORE)
            self._at(self.now + pause, partial(self._agent, name, rng, following, turns - 1))

        told = Retention(AWAY, self.absences.usual("", name)) if self.retain else Retention()
        self._ask("agents", prompt, ended, session=name, retention=told)

    def _strangers(self, rng: random.Random) -> None:
        self._ask("strangers", fresh(rng, STRANGER), lambda _: None)
        self._at(self.now + rng.expovariate(STRANGERS_PER_S), partial(self._strangers, rng))

    def _ask(self, who: str, prompt: array[int], ended: Callable[[array[int]], None], **more: Any) -> None:
        turn_id = f"t{next(self._numbers)}"
        self._open[turn_id] = (who, self.now, ended)
        self._said[turn_id] = array("I")
        self.asked[who] += len(prompt)
        self.engine.submit(EngineTurn(turn_id, prompt, max_tokens=OUTPUT, min_tokens=OUTPUT, **more), self.now)

    def _step(self) -> None:
        step, self.now = self.engine.advance()
        for delta in step.deltas:
            who, began, ended = self._open[delta.turn_id]
            if delta.started is not None:
                self.cached[who] += delta.started.cached_tokens
                self.first_token_s[who].append(self.now - began)
            self._said[delta.turn_id].extend(delta.tokens)
            if delta.finish is not None:
                del self._open[delta.turn_id]
                ended(self._said.pop(delta.turn_id))

    def _at(self, when: float, what: Callable[[], None]) -> None:
        heappush(self._events, (when, next(self._numbers), what))


def fresh(rng: random.Random, length: int) -> array[int]:
    """Ids that nobody else has."""
    return array("I", (rng.randrange(1, 32_768) for _ in range(length)))
