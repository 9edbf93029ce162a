"""The base of every message of the mesh's own plane."""

from catenary_protocols.wire import Wire


class Message(Wire, frozen=True, tag=True):
    """Base of all messages: `type` on the wire is the class name."""
