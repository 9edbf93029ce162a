"""Generated traffic, by name. Each is a function of its seed alone."""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count

from catenary_cli.simulation.trace import Piece, Session, Trace, Turn

RAMP_S = 10.0
"""Sessions that are open at first do not all begin at once."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Attributes: what it is; how many sessions it has unless told otherwise; what makes it."""

    about: str
    sessions: int
    make: Callable[[int, random.Random], Trace]


class _Numbers:
    """Names for tokens nobody has seen."""

    def __init__(self, rng: random.Random) -> None:
        self._next = count(rng.getrandbits(40) << 20)

    def __call__(self, tokens: int) -> Piece:
        return next(self._next), tokens


def closed_loop(
    sessions: int, rng: random.Random, *, system: int, history: int, turn: int, open_share: float, output: int
) -> Trace:
    """Sessions of eight turns over four system prompts; a part of them is open at a time."""
    fresh = _Numbers(rng)
    systems = [fresh(system) for _ in range(4)]
    order = list(range(sessions))
    rng.shuffle(order)
    concurrency = max(1, round(sessions * open_share))
    found = []
    for place, number in enumerate(order):
        begins_s = RAMP_S * place / concurrency if place < concurrency else 0.0
        first = Turn((systems[number % 4], fresh(history)), output, pause_s=begins_s)
        more = [Turn((fresh(turn),), output, keeps=True, pause_s=rng.expovariate(1 / 0.2)) for _ in range(7)]
        found.append(Session(f"s{number}", (first, *more)))
    return Trace(tuple(found), concurrency)


def agents(sessions: int, rng: random.Random) -> Trace:
    """Agents come at random, call tools of very different length, and now and then fork sub-agents.

    Two of three sessions are agents of 4 to 12 turns; every third is a sub-agent that begins with its parent's system
    prompt and tools, and a task. An agent comes every second for each eighteen sessions.
    """
    fresh = _Numbers(rng)
    systems = [fresh(6000) for _ in range(3)]
    found: list[Session] = []
    at_s = 0.0
    while len(found) < sessions:
        at_s += rng.expovariate(max(1.0, sessions / 60))
        name, system = f"agent{len(found)}", rng.choice(systems)
        turns = [Turn((system, fresh(rng.randint(500, 4000))), rng.randint(40, 200), at_s=at_s)]
        turns += [_tool_turn(fresh, rng) for _ in range(rng.randint(3, 11))]
        found.append(Session(name, tuple(turns)))
        if rng.random() < 1 / 4:
            forked_after = rng.randrange(len(turns) - 1)
            found += [
                Session(
                    f"{name}/{number}",
                    (
                        Turn((system, fresh(rng.randint(300, 1500))), rng.randint(40, 200)),
                        *(_tool_turn(fresh, rng) for _ in range(rng.randint(1, 3))),
                    ),
                    parent=name,
                    forked_after=forked_after,
                )
                for number in range(min(2, sessions - len(found)))
            ]
    return Trace(tuple(found))


def _tool_turn(fresh: _Numbers, rng: random.Random) -> Turn:
    """A tool's result of some hundred tokens, after a pause that is mostly short."""
    result = min(6000, int(rng.lognormvariate(6.2, 0.9)) + 20)
    pause_s = min(60.0, rng.lognormvariate(0.0, 1.2))
    return Turn((fresh(result),), rng.randint(30, 200), keeps=True, pause_s=pause_s, tool="tool")


STRANGERS = 50
"""For each agent."""
TOOLS = {"read": 2.0, "search": 8.0, "test": 25.0}
"""Seconds that a call takes, more or less."""


