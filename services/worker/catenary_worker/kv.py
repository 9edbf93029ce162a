"""KV events out, snapshots on demand.

What a start or an end of a turn brings is told at once, since another turn may want it. Blocks that fill while turns
just go on wait a moment, so that they travel together.
"""

import asyncio
from collections.abc import Sequence

from catenary_protocols.bus.codec import Decoder, encode
from catenary_protocols.bus.messages import KvReplay, SnapshotQuery
from catenary_runtime.bus import Bus
from nats.aio.msg import Msg

from catenary_worker import metrics
from catenary_worker.engines.base import KvEvent
from catenary_worker.kv_journal import KvJournal

WAIT_S = 0.05
Query = KvReplay | SnapshotQuery
_decode: Decoder[Query] = Decoder(Query)  # type: ignore[arg-type]  # a union of types is no type to mypy


class KvPublisher:
    """The journal on the bus. Events get their numbers when they leave, so that a beat never tells of others."""

    def __init__(self, bus: Bus, journal: KvJournal) -> None:
        self._bus = bus
        self._journal = journal
        self._subject = bus.subjects.to("kv", worker=journal.worker)
        self._waiting: list[KvEvent] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, events: Sequence[KvEvent], *, at_once: bool) -> None:
        """The KV events of one step."""
        self._waiting += events
        if at_once:
            self.flush()
        elif self._waiting and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(WAIT_S, self.flush)

    def flush(self) -> None:
        """Publish what waits."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, []
        for message in self._journal.feed(waiting):
            self._bus.publish(self._subject, encode(message))
        for reason, count in self._journal.refused().items():
            metrics.KV_REFUSED.labels(reason).inc(count)

    def on_query(self, msg: Msg) -> None:
        """A kv-indexer asks for what it missed."""
        answer = self._journal.answer(_decode(msg.data))
        if answer is not None and msg.reply:
            self._bus.publish(msg.reply, encode(answer))
