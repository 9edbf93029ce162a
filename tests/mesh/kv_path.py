"""The way of TensorRT-LLM's KV events without a bus: its adapter, the worker's journal, the index."""

from array import array
from collections.abc import Sequence

from catenary_kv_indexer.core.indexer import Indexer
from catenary_protocols.bus.codec import Decoder, encode
from catenary_protocols.bus.messages import KvEvents, OverlapQuery
from catenary_tokenizers import block_hashes
from catenary_worker.engines.trtllm.kv_events import KvTranslator
from catenary_worker.engines.trtllm.private import PrivateTurns
from catenary_worker.kv_journal import KvJournal

_decode = Decoder(KvEvents)


class KvPath:
    """One worker that serves model m, and a kv-indexer that hears it."""

    def __init__(self, block_size: int, ranks: int) -> None:
        self.private = PrivateTurns()
        self._size = block_size
        self._translator = KvTranslator(block_size, ranks, self.private)
        self._journal = KvJournal("w1", 1, "m", block_size, ranks=ranks)
        self._index = Indexer()

    def feed(self, events: Sequence[object]) -> None:
        """What the engine's API returned."""
        for message in self._journal.feed(self._translator.feed(events, 0.0)):
            self._index.events(_decode(encode(message)))

    def claimed(self, ids: Sequence[int]) -> int:
        """Leading blocks of a prompt that the index says the worker holds."""
        hashes = block_hashes(array("I", ids).tobytes(), self._size)
        answer = self._index.overlap(OverlapQuery(model="m", block_size=self._size, hashes=hashes))
        return max((one.blocks for one in answer.workers), default=0)

    @property
    def held(self) -> set[int]:
        """Sequence hashes of all blocks that the index says the worker holds."""
        return {one for link in self._index.dump().links for one in array("Q", link.hashes)}
