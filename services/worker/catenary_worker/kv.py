"""KV events out, snapshots on demand."""

from collections.abc import Sequence

from catenary_protocols.bus.codec import Decoder, encode
from catenary_protocols.bus.messages import KvReplay, SnapshotQuery
from catenary_runtime.bus import Bus
from nats.aio.msg import Msg

from catenary_worker.engines.base import KvEvent
from catenary_worker.kv_journal import KvJournal

Query = KvReplay | SnapshotQuery
_decode: Decoder[Query] = Decoder(Query)  # type: ignore[arg-type]  # a union of types is no type to mypy


class KvPublisher:
    """The journal on the bus."""

    def __init__(self, bus: Bus, journal: KvJournal) -> None:
        self._bus = bus
        self._journal = journal
        self._subject = bus.subjects.to("kv", worker=journal.worker)

    def publish(self, events: Sequence[KvEvent]) -> None:
        """The KV events of one step."""
        for message in self._journal.feed(events):
            self._bus.publish(self._subject, encode(message))

    def on_query(self, msg: Msg) -> None:
        """A kv-indexer asks for what it missed."""
        answer = self._journal.answer(_decode(msg.data))
        if answer is not None and msg.reply:
            self._bus.publish(msg.reply, encode(answer))
