"""The kv-indexer on the bus: KV events and beats in, overlaps out."""

import asyncio
import time

import structlog
from catenary_protocols.bus.codec import Decoder, encode
from catenary_protocols.bus.messages import KvEvents, OverlapQuery, SnapshotPage, WorkerLoad
from catenary_runtime import semconv, telemetry
from catenary_runtime.bus import Ask
from catenary_runtime.presence import Listener, Peer
from catenary_runtime.service import Service
from nats.aio.msg import Msg
from prometheus_client import REGISTRY

from catenary_kv_indexer.core.indexer import Indexer, Question
from catenary_kv_indexer.metrics import IndexMetrics
from catenary_kv_indexer.saved import SavedIndex
from catenary_kv_indexer.settings import KvIndexerSettings

log = structlog.get_logger()
_events: Decoder[KvEvents] = Decoder(KvEvents)
_query: Decoder[OverlapQuery] = Decoder(OverlapQuery)
_answer: Decoder[KvEvents | SnapshotPage] = Decoder(KvEvents | SnapshotPage)  # type: ignore[arg-type]
TIDY_STEPS = 8
"""Of a round: a millisecond at most."""
IDLE_S = 0.25
"""Between two rounds while nothing is left to wipe."""
QUEUE_GROUP = "kv-indexer"


class KvIndexer(Service[KvIndexerSettings]):
    """Mirrors which worker holds which KV block and answers overlap queries."""

    name = "kv-indexer"
    section = "kv_indexer"
    package = "catenary-kv-indexer"
    watches = ("worker",)

    async def start(self) -> None:
        """Listen to events and beats; answer once warm."""
        self._loop = asyncio.get_running_loop()
        self._indexer = Indexer(self._loop.time())
        self._saved = SavedIndex(self.settings.data_dir, self.settings.instance)
        if (before := self._saved.take()) is not None:
            self._indexer.restore(before)
            log.info("index.restored", blocks=before.blocks, links=len(before.links))
        self._asks: dict[tuple[str, int], Ask] = {}
        self._mute: set[str] = set()
        self._metrics = IndexMetrics(self._indexer, self._loop.time)
        REGISTRY.register(self._metrics)
        self._serving = False
        self.health.checks["index"] = lambda: (self._serving, "warm" if self._serving else "asking workers")
        self.presence.listen(Listener(on_beat=self._on_load, on_down=self._on_down))
        await self.bus.subscribe(self.subjects.to("kv"), self._on_events)
        self.spawn(self._rounds(), "rounds")

    async def stop(self) -> None:
        """Keep what is held: workers could tell it again, but need not."""
        self._saved.write(self._indexer.dump())
        REGISTRY.unregister(self._metrics)

    # --- in -----------------------------------------------------------------------------------------------------

    def _on_events(self, msg: Msg) -> None:
        message = _events(msg.data)
        self._indexer.events(message)
        self._pump(message.worker)

    def _on_load(self, peer: Peer) -> None:
        if isinstance(peer.beat, WorkerLoad):
            self._indexer.load(peer.beat, self._loop.time())
            self._pump(peer.instance)

    def _on_down(self, peer: Peer) -> None:
        if peer.service == "worker":
            self._indexer.gone(peer.instance, peer.incarnation)

    def _on_query(self, msg: Msg) -> None:
        began = time.time()
        query = _query(msg.data)
        overlap = self._indexer.overlap(query)
        self.bus.publish(msg.reply, encode(overlap))
        if (parent := telemetry.extract(msg.headers)) is not None:
            best = max((one.blocks for one in overlap.workers), default=0)
            attributes = {semconv.BLOCKS: len(query.hashes) // 8, semconv.OVERLAP_BLOCKS: best}
            telemetry.record("overlap", parent, began, time.time(), attributes)

    # --- asking workers -----------------------------------------------------------------------------------------

    def _pump(self, worker: str | None = None) -> None:
        for question in self._indexer.questions(self._loop.time(), worker):
            self._ask(question)

    def _ask(self, question: Question) -> None:
        link = (question.worker, question.query.rank)
        if (before := self._asks.pop(link, None)) is not None:
            before.close()

        def replied(msg: Msg) -> None:
            self._asks.pop(link).close()
            self._indexer.answered(question, _answer(msg.data), self._loop.time())
            self._pump(question.worker)

        def nobody() -> None:
            self._asks.pop(link).close()
            self._indexer.answered(question, None, self._loop.time())

        subject = self.subjects.to("snapshot", worker=question.worker)
        self._asks[link] = self.bus.ask(subject, encode(question.query), replied, nobody)

    # --- its own pace -------------------------------------------------------------------------------------------

    async def _rounds(self) -> None:
        busy = True
        while True:
            await asyncio.sleep(self.settings.round_s if busy else IDLE_S)
            if not self._serving and self._indexer.warm(self._loop.time()):
                await self._serve()
            busy = self._indexer.tidy(TIDY_STEPS) or not self._serving
            self._pump()
            mute = set(self._indexer.mute(self._loop.time()))
            for worker in mute - self._mute:
                log.warning("worker.mute", worker=worker, why="it serves turns but has sent no KV event")
            self._mute = mute

    async def _serve(self) -> None:
        self._indexer.forget_unheard()
        group = self.subjects.queue_group(QUEUE_GROUP)
        await self.bus.subscribe(self.subjects.to("overlap"), self._on_query, queue=group)
        self._serving = True
        self.presence.beat_soon()
