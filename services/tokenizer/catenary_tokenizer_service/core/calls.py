"""Which calls go on the bus, and who runs them. The rule: only declared tools, each call once, none unasked."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Literal

from catenary_protocols.conversation import ToolChoice
from catenary_protocols.errors import ErrorInfo
from catenary_protocols.turn_events import FinishReason

RunBy = Literal["client", "mesh", ""]
EVERY_TOOL = "*"


@dataclass(slots=True)
class CallPolicy:
    """The policy of one turn.

    Attributes:
        declared: tools of the request.
        run_tools: those the mesh runs; `*` means all declared ones.
        allowed: False keeps all calls off the bus.
    """

    declared: frozenset[str]
    run_tools: frozenset[str] = field(default_factory=frozenset)
    allowed: bool = True

    def run_by(self, tool: str, *, decided_at_close: bool) -> RunBy:
        """Who runs a call of this tool; "" keeps it off the bus."""
        if not self.allowed or tool not in self.declared:
            return ""
        if decided_at_close:  # the model never closed it: the client may judge, the mesh does not run it
            return "client"
        return "mesh" if tool in self.run_tools or EVERY_TOOL in self.run_tools else "client"


def policy_for(declared: Iterable[str], run_tools: Iterable[str], choice_mode: str, *, choices: int = 1) -> CallPolicy:
    """The policy of a request. Of several choices the client takes one, and nobody else knows which."""
    return CallPolicy(frozenset(declared), frozenset(run_tools), allowed=choice_mode != "none" and choices == 1)


def unmet(choice: ToolChoice, called: Collection[str], reason: FinishReason) -> ErrorInfo | None:
    """What to say when a model that had to call a tool did not: not every engine can be made to."""
    if reason not in {"stop", "tool_calls"}:
        return None
    if choice.mode == "required" and not called:
        message = "the model was required to call a tool, and called none"
    elif choice.mode == "named" and choice.name not in called:
        message = f"the model was required to call {choice.name!r}, and did not"
    else:
        return None
    return ErrorInfo(code="tool_choice_unmet", message=message, field="tool_choice")


def unfit(tool: str, problem: str) -> ErrorInfo:
    """What to say of a strict tool's call whose arguments do not fit: not every engine can be held to a schema."""
    message = f"the model called {tool!r} otherwise than its strict schema allows: {problem}"
    return ErrorInfo(code="strict_schema_unmet", message=message, field="tools")
