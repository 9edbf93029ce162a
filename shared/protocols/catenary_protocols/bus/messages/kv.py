"""Between worker and kv-indexer: which blocks came and went. Hashes are little-endian u64 bytes."""

from typing import Literal

from catenary_protocols.bus.messages.base import Message
from catenary_protocols.wire import Wire


class KvStored(Wire, frozen=True, tag="stored"):
    """Blocks now held, chained: `parent` is the hash before the first of `hashes` (None: start of a prompt)."""

    hashes: bytes
    parent: int | None = None
    tier: Literal["device", "host", "disk"] = "device"


class KvRemoved(Wire, frozen=True, tag="removed"):
    """Blocks no longer held in this tier."""

    hashes: bytes
    tier: Literal["device", "host", "disk"] = "device"


class KvCleared(Wire, frozen=True, tag="cleared"):
    """Nothing is held any more."""


KvEvent = KvStored | KvRemoved | KvCleared


class KvEvents(Message, frozen=True):
    """Events `first`, `first`+1, … of one rank of one worker incarnation (numbers from 1)."""

    worker: str
    incarnation: int
    model: str
    block_size: int
    first: int
    events: tuple[KvEvent, ...]
    rank: int = 0


class KvReplay(Message, frozen=True):
    """Repeat your events from this number on; answered by `KvEvents`, or `SnapshotPage`s if they are gone."""

    rank: int
    first: int


class SnapshotQuery(Message, frozen=True):
    """Page `page` (from 0) of what you hold; later pages name the `as_of` of the first."""

    rank: int
    page: int = 0
    as_of: int = 0


class SnapshotPage(Message, frozen=True):
    """Blocks held as of KV event `as_of`: parents before children. `last`: there are no more pages."""

    worker: str
    incarnation: int
    model: str
    block_size: int
    as_of: int
    page: int
    events: tuple[KvStored, ...]
    last: bool
    rank: int = 0
