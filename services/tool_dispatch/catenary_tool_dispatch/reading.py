"""The tool plane as strangers may write it: what is read here can be answered, or it raises `UndecodableError`."""

from catenary_protocols.bus.codec import Decoder, UndecodableError
from catenary_protocols.bus.tool_plane import Approval, ToolCall, ToolCancel, ToolResult

_decode_call = Decoder(ToolCall, json=True)
read_result = Decoder(ToolResult, json=True)
read_cancel = Decoder(ToolCancel, json=True)
read_approval = Decoder(Approval, json=True)
_LONGEST_NAME = 256
"""Characters; key and tool travel in a subject, which the broker bounds."""


def read_call(data: bytes) -> ToolCall:
    """A call with a name that fits into a subject."""
    call = _decode_call(data)
    for field, name in (("key", call.key), ("tool", call.tool)):
        if not 0 < len(name) <= _LONGEST_NAME:
            raise UndecodableError(f"`{field}` has {len(name)} characters, not 1 to {_LONGEST_NAME}", field=field)
    return call
