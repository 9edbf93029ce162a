"""The base of every type that travels: frozen, keyword-only, named fields, defaults left out.

New optional fields may be added; nothing may be renamed, removed or made positional. A golden file of each message
must keep decoding (`tests/contract`).
"""

import msgspec


class Wire(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A value that travels on the bus or in JSON."""
