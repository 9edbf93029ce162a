"""What is asked of a simulated mesh: sessions, their turns, and what their prompts are made of.

The rule: prompts are recipes, not tokens, so that hundreds of thousands of them fit into memory. A piece with the same
number is the same tokens wherever it stands; two prompts share a prefix exactly where their pieces do.
"""

import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

Piece = tuple[int, int]
"""Which tokens (a number that names them), and how many."""


def tokens_of(pieces: Sequence[Piece]) -> "array[int]":
    """The token ids (`u32`) of these pieces."""
    ids = array("I")
    for number, count in pieces:
        ids.frombytes(random.Random(number).randbytes(ids.itemsize * count))  # noqa: S311  reproducible, not secret
    return ids


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a session.

    Attributes:
        pieces: what the prompt is, or what it adds to the context so far.
        output: tokens to generate.
        keeps: the prompt begins with the session's last prompt and the answer to it.
        at_s: when it is asked, whatever came before; None: `pause_s` after the turn before ended.
        pause_s: a tool runs, a person thinks.
        tool: which of them ran, when it was one: the turn before ended in its call.
        priority: see `Hints`.
    """

    pieces: tuple[Piece, ...]
    output: int
    keeps: bool = False
    at_s: float | None = None
    pause_s: float = 0.0
    tool: str = ""
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Session:
    """A conversation. Without a time and a parent it begins when fewer than `Trace.concurrency` sessions are open.

    Attributes:
        parent: the session that forks this sub-agent; its next turn waits until all sub-agents have ended.
        forked_after: number of the parent's turn whose end is the fork.
    """

    name: str
    turns: tuple[Turn, ...]
    parent: str = ""
    forked_after: int = 0

    @property
    def timed(self) -> bool:
        """Its first turn has a time of its own."""
        return self.turns[0].at_s is not None

    @property
    def has_tools(self) -> bool:
        """Its turns may end in calls."""
        return any(turn.tool for turn in self.turns)

    def call_after(self, number: int) -> tuple[str, ...]:
        """What this turn ends in a call of; nothing when it ends in an answer."""
        following = self.turns[number + 1 : number + 2]
        return tuple(turn.tool for turn in following if turn.tool)


@dataclass(frozen=True, slots=True)
class Trace:
    """All sessions, in the order in which those without a time begin."""

    sessions: tuple[Session, ...]
    concurrency: int = 1

    @property
    def turns(self) -> int:
        """Requests in all."""
        return sum(len(session.turns) for session in self.sessions)
