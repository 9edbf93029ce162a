"""Every error the mesh speaks of, and the one table from code to each API's status and body type.

CatenaryError(code, message)
├── RequestError      the caller's fault (4xx); carries the `field` that is wrong
├── CapacityError     no room just now (429, 503); carries `retry_after` in seconds
├── EngineError       an engine failed while it ran a turn
├── ToolError         a tool could not be run or failed
└── TransportError    the bus or a neighbour is not there

`ErrorInfo` is the wire twin: what travels in `Refused`, `Failed` and replies. Malformed *model* output is never
an error; it is an event.
"""

from dataclasses import dataclass
from typing import ClassVar, Self

from catenary_protocols.wire import Wire


class ErrorInfo(Wire, frozen=True):
    """An error as it travels on the bus.

    Attributes:
        code: a key of `TABLE`.
        message: for the person who reads the answer; never holds prompts, outputs or secrets.
        field: dotted path of the request field that is wrong, or "".
        retry_after: seconds after which trying again makes sense; 0 means unknown.
        retry: False once trying again could repeat a side effect (a tool call was already published).
        numbers: what the message counts, by name, for APIs whose clients read a wording of their own.
    """

    code: str
    message: str
    field: str = ""
    retry_after: float = 0.0
    retry: bool = True
    numbers: dict[str, int] = {}


@dataclass(frozen=True, slots=True)
class ErrorKind:
    """How one code looks at each API.

    Attributes:
        status: HTTP status.
        openai_type: `error.type` of the OpenAI APIs.
        anthropic_type: `error.type` of the Anthropic API.
    """

    status: int
    openai_type: str
    anthropic_type: str


_BAD = ErrorKind(400, "invalid_request_error", "invalid_request_error")
_BUSY = ErrorKind(503, "service_unavailable_error", "overloaded_error")
_BROKEN = ErrorKind(500, "server_error", "api_error")

TABLE: dict[str, ErrorKind] = {
    "invalid_request": _BAD,
    "invalid_json": _BAD,
    "invalid_value": _BAD,
    "missing_field": _BAD,
    "unsupported": _BAD,
    "template_refused": _BAD,
    "context_length_exceeded": _BAD,
    "tool_choice_unmet": ErrorKind(422, "invalid_request_error", "invalid_request_error"),
    "strict_schema_unmet": ErrorKind(422, "invalid_request_error", "invalid_request_error"),
    "invalid_api_key": ErrorKind(401, "invalid_request_error", "authentication_error"),
    "permission_denied": ErrorKind(403, "invalid_request_error", "permission_error"),
    "model_not_found": ErrorKind(404, "invalid_request_error", "not_found_error"),
    "not_found": ErrorKind(404, "invalid_request_error", "not_found_error"),
    "method_not_allowed": ErrorKind(405, "invalid_request_error", "invalid_request_error"),
    "request_too_large": ErrorKind(413, "invalid_request_error", "request_too_large"),
    "headers_too_large": ErrorKind(431, "invalid_request_error", "request_too_large"),
    "slow_request": ErrorKind(408, "timeout_error", "timeout_error"),
    "slow_reader": ErrorKind(408, "invalid_request_error", "invalid_request_error"),
    "unsupported_encoding": ErrorKind(415, "invalid_request_error", "invalid_request_error"),
    "unsupported_media_type": ErrorKind(415, "invalid_request_error", "invalid_request_error"),
    "rate_limit_exceeded": ErrorKind(429, "rate_limit_error", "rate_limit_error"),
    "queue_full": ErrorKind(429, "rate_limit_error", "rate_limit_error"),
    "deadline_exceeded": ErrorKind(504, "timeout_error", "timeout_error"),
    "model_not_ready": _BUSY,
    "no_worker": _BUSY,
    "draining": _BUSY,
    "overloaded": _BUSY,
    "disconnected": _BUSY,
    "cancelled": ErrorKind(499, "invalid_request_error", "invalid_request_error"),
    "owner_lost": ErrorKind(502, "server_error", "api_error"),
    "engine_failed": _BROKEN,
    "worker_lost": _BROKEN,
    "tool_failed": _BROKEN,
    "internal": _BROKEN,
}


def kind_of(code: str) -> ErrorKind:
    """The row of `TABLE` for a code; an unknown code (a newer peer's) reads as `internal`."""
    return TABLE.get(code, TABLE["internal"])


class CatenaryError(Exception):
    """Root of the tree. `code` is a key of `TABLE`."""

    default_code: ClassVar[str] = "internal"

    def __init__(
        self,
        message: str,
        *,
        code: str = "",
        field: str = "",
        retry_after: float = 0.0,
        retry: bool = True,
        numbers: dict[str, int] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.field = field
        self.retry_after = retry_after
        self.retry = retry
        self.numbers = numbers or {}

    @property
    def info(self) -> ErrorInfo:
        """The wire twin."""
        return ErrorInfo(
            code=self.code,
            message=self.message,
            field=self.field,
            retry_after=self.retry_after,
            retry=self.retry,
            numbers=self.numbers,
        )

    @classmethod
    def from_info(cls, info: ErrorInfo) -> Self:
        """Raise-able form of what came over the wire."""
        return cls(
            info.message,
            code=info.code,
            field=info.field,
            retry_after=info.retry_after,
            retry=info.retry,
            numbers=info.numbers,
        )


class RequestError(CatenaryError):
    """The request cannot be served as it stands; `field` names what is wrong."""

    default_code = "invalid_request"


class CapacityError(CatenaryError):
    """There is no room now; `retry_after` says when to come back."""

    default_code = "overloaded"


class EngineError(CatenaryError):
    """An engine failed while it ran a turn."""

    default_code = "engine_failed"


class ToolError(CatenaryError):
    """A tool could not be run, or failed."""

    default_code = "tool_failed"


class TransportError(CatenaryError):
    """The bus, or a neighbour on it, is not there."""

    default_code = "disconnected"
