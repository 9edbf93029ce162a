"""Every message of the mesh's own plane: MessagePack maps, tagged with the class name.

Token ids travel as little-endian u32 bytes, sequence hashes as little-endian u64 bytes. Times are Unix seconds,
deadlines absolute. The tool plane is in `tool_plane` (JSON).
"""

from catenary_protocols.bus.messages.base import Message
from catenary_protocols.bus.messages.cards import ModelCard
from catenary_protocols.bus.messages.kv import (
    KvCleared,
    KvEvent,
    KvEvents,
    KvRemoved,
    KvReplay,
    KvStored,
    SnapshotPage,
    SnapshotQuery,
)
from catenary_protocols.bus.messages.memory import CarryMemory, RememberedAnswer, RememberedThoughts
from catenary_protocols.bus.messages.placing import (
    CancelPlace,
    Candidate,
    Overlap,
    OverlapQuery,
    Placement,
    PlaceQueued,
    PlaceTurn,
    Refused,
    WorkerOverlap,
)
from catenary_protocols.bus.messages.presence import Beat, LinkTail, LiveTurn, WorkerLoad
from catenary_protocols.bus.messages.running import (
    Drain,
    ResendTokens,
    Retain,
    Retention,
    RunTurn,
    TokenFrame,
    TurnAdmitted,
    TurnTokens,
)
from catenary_protocols.bus.messages.turns import (
    Attach,
    Attached,
    CancelTurn,
    CountTokens,
    Detokenize,
    EventFrame,
    TokenCount,
    TokenText,
    TurnEvents,
    TurnRequest,
    TurnTaken,
)

__all__ = [
    "Attach",
    "Attached",
    "Beat",
    "CancelPlace",
    "CancelTurn",
    "Candidate",
    "CarryMemory",
    "CountTokens",
    "Detokenize",
    "Drain",
    "EventFrame",
    "KvCleared",
    "KvEvent",
    "KvEvents",
    "KvRemoved",
    "KvReplay",
    "KvStored",
    "LinkTail",
    "LiveTurn",
    "Message",
    "ModelCard",
    "Overlap",
    "OverlapQuery",
    "PlaceQueued",
    "PlaceTurn",
    "Placement",
    "Refused",
    "RememberedAnswer",
    "RememberedThoughts",
    "ResendTokens",
    "Retain",
    "Retention",
    "RunTurn",
    "SnapshotPage",
    "SnapshotQuery",
    "TokenCount",
    "TokenFrame",
    "TokenText",
    "TurnAdmitted",
    "TurnEvents",
    "TurnRequest",
    "TurnTaken",
    "TurnTokens",
    "WorkerLoad",
    "WorkerOverlap",
]