def strangers(sessions: int, rng: random.Random) -> Trace:
    """Agents that wait for tools, beside strangers who each ask once; one worker holds the agents, if nobody else.

    A stranger comes each three seconds for each agent.
    """
    fresh = _Numbers(rng)
    agents = -(-sessions // (STRANGERS + 1))
    found = []
    for number in range(agents):
        tools = (rng.choice(list(TOOLS)) for _ in range(9))
        more = [
            Turn((fresh(300),), 80, keeps=True, pause_s=TOOLS[tool] * rng.uniform(0.5, 2.0), tool=tool)
            for tool in tools
        ]
        first = Turn((fresh(6000),), 80, at_s=rng.uniform(0.0, 10.0))
        found.append(Session(f"agent{number}", (first, *more)))
    at_s = 0.0
    for number in range(sessions - agents):
        at_s += rng.expovariate(agents / 3)
        found.append(Session(f"stranger{number}", (Turn((fresh(3000),), 80, at_s=at_s),)))
    return Trace(tuple(found))


def documents(sessions: int, rng: random.Random) -> Trace:
    """Readers at random times, each with some questions about one long document of two hundred; a few are read by many.

    The n-th document is opened 1/n times as often as the first (Zipf); lengths are 4K to 32K tokens, mostly short.
    """
    fresh = _Numbers(rng)
    system = fresh(500)
    shelf = [fresh(int(4000 * 8 ** rng.random())) for _ in range(200)]
    often = [1 / place for place in range(1, len(shelf) + 1)]
    at_s = 0.0
    found = []
    for number in range(sessions):
        at_s += rng.expovariate(2.0)
        (document,) = rng.choices(shelf, often)
        first = Turn((system, document, fresh(rng.randint(30, 200))), rng.randint(50, 300), at_s=at_s)
        more = [
            Turn((fresh(rng.randint(30, 200)),), rng.randint(50, 300), keeps=True, pause_s=rng.expovariate(1 / 10))
            for _ in range(rng.randrange(4))
        ]
        found.append(Session(f"reader{number}", (first, *more)))
    return Trace(tuple(found))


def resumed(sessions: int, rng: random.Random) -> Trace:
    """People who come back to conversations: most pauses are a minute or so, some many; the history only grows."""
    fresh = _Numbers(rng)
    system = fresh(3000)
    at_s = 0.0
    found = []
    for number in range(sessions):
        at_s += rng.expovariate(1.0)
        first = Turn((system, fresh(rng.randint(500, 8000))), rng.randint(100, 400), at_s=at_s)
        more = [
            Turn(
                (fresh(rng.randint(50, 1500)),),
                rng.randint(100, 400),
                keeps=True,
                pause_s=min(600.0, rng.lognormvariate(3.5, 1.0)),
            )
            for _ in range(rng.randint(2, 9))
        ]
        found.append(Session(f"person{number}", (first, *more)))
    return Trace(tuple(found))


def fork(sessions: int, rng: random.Random) -> Trace:
    """Sub-agents that come within a tenth of a second, all with the same 32K tokens that nobody has computed yet."""
    fresh = _Numbers(rng)
    prefix = fresh(32_768)
    return Trace(
        tuple(
            Session(
                f"sub{number}",
                (
                    Turn((prefix, fresh(400)), 64, at_s=rng.uniform(0.0, 0.1)),
                    *(Turn((fresh(300),), 64, keeps=True, pause_s=0.5, tool="tool") for _ in range(3)),
                ),
            )
            for number in range(sessions)
        )
    )


def hot_prompt(sessions: int, rng: random.Random) -> Trace:
    """Short sessions at random times, all with one system prompt of 8K tokens."""
    fresh = _Numbers(rng)
    system = fresh(8000)
    at_s = 0.0
    found = []
    for number in range(sessions):
        at_s += rng.expovariate(20.0)
        found.append(Session(f"s{number}", (Turn((system, fresh(rng.randint(100, 600))), 100, at_s=at_s),)))
    return Trace(tuple(found))


def flood(sessions: int, rng: random.Random) -> Trace:
    """All sessions but one ask each two seconds; that one asks for four times as much as all of them together."""
    fresh = _Numbers(rng)
    others = sessions - 1
    system = fresh(2000)
    found = []
    for number in range(others):
        begins_s, history = rng.uniform(0.0, 2.0), fresh(4000)
        asked = [Turn((system, history, fresh(2000)), 64, at_s=begins_s + 2.0 * turn) for turn in range(15)]
        found.append(Session(f"s{number}", tuple(asked)))
    flooding = [Turn((fresh(8000),), 64, at_s=0.5 * turn / others) for turn in range(15 * 4 * others)]
    return Trace((Session("flood", tuple(flooding)), *found))


WORKLOADS: Mapping[str, Workload] = {
    "shared_prompts": Workload(
        "sessions of eight turns over four system prompts, ample cache",
        64,
        partial(closed_loop, system=8000, history=1000, turn=500, open_share=0.5, output=32),
    ),
    "kv_pressure": Workload(
        "the same with histories that do not fit into the caches",
        48,
        partial(closed_loop, system=8000, history=8000, turn=800, open_share=0.5, output=64),
    ),
    "agents": Workload("agents with tool pauses and sub-agents, coming at random", 200, agents),
    "strangers": Workload(
        "agents in tools beside strangers who ask once, for one worker", 12 * (STRANGERS + 1), strangers
    ),
    "documents": Workload("questions about long documents, a few of which are read by many", 300, documents),
    "resumed": Workload("people who come back to their conversations after a minute or many", 150, resumed),
    "fork": Workload("sub-agents of one 32K prefix that come at once", 8, fork),
    "hot_prompt": Workload("short sessions with one 8K system prompt", 800, hot_prompt),
    "flood": Workload("one session asks for four times as much as all others together", 12, flood),
}


def generate(name: str, *, sessions: int | None, seed: int) -> Trace:
    """The workload of this name. Raises `KeyError`."""
    workload = WORKLOADS[name]
    rng = random.Random(seed)  # noqa: S311  reproducible, not secret
    return workload.make(sessions or workload.sessions, rng)


def described() -> Iterator[str]:
    """A line for each."""
    for name, workload in WORKLOADS.items():
        yield f"{name}: {workload.about} ({workload.sessions} sessions)"
