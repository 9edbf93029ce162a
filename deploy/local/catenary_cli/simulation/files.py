"""Traces from files: one JSON object a line, one line a request, as Mooncake publishes them.

    {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, …]}

`timestamp` is milliseconds since the trace began; a hash id stands for a block of 512 prompt tokens and all before it.
Agents need more fields: `session_id`, `delay` (milliseconds between the end of the session's line before and this one,
in place of a timestamp: a tool ran), `tool` (which one; "" where it was a person), and `parent_session_id` on the first
line of a sub-agent (it is forked when the parent's line before it ends; the parent's next line waits for it). A later
line of a session without `hash_ids` goes on from the prompt and answer before it, to `input_length` tokens.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import msgspec
from catenary_protocols.errors import RequestError

from catenary_cli.simulation.trace import Piece, Session, Trace, Turn

BLOCK_TOKENS = 512
_FRESH = 1 << 62
"""Tokens that no hash id names get numbers from here on."""
_LONGEST_MS = 31 * 24 * 3600 * 1000
"""The virtual clock passes idle time too: what is further off is a Unix time, or a slip."""
_Count = Annotated[int, msgspec.Meta(ge=1, le=1 << 24)]
_Time = Annotated[float, msgspec.Meta(ge=0, le=_LONGEST_MS)]


class Line(msgspec.Struct, frozen=True):
    """One request. Other fields are left alone."""

    input_length: _Count
    output_length: Annotated[int, msgspec.Meta(ge=0, le=1 << 24)]
    timestamp: _Time | None = None
    hash_ids: tuple[int, ...] = ()
    session_id: str = ""
    parent_session_id: str = ""
    delay: _Time = 0.0
    tool: str = "tool"
    priority: int = 0


def read_trace(path: Path, *, block_tokens: int = BLOCK_TOKENS, speed: float = 1.0, limit: int | None = None) -> Trace:
    """The trace in a file, `speed` times as fast, its first `limit` lines.

    Raises:
        RequestError: the file cannot be read, or a line is wrong (field `trace`; the message names line and field).
    """
    try:
        with path.open("rb") as lines:
            sessions = tuple(_sessions(_lines(lines, limit), block_tokens, speed))
    except OSError as error:
        raise RequestError(f"{path}: {error.strerror}", code="invalid_value", field="trace") from error
    if not sessions:
        raise RequestError(f"{path} has no requests", code="invalid_value", field="trace")
    return Trace(sessions)


def _lines(lines: Iterable[bytes], limit: int | None) -> Iterator[tuple[int, Line]]:
    decoder = msgspec.json.Decoder(Line)
    for number, text in enumerate(lines, 1):
        if limit is not None and number > limit:
            return
        if text.strip():
            try:
                yield number, decoder.decode(text)
            except msgspec.DecodeError as error:
                raise _wrong(number, str(error)) from error


class _Open:
    """A session while its lines are read."""

    def __init__(self, name: str, parent: str, forked_after: int) -> None:
        self.name = name
        self.parent = parent
        self.forked_after = forked_after
        self.turns: list[Turn] = []
        self.context = 0

    def add(self, number: int, line: Line, block_tokens: int, speed: float) -> None:
        keeps = bool(self.turns) and not line.hash_ids
        tokens = line.input_length - (self.context if keeps else 0)
        if tokens < 0:
            raise _wrong(number, f"input_length: the session's context has {self.context} tokens already")
        timed = line.timestamp is not None and not (self.turns and line.delay) and not keeps
        self.turns.append(
            Turn(
                tuple(_pieces(number, tokens, line.hash_ids, block_tokens)),
                max(1, line.output_length),
                keeps=keeps,
                at_s=(line.timestamp or 0.0) / 1000 / speed if timed else None,
                pause_s=line.delay / 1000 / speed,
                tool="" if timed else line.tool,
                priority=line.priority,
            )
        )
        self.context = line.input_length + max(1, line.output_length)


def _sessions(lines: Iterable[tuple[int, Line]], block_tokens: int, speed: float) -> Iterator[Session]:
    found: dict[str, _Open] = {}
    for number, line in lines:
        name = line.session_id or f"line {number}"
        session = found.get(name)
        if session is None:
            parent = found.get(line.parent_session_id)
            if line.parent_session_id and parent is None:
                raise _wrong(number, f"parent_session_id: no line before has session_id {line.parent_session_id!r}")
            if parent is None and line.timestamp is None:
                raise _wrong(number, "timestamp: missing, and no line before has the same session_id")
            forked_after = len(parent.turns) - 1 if parent else 0
            session = found[name] = _Open(name, line.parent_session_id, forked_after)
            if parent:
                line = msgspec.structs.replace(line, timestamp=None)  # noqa: PLW2901  the fork is its time
        session.add(number, line, block_tokens, speed)
    for session in found.values():
        yield Session(session.name, tuple(session.turns), session.parent, session.forked_after)


def _pieces(number: int, tokens: int, hash_ids: tuple[int, ...], block_tokens: int) -> Iterator[Piece]:
    for one in hash_ids[: -(-tokens // block_tokens)]:
        yield one, min(block_tokens, tokens)
        tokens -= min(block_tokens, tokens)
    if tokens:
        yield _FRESH + number, tokens


def _wrong(number: int, why: str) -> RequestError:
    return RequestError(f"line {number}: {why}", code="invalid_value", field="trace")
