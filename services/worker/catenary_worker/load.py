"""The worker's beat: how busy it is, and when to say so early."""

import asyncio
import time

from catenary_protocols.bus.messages import WorkerLoad
from catenary_runtime.links import LinkSender
from catenary_runtime.presence import Presence

from catenary_worker import metrics
from catenary_worker.core.pace import Pace
from catenary_worker.core.turns import Turns
from catenary_worker.engines.base import EngineInfo, EngineLoad
from catenary_worker.kv_journal import KvJournal
from catenary_worker.runner import Runner
from catenary_worker.settings import WorkerSettings

EARLIEST_S = 0.05
"""Beats that tell of a change are at least this far apart."""


class Load:
    """Follows the engine's steps."""

    def __init__(
        self, presence: Presence, turns: Turns, links: LinkSender, runner: Runner, settings: WorkerSettings
    ) -> None:
        self.info: EngineInfo | None = None
        self.journal: KvJournal | None = None
        self._presence = presence
        self._turns = turns
        self._links = links
        self._runner = runner
        self._settings = settings
        self._pace = Pace()
        self._engine = EngineLoad()
        self._loop = asyncio.get_running_loop()
        self._told_at = 0.0
        self._told = (0, 0)
        self._timer: asyncio.TimerHandle | None = None

    def step(self, load: EngineLoad) -> None:
        """Note one step; a change in who runs is told soon."""
        self._engine = load
        self._pace.note(load)
        if load.step_ms:
            metrics.STEP.observe(load.step_ms / 1000)
        if (load.running, load.waiting) != self._told:
            self.changed()

    def changed(self) -> None:
        """Beat early, but not in a row."""
        if self._timer is None:
            wait = max(0.0, self._told_at + EARLIEST_S - self._loop.time())
            self._timer = self._loop.call_later(wait, self._tell)

    def _tell(self) -> None:
        self._timer = None
        self._presence.beat_soon()

    def beat(self, *, ready: bool) -> WorkerLoad:
        """What to tell now."""
        engine, info, journal, card = self._engine, self.info, self.journal, self._runner.card
        self._told_at, self._told = self._loop.time(), (engine.running, engine.waiting)
        total = info.total_blocks * info.ranks if info else 0
        metrics.TURNS.labels("running").set(engine.running)
        metrics.TURNS.labels("waiting").set(engine.waiting)
        metrics.TURNS.labels("kept").set(len(self._turns.here) - self._turns.running)
        metrics.KV_BLOCKS.labels("used").set(engine.used_blocks)
        metrics.KV_BLOCKS.labels("free").set(total - engine.used_blocks)
        return WorkerLoad(
            worker=self._presence.instance,
            incarnation=self._presence.incarnation,
            model=self._settings.model,
            card=card.card if card else "",
            block_size=info.block_size if info else 0,
            ready=ready,
            draining=self._runner.draining,
            running=engine.running,
            waiting=engine.waiting,
            waiting_prefill=engine.waiting_prefill_tokens + engine.prefilling_tokens,
            kv_used=engine.used_blocks,
            kv_total=total,
            max_batch=info.max_batch if info else 0,
            decode_ms=self._pace.decode_ms,
            prefill_tokens_per_s=self._pace.prefill_tokens_per_s,
            kv_last=journal.last if journal else (),
            kv_digest=journal.digest if journal else (),
            kv_events=info.events if info else "none",
            tails=self._links.tails(),
            turns=self._turns.live(),
            ended=self._turns.ended(),
            tags=self._settings.tags,
            halves=tuple(sorted(info.halves)) if info else (),
            sent_at=time.time(),
        )
