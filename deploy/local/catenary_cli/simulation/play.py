"""Plays a trace on a mesh: who asks when, who waits for whom."""

from array import array
from collections import defaultdict, deque
from collections.abc import Callable
from functools import partial

from catenary_cli.simulation.mesh import BEGAN, Asked, Asking, Shape, VirtualMesh
from catenary_cli.simulation.trace import Session, Trace, tokens_of

BEGINS_S = 0.5
"""When the trace begins: the router has heard every worker by then."""
OnEnd = Callable[[int], None]
"""Told how many turns have ended."""


def play(trace: Trace, shape: Shape, seed: int, on_end: OnEnd = lambda _: None) -> list[Asked]:
    """Run a trace to its end; requests in the order in which they were asked."""
    player = _Player(trace, VirtualMesh(shape, seed), on_end)
    player.begin()
    player.mesh.run()
    return player.mesh.asked


class _Playing:
    """A session that has begun.

    Attributes:
        forks: its sub-agents that have not ended; its next turn waits for them.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.context: array[int] = array("I")
        self.forks = 0


class _Player:
    def __init__(self, trace: Trace, mesh: VirtualMesh, on_end: OnEnd) -> None:
        self.mesh = mesh
        self._trace = trace
        self._on_end = on_end
        self._ended = 0
        self._playing: dict[str, _Playing] = {}
        self._waiting = deque(one for one in trace.sessions if not one.timed and not one.parent)
        self._forks: dict[tuple[str, int], list[Session]] = defaultdict(list)
        for session in trace.sessions:
            if session.parent:
                self._forks[session.parent, session.forked_after].append(session)

    def begin(self) -> None:
        for session in self._trace.sessions:
            if session.timed and not session.parent:
                self._start(session)
        for _ in range(self._trace.concurrency):
            self._start_next()

    def _start_next(self) -> None:
        if self._waiting:
            self._start(self._waiting.popleft())

    def _start(self, session: Session) -> None:
        """Turns with a time are asked then; the first without one, a pause from now."""
        playing = self._playing[session.name] = _Playing(session)
        now = self.mesh.now + (BEGINS_S if self.mesh.now == BEGAN else 0.0)
        for number, turn in enumerate(session.turns):
            if turn.at_s is not None:
                self.mesh.at(BEGAN + BEGINS_S + turn.at_s, partial(self._ask, playing, number))
        if not session.timed:
            self.mesh.at(now + session.turns[0].pause_s, partial(self._ask, playing, 0))

    def _ask(self, playing: _Playing, number: int) -> None:
        turn = playing.session.turns[number]
        prompt = tokens_of(turn.pieces)
        if turn.keeps:
            prompt = playing.context + prompt

        def ended(generated: "array[int]") -> None:
            playing.context = prompt + generated
            self._turn_ended(playing, number)

        session = playing.session
        asked = Asking(
            session.name,
            prompt,
            turn.output,
            priority=turn.priority,
            tools=session.has_tools,
            calls=session.call_after(number),
            subagent=bool(session.parent),
        )
        self.mesh.ask(asked, ended)

    def _turn_ended(self, playing: _Playing, number: int) -> None:
        self._ended += 1
        self._on_end(self._ended)
        session = playing.session
        forks = self._forks.get((session.name, number), ())
        playing.forks += len(forks)
        for fork in forks:
            self._start(fork)
        if not playing.forks:
            self._go_on(playing, number)

    def _go_on(self, playing: _Playing, number: int) -> None:
        session = playing.session
        following = number + 1
        if following < len(session.turns):
            turn = session.turns[following]
            if turn.at_s is None:
                self.mesh.at(self.mesh.now + turn.pause_s, partial(self._ask, playing, following))
            return
        if session.parent:
            parent = self._playing[session.parent]
            parent.forks -= 1
            if not parent.forks:
                self._go_on(parent, session.forked_after)
        elif not session.timed:
            self._start_next()
