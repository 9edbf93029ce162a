"""What `/metrics` tells of the index, collected when somebody asks."""

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from catenary_kv_indexer.core.indexer import Indexer


class IndexMetrics(Collector):
    """Gauges and counters of one `Indexer`."""

    def __init__(self, indexer: Indexer, clock: Callable[[], float]) -> None:
        self._indexer = indexer
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        """The families, made anew at each scrape."""
        workers = self._indexer.workers.values()
        blocks = GaugeMetricFamily("catenary_kv_index_blocks", "Distinct blocks in the index", labels=["model"])
        for (model, _), index in self._indexer.indexes.items():
            blocks.add_metric([model], len(index))
        yield blocks
        yield GaugeMetricFamily("catenary_kv_index_workers", "Workers mirrored", value=len(workers))
        known = sum(worker.known for worker in workers)
        yield GaugeMetricFamily("catenary_kv_index_workers_known", "Workers mirrored for certain", value=known)
        mute = len(self._indexer.mute(self._clock()))
        yield GaugeMetricFamily("catenary_kv_index_workers_mute", "Workers that serve but send no events", value=mute)
        events = CounterMetricFamily("catenary_kv_index_events", "KV events by what became of them", labels=["result"])
        for result, count in self._indexer.counts.items():
            events.add_metric([result], count)
        yield events
