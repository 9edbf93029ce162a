"""An answer on its way from a helper: its kind, its length, its bytes."""

import struct
from typing import IO

from catenary_tokenizers import PromptError, TemplateLimitError

_HEAD = struct.Struct(">BQ")
DONE = 0
ERRORS: tuple[type[Exception], ...] = (PromptError, TemplateLimitError, ValueError)
"""What a job may raise; kind 1 is the first."""
LONGEST = 1 << 30


def write_answer(to: IO[bytes], answer: bytes) -> None:
    """A job's result."""
    _write(to, DONE, answer)


def write_error(to: IO[bytes], error: Exception) -> None:
    """One of `ERRORS`."""
    kind = next(place for place, one in enumerate(ERRORS, DONE + 1) if isinstance(error, one))
    _write(to, kind, str(error).encode("utf-8", "replace"))


def read_answer(source: IO[bytes]) -> bytes:
    """A job's result; raises what the job raised, `EOFError` when the helper is gone or writes what is no answer."""
    head = source.read(_HEAD.size)
    if len(head) < _HEAD.size:
        raise EOFError
    kind, length = _HEAD.unpack(head)
    if kind > len(ERRORS) or length > LONGEST:
        raise EOFError
    answer = source.read(length)
    if len(answer) < length:
        raise EOFError
    if kind != DONE:
        raise ERRORS[kind - 1](answer.decode())
    return answer


def _write(to: IO[bytes], kind: int, data: bytes) -> None:
    to.write(_HEAD.pack(kind, len(data)))
    to.write(data)
    to.flush()
