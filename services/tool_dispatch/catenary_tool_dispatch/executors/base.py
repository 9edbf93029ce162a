"""What an executor is: it takes a checked invocation and a time limit, and always comes back with an outcome.

A tool's failure is a value. Whatever foreign code does (raise, hang, print too much, return bytes that are no text)
ends in an `Outcome`; an executor raises only `CancelledError`, after it has let go of what it had started.
"""

import json
from codecs import getincrementaldecoder
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

_Utf8 = getincrementaldecoder("utf-8")
UNAVAILABLE = "unavailable"
"""The code of a run that was cut off by its server's end: the call may be given to somebody else."""


@dataclass(frozen=True, slots=True)
class Invocation:
    """One run.

    Attributes:
        key: the call key, which names the call for ever: a tool can make its effects idempotent by it.
        values: the checked arguments by name.
        json: the same as JSON text.
    """

    key: str
    values: Mapping[str, Any]
    json: bytes


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a run.

    Attributes:
        output: text for the model, also when the run failed.
        code: "" for success, else `timeout`, `failed`, `overloaded`, `unknown_tool` or `UNAVAILABLE`.
        message: the error in one sentence, without arguments or output.
        truncated: the output was longer than allowed.
    """

    output: str = ""
    code: str = ""
    message: str = ""
    truncated: bool = False


class Executor(Protocol):
    """Runs one tool."""

    async def run(self, invocation: Invocation, seconds: float) -> Outcome:
        """Run it, for at most `seconds`."""

    async def close(self) -> None:
        """Let go of what is kept between runs; no run comes after."""


def clean(text: str) -> str:
    """Text that can be encoded: a surrogate pair becomes its character, a lone surrogate U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def bounded(data: bytes, limit: int) -> tuple[str, bool]:
    """At most `limit` bytes of UTF-8 as text, bad bytes as U+FFFD; and whether something was cut off."""
    cut = len(data) > limit
    text = _Utf8("replace").decode(data[:limit], final=not cut)
    encoded = text.encode()
    if len(encoded) <= limit:
        return text, cut
    return encoded[:limit].decode("utf-8", "ignore"), True


def text_of(value: object) -> str:
    """What a Python tool returned, as text: text as it is, nothing as "", anything else as JSON.

    Raises TypeError or ValueError for what JSON cannot say.
    """
    match value:
        case None:
            return ""
        case str():
            return clean(value)
        case bytes() | bytearray():
            return bytes(value).decode("utf-8", "replace")
        case _:
            return clean(json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")))


def not_shown(what: str, kind: str, size: int | None) -> str:
    """What stands in the output for bytes that are no text; `size` in bytes, None for more than may be kept."""
    return f"[{what}, {kind}, {'too large' if size is None else f'{size} bytes'}: not shown]"
