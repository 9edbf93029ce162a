"""Which calls go on the bus, and who runs them. The rule: only declared tools, each call once, none unasked."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

RunBy = Literal["client", "mesh", ""]
EVERY_TOOL = "*"


@dataclass(slots=True)
class CallPolicy:
    """The policy of one turn.

    Attributes:
        declared: tools of the request.
        run_tools: those the mesh runs; `*` means all declared ones.
        allowed: False for tool choice `none`: calls are then not calls.
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


def call_id(turn_id: str, choice: int, index: int) -> str:
    """A call id for the client where the model gave none: the same for each submission of a turn."""
    return f"call_{turn_id[-20:]}{choice:x}{index:03x}"


def policy_for(declared: Iterable[str], run_tools: Iterable[str], choice_mode: str) -> CallPolicy:
    """The policy of a request."""
    return CallPolicy(frozenset(declared), frozenset(run_tools), allowed=choice_mode != "none")
