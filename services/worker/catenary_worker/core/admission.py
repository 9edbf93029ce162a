"""A `RunTurn` to what the engine takes.

Rule: what this worker cannot run is refused before the engine hears of it, and the error names the field.
"""

from array import array

from catenary_protocols.bus.messages import RunTurn
from catenary_protocols.conversation import Hints
from catenary_protocols.errors import CapacityError, RequestError

from catenary_worker.core.turns import ID_BYTES
from catenary_worker.engines.base import EngineTurn, Half, Penalties, Retention

STRICT_STEP = 1 << 20
"""Strict priorities sort before ordinary ones: one step is more than any ordinary priority."""
WHOLE: frozenset[Half] = frozenset({"whole"})


def check_names(run: RunTurn) -> None:
    """Raises `RequestError` for a turn that nobody could own or hear of."""
    if not run.turn.turn_id or run.turn.attempt < 0:
        raise RequestError("turn needs an id and an attempt from 0", code="invalid_value", field="turn")
    if not run.tokenizer:
        raise RequestError("tokenizer is empty: nobody could get the tokens", code="invalid_value", field="tokenizer")


def engine_turn(run: RunTurn, *, model: str, card: str, halves: frozenset[Half] = WHOLE) -> EngineTurn:
    """Raises `RequestError` for what can never run here, `CapacityError` for another version of the model."""
    if run.model != model:
        raise RequestError(f"this worker serves {model}, not {run.model}", code="model_not_found", field="model")
    if run.card != card:
        raise CapacityError(f"this worker has another version of {model}", code="no_worker")
    if run.half not in halves:
        raise RequestError(f"this worker does not do the {run.half} half of a turn", code="unsupported", field="half")
    if bool(run.handoff) != (run.half == "decode"):
        raise RequestError("the decode half, and no other, has a handoff", code="invalid_value", field="handoff")
    sampling = run.sampling
    options: dict[str, object] = {}
    if run.guide:
        options["structural_tag"] = run.guide
    if run.images:
        if len(run.image_at) != len(run.images) or not all(
            0 <= at < len(run.prompt) // ID_BYTES for at in run.image_at
        ):
            raise RequestError("each image has its place in the prompt", code="invalid_value", field="image_at")
        options["images"], options["image_at"] = run.images, run.image_at
    if run.lora:
        options["lora"] = run.lora
    if sampling.logprobs is not None:
        options["logprobs"] = sampling.logprobs
    return EngineTurn(
        turn_id=run.turn.turn_id,
        attempt=run.turn.attempt,
        prompt=_ids(run.prompt, "prompt"),
        generated=_ids(run.generated, "generated"),
        max_tokens=sampling.max_tokens,
        min_tokens=sampling.min_tokens,
        ignore_eos=sampling.ignore_eos,
        stop_token_ids=run.stop_token_ids,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        seed=sampling.seed,
        penalties=Penalties(sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty),
        logit_bias=sampling.logit_bias,
        priority=_priority(run.hints),
        salt=run.salt,
        retention=Retention(run.retention.priority, run.retention.seconds),
        session=run.session,
        deadline=run.deadline,
        half=run.half,
        handoff=run.handoff,
        options=options,
        hashes=run.hashes,
    )


def _ids(packed: bytes, field: str) -> "array[int]":
    if len(packed) % ID_BYTES:
        raise RequestError(f"{field} is not a whole number of u32 token ids", code="invalid_value", field=field)
    return array("I", packed)


def _priority(hints: Hints) -> int:
    return hints.strict_priority * STRICT_STEP + hints.priority
