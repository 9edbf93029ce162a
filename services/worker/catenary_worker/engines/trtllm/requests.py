"""A turn to the arguments of `LLM.generate_async`.

Each value that TensorRT-LLM would fill in by itself is said: 32 tokens at most, greedy, the same seed for everyone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from catenary_protocols.errors import RequestError

from catenary_worker.core.admission import STRICT_STEP
from catenary_worker.engines.again import GUIDES, seed_of
from catenary_worker.engines.base import EngineTurn, Retention
from catenary_worker.engines.trtllm.api import Api, fields_of, known
from catenary_worker.engines.trtllm.halves import decode_of, prefill_of
from catenary_worker.engines.trtllm.settings import TrtSettings

ORDINARY_RETENTION = 35
TOP_RETENTION = 100
_STRICT_LEVELS = 16
_NEEDED = frozenset({"inputs", "sampling_params", "streaming"})
_SPAN = 1 << 17
"""Ordinary priorities told apart; with the strict levels they fit the 24 bits of the engine's float."""


@dataclass(frozen=True, slots=True)
class RequestWriter:
    """Writes requests for one engine.

    Attributes:
        eos: the model's end-of-sequence ids, the first one first; the engine knows one, the rest are stop tokens.
    """

    api: Api
    settings: TrtSettings
    eos: tuple[int, ...]

    @property
    def features(self) -> frozenset[str]:
        """What turns may ask for."""
        offers = {
            "cancel": self.settings.aborts != "never",
            "guide": self.settings.guide != "none",
            "logprobs": "logprobs" in fields_of(self.api.sampling),
            "lora": bool(self.settings.loras),
            "priority": True,
            "retention": "kv_cache_retention_config" in self.api.call,
            "salt": "cache_salt" in self.api.call,
        }
        return frozenset(name for name, offered in offers.items() if offered)

    def check(self, turn: EngineTurn) -> None:
        """Raises `RequestError` for what this engine cannot do, rather than do less than was asked."""
        options = turn.options
        guided = any(options.get(name) for name in GUIDES)
        for asked, feature, field in (
            (guided, "guide", "guide"),
            (bool(turn.salt), "salt", "salt"),
            (bool(options.get("lora")), "lora", "lora"),
            (bool(turn.logit_bias), "logit_bias", "logit_bias"),
            (bool(options.get("images")), "images", "images"),
            (options.get("logprobs") is not None, "logprobs", "logprobs"),
        ):
            if asked and feature not in self.features:
                raise RequestError(f"this engine does not offer {field}", code="unsupported", field=field)
        if options.get("structural_tag") and options.get("json_schema"):
            raise RequestError("a turn has one guide", code="invalid_value", field="guide")
        if options.get("structural_tag") and self.settings.guide != "xgrammar":
            raise RequestError("structural tags need xgrammar", code="unsupported", field="guide")
        if turn.half == "decode":
            decode_of(turn.handoff, self.api)
        lora = options.get("lora")
        if lora and lora not in self.settings.loras:
            known_ones = ", ".join(self.settings.loras)
            raise RequestError(f"no adapter {lora!r}; there are {known_ones}", code="invalid_value", field="lora")

    def write(self, turn: EngineTurn, max_tokens: int) -> dict[str, Any]:
        """Keyword arguments; `max_tokens` is what the engine is to generate, 1 at least."""
        wanted: dict[str, object] = {
            "inputs": [*turn.prompt, *turn.generated],
            "sampling_params": self._sampling(turn, max_tokens),
            "streaming": turn.half != "prefill",
        }
        if turn.half != "whole":
            prefill = turn.half == "prefill"
            wanted["disaggregated_params"] = prefill_of(self.api) if prefill else decode_of(turn.handoff, self.api)
        if self.api.takes_priority:
            wanted["priority"] = scaled(turn.priority)
        if turn.salt:
            wanted["cache_salt"] = turn.salt
        if turn.retention.priority < 0 or (turn.retention.priority > 0 and turn.retention.seconds > 0):
            wanted["kv_cache_retention_config"] = self._retention(turn.retention)
        if (name := turn.options.get("lora")) is not None:
            number = 1 + list(self.settings.loras).index(str(name))
            wanted["lora_request"] = self.api.lora_request(str(name), number, self.settings.loras[str(name)])
        return known(wanted, self.api.call, needed=_NEEDED | ({"disaggregated_params"} & wanted.keys()))

    def _sampling(self, turn: EngineTurn, max_tokens: int) -> Any:
        """Made anew for each turn: the engine writes into it."""
        own = () if turn.ignore_eos else self.eos
        stops = {*own[1:], *turn.stop_token_ids} - {*own[:1]}
        seed = turn.seed if turn.seed is not None else seed_of(turn.turn_id)
        wanted: dict[str, object] = {
            "end_id": own[0] if own else -1,
            "pad_id": self.eos[0] if self.eos else 0,
            "max_tokens": max_tokens,
            "stop_token_ids": sorted(stops) or None,
            "include_stop_str_in_output": True,
            "ignore_eos": turn.ignore_eos,
            "temperature": 1.0 if turn.temperature is None else turn.temperature,
            "top_p": turn.top_p,
            "top_k": None if turn.top_k is None else max(0, turn.top_k),
            "min_p": turn.min_p,
            "seed": seed & (1 << 63) - 1,
            "detokenize": False,
            "add_special_tokens": False,
            "return_perf_metrics": True,
        }
        if (least := turn.min_tokens - len(turn.generated)) > 0:
            wanted["min_tokens"] = least
        if isinstance(count := turn.options.get("logprobs"), int):
            wanted["logprobs"] = max(1, count)
        wanted |= _penalties(turn)
        wanted |= self._guide(turn.options)
        return self.api.sampling(**known(wanted, fields_of(self.api.sampling)))

    def _guide(self, options: Mapping[str, object]) -> dict[str, object]:
        guide: dict[str, object] = {}
        if tag := options.get("structural_tag"):
            guide["structural_tag"] = tag
        elif schema := options.get("json_schema"):
            guide["json"] = schema
        return {"guided_decoding": self.api.llmapi.GuidedDecodingParams(**guide)} if guide else {}

    def _retention(self, kept: Retention) -> Any:
        """Prompt and generated blocks alike. The engine's clock starts when a block can first be reused."""
        kind = self.api.llmapi.KvCacheRetentionConfig
        priority = max(0, min(ORDINARY_RETENTION + kept.priority, TOP_RETENTION))
        length = timedelta(seconds=kept.seconds) if kept.priority > 0 else None
        return kind([kind.TokenRangeRetentionConfig(0, None, priority, length)], priority, length)


def _penalties(turn: EngineTurn) -> dict[str, object]:
    penalties = turn.penalties
    chosen: dict[str, object] = {}
    if penalties.presence or penalties.frequency:
        chosen = {
            "presence_penalty": penalties.presence,
            "frequency_penalty": penalties.frequency,
            "prompt_ignore_length": len(turn.prompt),
        }
    if penalties.repetition != 1.0:
        chosen["repetition_penalty"] = penalties.repetition
    return chosen


def scaled(priority: int) -> float:
    """A priority as the engine's: between 0 and 1, and in the same order. Strict ones sort before ordinary ones."""
    strict = (priority + STRICT_STEP // 2) // STRICT_STEP
    ordinary = priority - strict * STRICT_STEP
    level = min(max(strict, 0), _STRICT_LEVELS - 1) * _SPAN + min(max(ordinary + _SPAN // 2, 0), _SPAN - 1)
    return level / (_STRICT_LEVELS * _SPAN)
