"""The adapter's own settings: `llamacpp = { … }` of a model in `catenary.toml`."""

import os
from collections.abc import Mapping
from typing import Annotated

import msgspec
from catenary_protocols.errors import RequestError

_Count = Annotated[int, msgspec.Meta(ge=1)]


class LlamaSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How llama.cpp is to run.

    Attributes:
        gguf: the model's file, where `path` is a model directory that does not hold exactly one.
        slots: turns that run together; each has a KV cache of `context` tokens of its own.
        threads: 0 leaves one core to everything else.
        gpu_layers: layers on a GPU, where the installed build has one; -1 takes as many as fit.
        batch: prompt tokens computed in one step; a turn is cancelled between two.
        block_size: tokens in a KV block, as the mesh counts them.
        max_waiting: turns that may wait for a slot.
    """

    gguf: str = ""
    slots: Annotated[int, msgspec.Meta(ge=1, le=64)] = 2
    threads: Annotated[int, msgspec.Meta(ge=0)] = 0
    gpu_layers: Annotated[int, msgspec.Meta(ge=-1)] = -1
    batch: Annotated[int, msgspec.Meta(ge=32)] = 256
    block_size: _Count = 16
    max_waiting: _Count = 256

    @classmethod
    def read(cls, options: Mapping[str, object]) -> "LlamaSettings":
        """From configuration. Raises `RequestError` that names the wrong key."""
        try:
            return msgspec.convert(options, cls)
        except msgspec.ValidationError as error:
            _, _, path = str(error).partition("`$.")
            field = f"llamacpp.{path.rstrip('`')}" if path else "llamacpp"
            raise RequestError(f"llamacpp: {error}", code="invalid_value", field=field) from error

    @property
    def all_threads(self) -> int:
        """Threads that compute."""
        return self.threads or max(1, (os.cpu_count() or 2) - 1)
