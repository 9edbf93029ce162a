"""The simulator's own settings: `sim = { … }` of a model in `catenary.toml`."""

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from catenary_protocols.errors import RequestError

from catenary_worker.engines.paged import Limits
from catenary_worker.engines.sim.timing import PRESETS, Timing, jittered

_Count = Annotated[int, msgspec.Meta(ge=1)]
_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class SimSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a simulated engine is like.

    Attributes:
        preset: a name in `timing.PRESETS`.
        time_scale: 1 real time, 0 as fast as the machine goes.
        blocks, block_size, max_batch, max_batched_tokens, max_waiting, watermark: see `Limits`.
        jitter: relative spread of step times.
        seed: of the jitter.
        role: `full`, or one half of a split engine: `prefill` computes prompts, `decode` goes on from them.
        scripts: whether tests may tell it what to say; it then also remembers what it was asked.
    """

    preset: str = "dynamo"
    time_scale: Annotated[float, msgspec.Meta(ge=0)] = 1.0
    blocks: _Count = 8192
    block_size: _Count = 16
    max_batch: _Count = 256
    max_batched_tokens: _Count = 8192
    max_waiting: _Count = 4096
    watermark: _Share = 0.01
    jitter: _Share = 0.0
    seed: int = 0
    role: Literal["full", "prefill", "decode"] = "full"
    scripts: bool = False

    @classmethod
    def read(cls, options: Mapping[str, object]) -> "SimSettings":
        """From configuration. Raises `RequestError` that names the wrong key."""
        try:
            settings = msgspec.convert(options, cls)
        except msgspec.ValidationError as error:
            _, _, path = str(error).partition("`$.")
            field = f"sim.{path.rstrip('`')}" if path else "sim"
            raise RequestError(f"sim: {error}", code="invalid_value", field=field) from error
        if settings.preset not in PRESETS:
            message = f"unknown preset {settings.preset!r}; known: {', '.join(PRESETS)}"
            raise RequestError(message, code="invalid_value", field="sim.preset")
        return settings

    @property
    def timing(self) -> Timing:
        """Seconds of a step."""
        timing = PRESETS[self.preset]
        return jittered(timing, self.jitter, self.seed) if self.jitter else timing

    def limits(self, context: int) -> Limits:
        """Size of the engine for a model of this context."""
        return Limits(
            blocks=self.blocks,
            block_size=self.block_size,
            context=context,
            max_batch=self.max_batch,
            max_batched_tokens=self.max_batched_tokens,
            max_waiting=self.max_waiting,
            watermark=self.watermark,
        )
