"""A turn to the body of llama.cpp's `/completion`. Each value it would fill in by itself is said."""

from catenary_protocols.errors import RequestError

from catenary_worker.engines.again import seed_of
from catenary_worker.engines.base import EngineTurn
from catenary_worker.engines.llamacpp.grammar import Grammars
from catenary_worker.engines.llamacpp.running import Running

FEATURES = frozenset({"cancel", "guide", "logprobs", "priority", "retention", "salt"})
_RANDOM = 0xFFFFFFFF
"""With this seed it takes one of its own, and a turn that is run again would say something else."""
_REFUSED = ("images", "lora")


def guide_of(turn: EngineTurn, grammars: Grammars) -> str:
    """The turn's grammar, "" for none. Raises `RequestError` for what this engine cannot do."""
    options = turn.options
    for name in _REFUSED:
        if options.get(name):
            raise RequestError(f"llama.cpp does not offer {name} here", code="unsupported", field=name)
    tag, schema = options.get("structural_tag"), options.get("json_schema")
    if not tag and not schema:
        return ""
    if tag and schema:
        raise RequestError("a turn has one guide", code="invalid_value", field="guide")
    if turn.min_tokens:
        raise RequestError("a constrained turn ends where its grammar does", code="unsupported", field="min_tokens")
    return grammars.of_tag(tag) if tag else grammars.of_schema(schema)


def body(one: Running) -> dict[str, object]:
    """What is sent for a turn that has its slot."""
    turn, penalties = one.turn, one.turn.penalties
    until, ends = one.part()
    request: dict[str, object] = {
        "prompt": one.ids.tolist(),
        "id_slot": one.slot.number if one.slot is not None else -1,
        "cache_prompt": one.reuses,
        "n_predict": max(1, until - len(one.ids)),
        "stream": True,
        "return_tokens": True,
        "return_progress": True,
        "ignore_eos": not ends,
        "temperature": 1.0 if turn.temperature is None else turn.temperature,
        "top_p": 1.0 if turn.top_p is None else turn.top_p,
        "top_k": max(0, turn.top_k or 0),
        "min_p": turn.min_p or 0.0,
        "seed": (seed_of(turn.turn_id) if turn.seed is None else turn.seed) % _RANDOM,
        "repeat_last_n": one.end,
        "repeat_penalty": penalties.repetition,
        "presence_penalty": penalties.presence,
        "frequency_penalty": penalties.frequency,
        "logit_bias": list(turn.logit_bias.items()),
    }
    if one.grammar:
        request["grammar"] = one.grammar
    if one.alternatives is not None:
        request["n_probs"] = max(1, one.alternatives)
    return request
