"""What happens in a turn, in the order in which it happens: the one stream that every API encodes.

A turn's log is `Accepted`, any number of `Queued`, `Started`, then deltas and calls, and one end: `Finished` or
`Failed`. Every event of a turn has a sequence number (from 1), kept in the frame that carries it.
"""

from typing import Literal

from catenary_protocols.errors import ErrorInfo
from catenary_protocols.wire import Wire

FinishReason = Literal["stop", "length", "tool_calls", "content_filter", "cancelled"]


class Usage(Wire, frozen=True):
    """Token counts of a turn. `cached_tokens` is what the engine reused of the prompt."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0


class Accepted(Wire, frozen=True, tag="accepted"):
    """The turn has a prompt and the router has answered: it will run.

    `diverged`: where and why the prompt is no extension of its session's last one, as JSON, where the request wanted it
    explained.
    """

    prompt_tokens: int
    diverged: str = ""


class Queued(Wire, frozen=True, tag="queued"):
    """It waits for room; `position` counts from 1."""

    position: int


class Started(Wire, frozen=True, tag="started"):
    """The engine has begun. `why` there, as JSON, where the request wanted it explained."""

    cached_tokens: int
    worker: str
    why: str = ""


class ReasoningDelta(Wire, frozen=True, tag="reasoning"):
    """More of what the model thinks."""

    text: str
    choice: int = 0


class TokenPiece(Wire, frozen=True):
    """A token as the bytes it stands for (maybe a part of a character), and the logarithm of its probability."""

    piece: bytes
    logprob: float


class VisibleToken(TokenPiece, frozen=True):
    """A token of visible text; `top` are the likeliest at its place, the likeliest first."""

    top: tuple[TokenPiece, ...] = ()


class TextDelta(Wire, frozen=True, tag="text"):
    """More visible text. `tokens` are those that begin to show in it, for a request that wants to know of them."""

    text: str
    choice: int = 0
    tokens: tuple[VisibleToken, ...] = ()


class CallBegun(Wire, frozen=True, tag="call_begun"):
    """A tool call begins: index (from 0 in its choice), call id and name are known."""

    index: int
    id: str
    name: str
    choice: int = 0


class ArgumentsDelta(Wire, frozen=True, tag="arguments"):
    """More of a call's arguments (JSON text)."""

    index: int
    text: str
    choice: int = 0


class CallComplete(Wire, frozen=True, tag="call"):
    """A tool call is whole: `arguments` is valid JSON text of an object, `key` its name on the bus.

    Attributes:
        run_by: "client" (default), "mesh", or "" for a call that is not on the bus (undeclared tool, `n > 1`).
    """

    index: int
    id: str
    name: str
    arguments: str
    key: str = ""
    run_by: str = ""
    choice: int = 0


class CallCut(Wire, frozen=True, tag="call_cut"):
    """The turn ended inside a call; `arguments` is what there was, never repaired."""

    index: int
    arguments: str
    choice: int = 0


class Malformed(Wire, frozen=True, tag="malformed"):
    """The model wrote markup that is no call; its raw text is here and nowhere else."""

    raw: str
    reason: str
    choice: int = 0


class ToolResulted(Wire, frozen=True, tag="tool_result"):
    """The result of a call that the mesh ran arrived while the turn still streams."""

    key: str
    name: str
    output: str
    is_error: bool = False


class Finished(Wire, frozen=True, tag="finished"):
    """The turn is over, or one choice of its request. `stop` is the stop string that matched, if one did."""

    reason: FinishReason
    usage: Usage
    stop: str = ""
    choice: int = 0


class Failed(Wire, frozen=True, tag="failed"):
    """The turn ended in an error."""

    error: ErrorInfo
    usage: Usage = Usage()


TurnEvent = (
    Accepted
    | Queued
    | Started
    | ReasoningDelta
    | TextDelta
    | CallBegun
    | ArgumentsDelta
    | CallComplete
    | CallCut
    | Malformed
    | ToolResulted
    | Finished
    | Failed
)
TERMINAL = (Finished, Failed)
