"""What the worker knows of an engine: ids in, steps out.

    start ──▶ submit* / cancel* ──▶ drain ──▶ stop
                    │
                  steps ──▶ Step(deltas, kv, load), one per engine iteration

An engine runs turns it is given as token ids and says, step by step, what became ready together. It knows no bus, no
text and no tools. Rules every engine keeps (`engines.contract.EngineContract` checks them):

- A turn that `submit` took ends with exactly one delta whose `finish` is set, whatever happens to it; one that `submit`
  refused (by raising) is never heard of again.
- `Delta.offset` counts from the turn's original prompt: the first token of a moved turn has offset `len(generated)`;
  offsets have no holes. `max_tokens`, `min_tokens` and penalties count from the original prompt too.
- The first delta of an attempt that came to run, and no other, carries `started`; at least the last prompt token is
  computed, so `cached_tokens` is less than the prompt's length.
- A stop token that ended a turn is the last of its tokens, with `stop_token` set.
- The `prefill` half of a turn tells no token; it ends with finish "handoff" and a `handoff`, with which an engine that
  does the `decode` half goes on as if it had computed the prompt itself. Engines are asked for halves they list alone.
- KV events are in order and complete (`exact`), or derived by the adapter (`mirror`), or absent (`none`). A block is
  named by the engine's own hash; events of an engine whose `hashes` are `sequence` name it by the mesh's sequence hash.
"""

from array import array
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import msgspec
from catenary_protocols.conversation import TokenLogprob
from catenary_protocols.errors import ErrorInfo, RequestError
from catenary_protocols.ids import TurnKey

GROUP = "catenary.engines"
"""Entry-point group: name → `EngineFactory`."""

Finish = Literal["stop", "length", "cancelled", "error", "handoff"]
Half = Literal["whole", "prefill", "decode"]


def no_ids() -> "array[int]":
    """An empty array of token ids (`u32`)."""
    return array("I")


