"""Which messages travel on which channel, and what answers them. The AsyncAPI document is drawn from this table."""

from dataclasses import dataclass
from typing import Literal

from catenary_protocols.bus import messages as m
from catenary_protocols.bus import tool_plane as t
from catenary_protocols.wire import Wire


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one channel carries.

    Attributes:
        messages: types that are sent; none: a JSON object that the receiver describes.
        replies: types that may answer on the reply subject.
        encoding: MessagePack maps, or JSON that strangers read.
    """

    messages: tuple[type[Wire], ...] = ()
    replies: tuple[type[Wire], ...] = ()
    encoding: Literal["msgpack", "json"] = "msgpack"


TRAFFIC: dict[str, Traffic] = {
    "turn": Traffic(
        (m.TurnRequest, m.CancelTurn, m.Attach, m.CountTokens, m.Detokenize),
        (m.TurnTaken, m.Attached, m.TokenCount, m.TokenText, m.Refused),
    ),
    "memory": Traffic((m.CarryMemory,)),
    "place": Traffic((m.PlaceTurn, m.CancelPlace), (m.PlaceQueued, m.Placement, m.Refused)),
    "overlap": Traffic((m.OverlapQuery,), (m.Overlap,)),
    "do": Traffic((m.RunTurn, m.CancelTurn, m.Retain, m.ResendTokens, m.Drain), (m.TurnAdmitted, m.Refused)),
    "snapshot": Traffic((m.KvReplay, m.SnapshotQuery), (m.KvEvents, m.SnapshotPage)),
    "tokens": Traffic((m.TokenFrame,)),
    "events": Traffic((m.EventFrame,)),
    "kv": Traffic((m.KvEvents,)),
    "load": Traffic((m.WorkerLoad,)),
    "beat": Traffic((m.Beat,)),
    "tool_call": Traffic((t.ToolCall,), encoding="json"),
    "tool_result": Traffic((t.ToolResult,), encoding="json"),
    "tool_cancel": Traffic((t.ToolCancel,), encoding="json"),
    "tool_approve": Traffic((t.Approval,), encoding="json"),
    "tool_dead": Traffic((t.ToolCall,), encoding="json"),
    "sim_script": Traffic(encoding="json"),
    "sim_delete": Traffic(encoding="json"),
    "sim_report": Traffic(encoding="json"),
    "observe": Traffic((t.TurnFact,), encoding="json"),
}
STORED: tuple[type[Wire], ...] = (m.ModelCard,)
"""Types that are kept in a bucket and travel on no channel."""
