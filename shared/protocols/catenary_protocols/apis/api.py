"""What every API is: a reader of requests, an encoder of turns, and the shape of its errors."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeVar

from catenary_protocols.conversation import Conversation, Hints, Sampling, Within
from catenary_protocols.errors import ErrorInfo
from catenary_protocols.turn_events import TurnEvent

ApiName = Literal["chat", "responses", "messages", "completions"]


_NO_HINTS = Hints()
_ANYWHERE = Within()


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A request, read: everything of a turn that its caller decides. An API may know more of its own requests.

    Attributes:
        stream: the caller wants server-sent events.
        run_tools: names of declared tools whose calls the mesh is to run; `("*",)` means all.
        tool_dispatch: side events on the stream for complete calls and their results.
        choices: how many answers are wanted.
        answer_schema: JSON text of the schema that the final text must satisfy, or "".
        truncate: a conversation too long for the model loses its oldest messages, rather than being refused.
        clamp: a limit of tokens beyond the model's context is as many as there is room for, rather than refused.
        include_usage: the stream ends with token counts (APIs that always tell them ignore it).
        within: which workers may run it.
        session_final: the session's last turn, by the client's word.
        session: the client's own id of the conversation, or "".
        user: the client's own id of the person, or "".
        passed_over: paths of what in the request nobody here knows and its client may want to hear of.
    """

    model: str
    conversation: Conversation
    sampling: Sampling
    hints: Hints = _NO_HINTS
    stream: bool = False
    run_tools: tuple[str, ...] = ()
    tool_dispatch: bool = False
    choices: int = 1
    answer_schema: str = ""
    truncate: bool = False
    clamp: bool = False
    include_usage: bool = False
    within: Within = _ANYWHERE
    session_final: bool = False
    session: str = ""
    user: str = ""
    passed_over: tuple[str, ...] = ()


D = TypeVar("D", bound=Draft)


class Encoder(Protocol):
    """One turn on its way to one client. What `feed` has written, `body` tells as a whole: there is one assembly."""

    def feed(self, events: Sequence[TurnEvent]) -> bytes:
        """Server-sent events for these turn events, in order; empty when there is nothing to say yet."""

    def heartbeat(self) -> bytes:
        """Bytes that this API's clients count as a sign of life and that change nothing."""

    def body(self) -> bytes:
        """The whole answer as JSON, once `Finished` was fed."""


@dataclass(frozen=True, slots=True)
class Api(Generic[D]):
    """One API.

    Attributes:
        read: body bytes → draft; raises `RequestError`.
        encoder: (draft, turn id, Unix time of arrival) → encoder.
        error: (error, request id) → JSON body of an error answer.
        in_stream: error codes that this API's clients understand in a stream alone, not by status.
    """

    name: ApiName
    path: str
    read: Callable[[bytes], D]
    encoder: Callable[[D, str, int], Encoder]
    error: Callable[[ErrorInfo, str], bytes]
    in_stream: frozenset[str] = frozenset()
