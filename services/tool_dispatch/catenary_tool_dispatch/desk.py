"""What the lanes and the watch of one instance share."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from catenary_runtime.bus import Bus

from catenary_tool_dispatch.answers import Answers
from catenary_tool_dispatch.approvals import Approvals
from catenary_tool_dispatch.core.ledger import Ledger

Spawn = Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]


@dataclass(frozen=True, slots=True)
class Desk:
    """See the module. `spawn` makes a task that the service owns."""

    bus: Bus
    ledger: Ledger
    answers: Answers
    approvals: Approvals
    spawn: Spawn
