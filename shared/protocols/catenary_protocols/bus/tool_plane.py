"""The tool plane: JSON, because strangers read it. Executors in any language need no more than this page.

`ToolCall` comes on `tool.call.<tool>.<run_by>`; whoever runs it publishes `ToolResult` on `tool.result.<tool>.<key>`
with `Nats-Msg-Id: result:<key>`, so that the first result wins and a second one is a duplicate to JetStream.
"""

from typing import Literal

import msgspec

from catenary_protocols.errors import ErrorInfo
from catenary_protocols.wire import Wire


class ToolCall(Wire, frozen=True):
    """A complete call.

    Attributes:
        key: `<turn>-<choice>-<index>`; our name for the call, unique for ever.
        id: the call id the client sees.
        arguments: a JSON object.
        run_by: `mesh` calls are executed by whoever pulls them; `client` calls are for observers only.
        deadline: Unix seconds; `remaining_ms` is what was left when it was published.
    """

    key: str
    id: str
    tool: str
    arguments: msgspec.Raw
    run_by: Literal["client", "mesh"]
    turn_id: str
    index: int
    choice: int = 0
    session: str = ""
    model: str = ""
    deadline: float = 0.0
    remaining_ms: int = 0
    published_at: float = 0.0


class ToolResult(Wire, frozen=True):
    """What a call returned.

    Attributes:
        output: text for the model (JSON results as JSON text).
        error: set when the call did not succeed: `invalid_arguments`, `timeout`, `expired`, `failed`, `unknown_tool`, …
        late: it came after the call had expired.
    """

    key: str
    tool: str
    output: str = ""
    error: ErrorInfo | None = None
    turn_id: str = ""
    executor: str = ""
    started_at: float = 0.0
    duration_ms: float = 0.0
    truncated: bool = False
    late: bool = False


class ToolCancel(Wire, frozen=True):
    """The turn of this call was cancelled before the call had a result."""

    key: str
    tool: str
    reason: str = ""


class Approval(Wire, frozen=True):
    """A person's answer to a call that waits for one."""

    key: str
    tool: str
    approved: bool
    by: str = ""
    reason: str = ""


class TurnFact(Wire, frozen=True):
    """A fact about a turn without its content, on `observe.turn.<what>`."""

    what: str
    turn_id: str
    at: float
    model: str = ""
    session: str = ""
    worker: str = ""
    attempt: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reason: str = ""
    code: str = ""
