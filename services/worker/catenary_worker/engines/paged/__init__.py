"""A paged engine in three parts: a scheduler, a block pool, and an executor that can be timed or real."""

from catenary_worker.engines.paged.blocks import BlockPool
from catenary_worker.engines.paged.core import PagedCore
from catenary_worker.engines.paged.executor import Batch, Ended, Executed, Executor
from catenary_worker.engines.paged.scheduler import Limits
from catenary_worker.engines.paged.sequence import Sequence

__all__ = ["Batch", "BlockPool", "Ended", "Executed", "Executor", "Limits", "PagedCore", "Sequence"]
