"""The one module that encodes messages: MessagePack for the mesh's own plane, JSON for what strangers read."""

from collections.abc import Mapping
from typing import Generic, TypeVar

import msgspec

from catenary_protocols.bus.messages import Message
from catenary_protocols.errors import CatenaryError
from catenary_protocols.wire import Wire

T = TypeVar("T")
_pack = msgspec.msgpack.Encoder()
_json = msgspec.json.Encoder()


class UndecodableError(CatenaryError):
    """Bytes that are not the message they should be: a bug, a stranger, or a much newer peer."""

    default_code = "invalid_request"


class Decoder(Generic[T]):
    """Decodes one type, or a union of messages by their tag. Reusable and thread-safe."""

    def __init__(self, kind: type[T], *, json: bool = False) -> None:
        self._decode = msgspec.json.Decoder(kind).decode if json else msgspec.msgpack.Decoder(kind).decode

    def __call__(self, data: bytes) -> T:
        """The message in `data`; raises `UndecodableError`."""
        try:
            return self._decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise UndecodableError(f"cannot decode: {error}") from error


def encode(message: Message) -> bytes:
    """MessagePack bytes of a message."""
    return _pack.encode(message)


def encode_json(value: Wire | Mapping[str, object]) -> bytes:
    """JSON bytes of a tool-plane, `observe` or simulator value."""
    return _json.encode(value)
