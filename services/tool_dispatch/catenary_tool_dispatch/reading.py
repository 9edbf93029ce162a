"""The tool plane as strangers may write it: what is read here can be answered, or it raises `UndecodableError`.

Half a surrogate pair, which models write and JSON forbids, becomes U+FFFD: a call must not be lost for it.
"""

import re
from collections.abc import Callable, Mapping
from typing import TypeVar

from catenary_protocols.apis.reading import mended
from catenary_protocols.bus.codec import Decoder, UndecodableError
from catenary_protocols.bus.tool_plane import Approval, ToolCall, ToolCancel, ToolResult

T = TypeVar("T")
_LONGEST_NAME = 256
"""Characters; key and tool travel in a subject, which the broker bounds."""
_KEY = re.compile(r"[!-~]+")
"""A key also goes into environments and headers."""


def _reader(kind: type[T]) -> Callable[[bytes], T]:
    decode = Decoder(kind, json=True)
    return lambda data: decode(mended(data))


_decode_call = _reader(ToolCall)
read_result = _reader(ToolResult)
read_cancel = _reader(ToolCancel)
read_approval = _reader(Approval)


def key_of(headers: Mapping[str, str] | None) -> str:
    """The key that a call's message id names, for one that cannot be read (its arguments too deep, say); else ""."""
    kind, _, key = (headers or {}).get("Nats-Msg-Id", "").partition(":")
    return key if kind == "call" and len(key) <= _LONGEST_NAME and _KEY.fullmatch(key) else ""


def read_call(data: bytes) -> ToolCall:
    """A call whose names fit into a subject."""
    call = _decode_call(data)
    for field, name in (("key", call.key), ("tool", call.tool)):
        if not 0 < len(name) <= _LONGEST_NAME:
            raise UndecodableError(f"`{field}` has {len(name)} characters, not 1 to {_LONGEST_NAME}", field=field)
    if not _KEY.fullmatch(call.key):
        raise UndecodableError("`key` has characters other than printable ASCII", field="key")
    return call