@dataclass(frozen=True, slots=True)
class EngineSetup:
    """What an engine is made from.

    Attributes:
        directory: the model directory.
        file: the one file that the model was given as, where it was.
        parser: format name of catenary-parsers in which the model writes its calls.
        reasoning: format name of its reasoning; "auto" is the format's own.
        context: tokens a turn may have in all; 0 leaves it to the model.
        options: the engine's own settings, as `[[models]]` gives them.
        on_phase: called with what `start` is doing, for `/ready`; from the event loop.
    """

    directory: Path
    parser: str = "hermes"
    reasoning: str = "auto"
    context: int = 0
    options: Mapping[str, object] = field(default_factory=dict)
    on_phase: Callable[[str], None] = lambda _: None
    file: Path | None = None


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What a started engine offers.

    Attributes:
        model_context: tokens (prompt and generated) a turn may have here.
        block_size: tokens in a KV block.
        total_blocks: KV blocks of one rank.
        max_batch: turns that run together.
        max_batched_tokens: tokens computed in one step.
        features: what it can do of: cancel, guide, images, logprobs, lora, priority, retention, salt.
        events: how far its KV events can be believed.
        ranks: KV caches that number their events apart.
        halves: what of a turn it takes.
        hashes: whether its KV events name blocks by the mesh's sequence hash or by a hash of its own.
    """

    model_context: int
    block_size: int
    total_blocks: int
    max_batch: int
    max_batched_tokens: int
    features: frozenset[str]
    events: Literal["exact", "mirror", "none"]
    ranks: int = 1
    hashes: Literal["sequence", "own"] = "own"
    halves: frozenset[Half] = frozenset({"whole"})


@dataclass(frozen=True, slots=True)
class Penalties:
    """How repeated tokens lose weight; the defaults leave them alone."""

    presence: float = 0.0
    frequency: float = 0.0
    repetition: float = 1.0


@dataclass(frozen=True, slots=True)
class Retention:
    """How long a turn's blocks are kept ahead of others once it ended.

    Attributes:
        priority: blocks of lower priority are evicted first; 0 is ordinary, below it they are given up: they go first.
        seconds: after which a priority above 0 falls back to it.
    """

    priority: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class EngineTurn:
    """One attempt of a turn.

    Attributes:
        prompt: token ids (`u32`) of the original prompt.
        hashes: sequence hashes of the prompt's whole blocks (`u64`), where they are known.
        generated: ids an earlier attempt already generated; this one goes on after them.
        max_tokens: generated tokens in all, counted from the original prompt; None: up to the context.
        min_tokens: generated tokens before a stop token counts.
        ignore_eos: the model's own end of sequence does not end the turn.
        stop_token_ids: these end the turn, beside the model's own.
        priority: greater goes first.
        salt: keeps KV caches apart; part of every block hash.
        session: conversation it belongs to, by which `Retaining` engines know its blocks; "": none.
        deadline: Unix time after which the turn is cancelled; 0: none.
        half: what of it is to be done here.
        handoff: for the decode half, what the prefill half ended with.
        options: what only some engines can use: `json_schema`, `structural_tag`, `tool_choice`, `parallel_calls`,
            `images` and `image_at` (where their marks are in the prompt), `logprobs` (how many alternatives of each
            token are told), `lora`.
    """

    turn_id: str
    prompt: "array[int]"
    attempt: int = 0
    generated: "array[int]" = field(default_factory=no_ids)
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    penalties: Penalties = Penalties()
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    priority: int = 0
    salt: str = ""
    retention: Retention = Retention()
    session: str = ""
    deadline: float = 0.0
    half: Half = "whole"
    handoff: bytes = b""
    options: Mapping[str, object] = field(default_factory=dict)
    hashes: bytes = b""

    @property
    def key(self) -> TurnKey:
        """Turn and attempt."""
        return TurnKey(turn_id=self.turn_id, attempt=self.attempt)


class Started(msgspec.Struct, frozen=True, gc=False):
    """An attempt left the queue: prompt tokens the engine reused, and seconds it waited."""

    cached_tokens: int
    queued_s: float = 0.0


class Delta(msgspec.Struct, frozen=True, gc=False):
    """What one turn got in one step. A struct, not a dataclass: one is made per token, ten times cheaper.

    Attributes:
        offset: index of the first of `tokens` among all tokens generated since the original prompt.
        finish: None while the turn goes on.
        error: why, for finish "error" (`engine_failed`) and for "cancelled" by the deadline (`deadline_exceeded`).
        stop_token: the last of `tokens` ended the turn.
        logprobs: of each of `tokens`, None where the engine does not know; empty for a turn that does not ask.
        handoff: for finish "handoff", what the decode half needs; only engines of one kind understand it.
    """

    turn_id: str
    attempt: int
    offset: int
    tokens: tuple[int, ...]
    started: Started | None = None
    finish: Finish | None = None
    error: ErrorInfo | None = None
    stop_token: bool = False
    logprobs: tuple[TokenLogprob | None, ...] = ()
    handoff: bytes = b""


@dataclass(frozen=True, slots=True)
class Stored:
    """Full blocks now held, each the child of the one before.

    Attributes:
        parent: engine hash of the block before the first; None at the start of a prompt.
        hashes: engine hashes.
        tokens: ids (`u32`) of all blocks, `block_size` each.
        salt: of the turn that computed them.
        lora: adapter of that turn.
        images: ids of the images whose placeholder tokens stand in each block; blocks past its end have none.
    """

    parent: int | None
    hashes: tuple[int, ...]
    tokens: "array[int]"
    salt: str = ""
    rank: int = 0
    lora: str = ""
    images: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Removed:
    """Blocks no longer held."""

    hashes: tuple[int, ...]
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Cleared:
    """Nothing is held any more; also sent when the engine lost track of its own events."""

    rank: int = 0


KvEvent = Stored | Removed | Cleared


class EngineLoad(msgspec.Struct, frozen=True, gc=False):
    """How busy an engine is after a step.

    Attributes:
        waiting_prefill_tokens: tokens of queued turns still to be computed.
        prefilling_tokens: the same of running turns.
        decode_tokens: KV tokens that turns in decode hold.
        used_blocks: blocks held by running turns; cached but unused blocks do not count.
        step_ms: what the step took.
        prefilled_tokens: prompt tokens the step computed.
    """

    running: int = 0
    waiting: int = 0
    waiting_prefill_tokens: int = 0
    prefilling_tokens: int = 0
    decode_tokens: int = 0
    used_blocks: int = 0
    total_blocks: int = 0
    step_ms: float = 0.0
    prefilled_tokens: int = 0


class Step(msgspec.Struct, frozen=True, gc=False):
    """What became ready together. A turn has at most one delta in it."""

    deltas: list[Delta]
    kv: list[KvEvent]
    load: EngineLoad


class Engine(Protocol):
    """An engine behind a worker. All methods are called from one event loop."""

    async def start(self) -> EngineInfo:
        """Load what must be loaded; returns when turns may come. Raises `EngineError`."""

    def submit(self, run: EngineTurn) -> None:
        """Take a turn. Raises `RequestError` (it can never run here) or `CapacityError` (not now) at once."""

    def cancel(self, turn: TurnKey) -> None:
        """End a turn with finish "cancelled"; nothing happens if it is not here (any more)."""

    def steps(self) -> AsyncIterator[Step]:
        """Every step, for one reader; ends after `stop`. Raises `EngineError` when the engine is broken for good."""

    async def drain(self, deadline: float) -> None:
        """Take no new turns, and return when all have ended; at `deadline` (Unix time) the rest is cancelled.

        Somebody must go on reading `steps`.
        """

    async def stop(self) -> None:
        """Give back everything; turns that still run are cancelled. May be called twice."""


@runtime_checkable
class Retaining(Protocol):
    """An engine that can be told after a turn how long its session's blocks are worth keeping."""

    def retain(self, session: str, retention: Retention) -> None:
        """Keep what the session's last turn left so long, whatever that turn itself said."""


EngineFactory = Callable[[EngineSetup], Engine]
"""Called in a thread, since it may read a tokenizer; what takes minutes belongs into `start`."""


def engine_for(kind: str) -> EngineFactory:
    """The factory registered under this name. Raises `RequestError` (field `engine`) that lists the known ones."""
    found = {point.name: point for point in entry_points(group=GROUP)}
    if kind not in found:
        known = ", ".join(sorted(found)) or "none"
        raise RequestError(f"unknown engine {kind!r}; installed: {known}", code="unsupported", field="engine")
    factory: EngineFactory = found[kind].load()
    return factory
