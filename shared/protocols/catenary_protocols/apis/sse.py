"""Server-sent events as bytes. JSON never holds a raw line break, so one `data:` line is always enough."""

import msgspec

_encode = msgspec.json.Encoder().encode

DONE = b"data: [DONE]\n\n"
"""How the OpenAI APIs end a stream."""


def event(value: msgspec.Struct) -> bytes:
    """An event without a name."""
    return b"data: %b\n\n" % _encode(value)


def named(name: str, value: msgspec.Struct) -> bytes:
    """An event with a name."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _encode(value))
