"""Prefill on one simulator, decode on another: the handle that travels between them names the prompt.

Rule: a handle is good for its own prompt alone, as blocks that are fetched are good for nothing else.
"""

from collections.abc import Mapping

import msgspec
from catenary_protocols.errors import RequestError
from catenary_tokenizers.blocks import block_hashes

from catenary_worker.engines.base import Delta, EngineTurn, Half

HALVES: Mapping[str, frozenset[Half]] = {
    "full": frozenset({"whole"}),
    "prefill": frozenset({"prefill"}),
    "decode": frozenset({"decode", "whole"}),
}
"""What a role takes; a decoding engine can do a whole turn where nobody prefills."""


class Handle(msgspec.Struct, frozen=True):
    """Stands for the blocks of a prompt: `tokens` of them, which hash to `digest`."""

    tokens: int
    digest: int


def handle_of(turn: EngineTurn) -> bytes:
    """What the prefill half of this turn ends with."""
    ids = turn.prompt + turn.generated
    (digest,) = memoryview(block_hashes(ids.tobytes(), len(ids), salt=turn.salt)).cast("Q")
    return msgspec.json.encode(Handle(len(ids), digest))


def check_handle(turn: EngineTurn) -> None:
    """Raises `RequestError` for a decode half with a handle that is none, or is another prompt's."""
    if turn.half != "decode" or (turn.prompt and turn.handoff == handle_of(turn)):
        return
    raise RequestError("the handoff is not of this prompt", code="invalid_value", field="handoff")


def handed_over(delta: Delta, turn: EngineTurn) -> Delta:
    """The end of a prefill half, which computed the prompt and said nothing."""
    return msgspec.structs.replace(delta, finish="handoff", handoff=handle_of(turn))
