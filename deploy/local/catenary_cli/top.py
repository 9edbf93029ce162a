"""`catenary top`: the workers and what they do, from beats and facts on the bus; nobody is asked anything."""

import argparse
import asyncio
import sys
import time
from collections import Counter
from collections.abc import Iterator

import msgspec
from catenary_protocols.bus.codec import Decoder
from catenary_protocols.bus.messages import Beat, WorkerLoad
from catenary_protocols.bus.tool_plane import TurnFact
from nats.aio.msg import Msg

from catenary_cli.target import Target, add_target, target
from catenary_cli.welcome import columns

ABOUT = "Show workers, turns, tokens a second, KV cache and queue, live."
EXAMPLE = "catenary top --once -o json"
HEADER = ("worker", "model", "state", "turns", "waiting", "tok/s", "KV used", "cached", "step")
CLEAR = "\033[H\033[2J"
_decode_load, _decode_beat = Decoder(WorkerLoad), Decoder(Beat)
_decode_fact = Decoder(TurnFact, json=True)


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    """One worker over one interval.

    Attributes:
        tokens_per_s: generated, as its beats tell; what a turn generates after its last beat is not in it.
        kv_used: share of its blocks that turns hold.
        cached: share of the prompts that began, found in its KV cache; None when none began.
        step_ms: one decoding step, as its engine measured it lately.
    """

    worker: str
    model: str
    state: str
    running: int
    waiting: int
    tokens_per_s: float
    kv_used: float
    cached: float | None
    step_ms: float


class View(msgspec.Struct, frozen=True, kw_only=True):
    """The mesh over one interval.

    Attributes:
        services: live instances of each kind.
        turns: that tokenizers own and that have not ended.
        unplaced: of these, those that no worker has had: being prepared, or in a router's queue.
        ended: turns that ended, by outcome.
    """

    at: float
    services: dict[str, int]
    turns: int
    unplaced: int
    tokens_per_s: float
    ended: dict[str, int]
    workers: list[Worker]


def add(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    parser.add_argument("--once", action="store_true", help="show one interval and end; exit code 1 without a worker")
    parser.add_argument("--interval-s", type=float, default=1.0, help="seconds of an interval (1)")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="how to print (table)")
    add_target(parser)


def run(args: argparse.Namespace) -> int:
    """Watch until Ctrl-C."""
    return asyncio.run(_top(target(args), args))


class Watch:
    """What was heard in one interval."""

    def __init__(self) -> None:
        self._loads: dict[str, WorkerLoad] = {}
        self._beats: dict[tuple[str, str], Beat] = {}
        self._offsets: dict[tuple[str, str, int], int] = {}
        self._tokens: Counter[str] = Counter()
        self._began: dict[str, list[TurnFact]] = {}
        self._ended: Counter[str] = Counter()

    async def on_load(self, msg: Msg) -> None:
        """A worker's beat."""
        load = _decode_load(msg.data)
        first = load.worker not in self._loads
        for turn in load.turns:
            key = (load.worker, turn.turn_id, turn.attempt)
            before = self._offsets.get(key, turn.offset if first else 0)
            self._tokens[load.worker] += max(0, turn.offset - before)
            self._offsets[key] = turn.offset
        self._loads[load.worker] = load

    async def on_beat(self, msg: Msg) -> None:
        """Another service's."""
        beat = _decode_beat(msg.data)
        self._beats[beat.service, beat.instance] = beat

    async def on_fact(self, msg: Msg) -> None:
        """A turn began or ended."""
        fact = _decode_fact(msg.data)
        if fact.what == "started":
            self._began.setdefault(fact.worker, []).append(fact)
        elif fact.what in {"finished", "failed", "cancelled"}:
            self._ended[fact.what if fact.what != "failed" else fact.code] += 1

    def view(self, seconds: float) -> View:
        """All of it; then a new interval begins."""
        services = Counter(service for service, _ in self._beats)
        services["worker"] = len(self._loads)
        owned = [turn for (service, _), beat in self._beats.items() if service == "tokenizer" for turn in beat.turns]
        # An ended turn stands in beats as long as its client may come back: without a worker, as one that waits does.
        unplaced = sum(not (turn.at or turn.offset or turn.events > 1) for turn in owned)
        seen = View(
            at=time.time(),
            services=dict(sorted(services.items())),
            turns=unplaced + sum(bool(turn.at) for turn in owned),
            unplaced=unplaced,
            tokens_per_s=round(self._tokens.total() / seconds, 1),
            ended=dict(self._ended),
            workers=[self._worker(load, seconds) for _, load in sorted(self._loads.items())],
        )
        for heard in (self._beats, self._tokens, self._began, self._ended):
            heard.clear()
        live = {(worker, one.turn_id, one.attempt) for worker, load in self._loads.items() for one in load.turns}
        self._offsets = {key: offset for key, offset in self._offsets.items() if key in live}
        return seen

    def forget_silent(self, before: float) -> None:
        """Drop the workers that were last heard before this Unix time, as their clock tells."""
        self._loads = {name: load for name, load in self._loads.items() if load.sent_at >= before}

    def _worker(self, load: WorkerLoad, seconds: float) -> Worker:
        began = self._began.get(load.worker, [])
        prompts = sum(fact.prompt_tokens for fact in began)
        return Worker(
            worker=load.worker,
            model=load.model,
            state="draining" if load.draining else "ready" if load.ready else "not ready",
            running=load.running,
            waiting=load.waiting,
            tokens_per_s=round(self._tokens[load.worker] / seconds, 1),
            kv_used=round(load.kv_used / load.kv_total, 4) if load.kv_total else 0.0,
            cached=round(sum(fact.cached_tokens for fact in began) / prompts, 4) if prompts else None,
            step_ms=load.decode_ms,
        )


async def _top(mesh: Target, args: argparse.Namespace) -> int:
    watch = Watch()
    nc = await mesh.connect("catenary-top")
    try:
        for channel, hear in (("load", watch.on_load), ("beat", watch.on_beat), ("observe", watch.on_fact)):
            await nc.subscribe(mesh.subjects.to(channel), cb=hear)
        while True:
            await asyncio.sleep(args.interval_s)
            seen = watch.view(args.interval_s)
            if args.output == "json":
                print(msgspec.json.encode(seen).decode(), flush=True)
            else:
                print(f"{CLEAR if sys.stdout.isatty() and not args.once else ''}{_shown(seen)}", flush=True)
            if args.once:
                return 0 if seen.workers else 1
            watch.forget_silent(seen.at - max(args.interval_s, mesh.options.common.death_limit_s))
    finally:
        await nc.close()


def _shown(view: View) -> str:
    services = ", ".join(f"{count} {name}" for name, count in view.services.items() if count)
    ended = ", ".join(f"{count} {what}" for what, count in sorted(view.ended.items())) or "none"
    head = (
        f"{time.strftime('%H:%M:%S', time.localtime(view.at))}  {services or 'nobody is heard'}",
        f"{view.turns} turns, {view.unplaced} not placed; {view.tokens_per_s:,.0f} tokens/s; ended: {ended}",
    )
    return "\n".join([*head, "", *columns([HEADER, *_rows(view)], indent=""), ""])


def _rows(view: View) -> Iterator[tuple[str, ...]]:
    for one in view.workers:
        yield (
            one.worker,
            one.model,
            one.state,
            str(one.running),
            str(one.waiting),
            f"{one.tokens_per_s:,.0f}",
            f"{one.kv_used:.0%}",
            "-" if one.cached is None else f"{one.cached:.0%}",
            f"{one.step_ms:.1f} ms",
        )
