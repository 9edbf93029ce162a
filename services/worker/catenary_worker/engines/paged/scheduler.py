"""Which sequences compute how many ids in the next step.

Rules
- Decode first, then prefill in chunks of what the token budget leaves, then admission: by priority, then by arrival.
- A sequence is admitted when the blocks of all its ids are there and `watermark` blocks stay free (or nothing runs);
  it takes them at once, so that only decode ever needs more.
- When decode finds no block, the sequence that goes last (lowest priority, then newest) gives all of its back and
  queues again in its old place: its blocks stay cached until they are needed.
"""

from bisect import insort
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from catenary_worker.engines.paged.blocks import BlockPool
from catenary_worker.engines.paged.executor import Batch
from catenary_worker.engines.paged.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Limits:
    """Size of a paged engine.

    Attributes:
        blocks: KV blocks.
        block_size: ids in a block.
        context: ids a turn may have in all; never more than the pool holds.
        max_batch: sequences that run together.
        max_batched_tokens: ids computed in one step.
        max_waiting: sequences in the queue.
        watermark: share of the pool that admission leaves free.
    """

    blocks: int = 8192
    block_size: int = 16
    context: int = 131_072
    max_batch: int = 256
    max_batched_tokens: int = 8192
    max_waiting: int = 4096
    watermark: float = 0.01


class Scheduler:
    """The queue and the running batch."""

    def __init__(self, limits: Limits, pool: BlockPool) -> None:
        self.running: list[Sequence] = []  # sorted: the last one is preempted first
        self.waiting_tokens = 0
        self.waiting_count = 0
        self.preemptions = 0
        self._limits = limits
        self._pool = pool
        self._waiting: list[Sequence] = []
        self._withdrawn: set[Sequence] = set()
        self._reserve = int(limits.watermark * limits.blocks)

    def enqueue(self, sequence: Sequence) -> None:
        """It waits from now on."""
        heappush(self._waiting, sequence)
        self.waiting_count += 1
        self.waiting_tokens += len(sequence.ids)

    def remove(self, sequence: Sequence) -> None:
        """It neither waits nor runs any more; its blocks are its owner's to release."""
        if sequence.running:
            self.running.remove(sequence)
            sequence.running = False
        else:
            self._withdrawn.add(sequence)
            self._leave_queue(sequence)
            if len(self._withdrawn) > self.waiting_count:
                self._waiting = [waiting for waiting in self._waiting if waiting not in self._withdrawn]
                heapify(self._waiting)
                self._withdrawn.clear()

    def plan(self) -> tuple[Batch, list[Sequence]]:
        """The next batch, and those admitted with it."""
        limits = self._limits
        batch = Batch(total_tokens=limits.blocks * limits.block_size)
        preempted = self.preemptions
        budget = limits.max_batched_tokens
        prefilling: list[Sequence] = []
        running, sampling, block_size = self.running, batch.sampling, limits.block_size
        at = held = 0
        while at < len(running) and budget:
            sequence = running[at]
            at += 1
            if sequence.prefilling:
                prefilling.append(sequence)
                continue
            length = len(sequence.ids)
            count = length - sequence.computed
            if length > len(sequence.blocks) * block_size and not self._grow(sequence, length):
                continue
            if count > budget:
                prefilling.append(sequence)
                continue
            sequence.scheduled = count
            budget -= count
            held += length
            sampling.append(sequence)
        batch.decode_rows, batch.decode_tokens = len(sampling), held
        for sequence in prefilling:
            if budget:
                budget -= self._chunk(sequence, batch, budget)
        admitted = []
        while budget and self.preemptions == preempted:
            fresh = self._admit()
            if fresh is None:
                break
            budget -= self._chunk(fresh, batch, budget)
            admitted.append(fresh)
        return batch, admitted

    def _chunk(self, sequence: Sequence, batch: Batch, budget: int) -> int:
        pending = sequence.pending
        count = min(pending, budget)
        sequence.scheduled = count
        (batch.sampling if count == pending else batch.partial).append(sequence)
        batch.prefill_tokens += count
        batch.prefill_context += count * sequence.computed + count * (count - 1) // 2
        return count

    def _admit(self) -> Sequence | None:
        limits, pool = self._limits, self._pool
        while self._waiting and self._waiting[0] in self._withdrawn:
            self._withdrawn.discard(heappop(self._waiting))
        if not self._waiting or len(self.running) >= limits.max_batch:
            return None
        sequence = self._waiting[0]
        found = pool.find(sequence.hashes, sequence.reusable)
        missing = -(-len(sequence.ids) // limits.block_size) - len(found)
        left = pool.available - pool.unheld(found) - missing
        if left < (self._reserve if self.running else 0):
            return None
        heappop(self._waiting)
        self._leave_queue(sequence)
        pool.hold(found)
        taken = pool.take(missing)
        assert taken is not None  # noqa: S101 - `left` counted them
        sequence.restart(found + taken, len(found))
        if sequence.turn.half == "decode" and not sequence.admitted:
            sequence.computed = len(sequence.ids) - 1  # fetched, not computed
        sequence.running = True
        insort(self.running, sequence)
        return sequence

    def _leave_queue(self, sequence: Sequence) -> None:
        self.waiting_count -= 1
        self.waiting_tokens -= len(sequence.ids)

    def _grow(self, sequence: Sequence, length: int) -> bool:
        missing = -(-length // self._limits.block_size) - len(sequence.blocks)
        while (taken := self._pool.take(missing)) is None:
            victim = self.running.pop()
            self._preempt(victim)
            if victim is sequence:
                return False
        sequence.blocks += taken
        return True

    def _preempt(self, sequence: Sequence) -> None:
        sequence.running = False
        self.preemptions += 1
        self._pool.release(sequence.blocks)
        sequence.restart([], 0)
        self.enqueue(sequence)
