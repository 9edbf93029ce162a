"""Plain text to ids, by the fastest backend that is exact for the vocabulary.

Both backends read the same `tokenizer.json` from which the control tokens have been taken out, so that no text,
whatever it spells, can become one. Hugging Face's `tokenizers` is the oracle; `fastokens` is used where a probe at
load agrees with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import fastokens
import tokenizers

from catenary_tokenizers.ids import pack

__all__ = ["PlainEncoder", "open_encoders"]

# What reimplementations trip over: contractions, digits, runs, scripts, combining marks, controls, code.
_PROBES = (
    "Hello, world! It's the 1,234,567th of I'LL they'Ve",
    "  leading and trailing  ",
    " \t \n\n  \r\n x \n",
    "def f(x):\n    return {'a': [1, 2.5e-3], \"b\": None}\n\n\n\tif x!=y: pass  # ...",
    "漢字かな交じり文、ﾊﾝｶｸ。한국어 텍스트 ภาษาไทย עברית العربية हिन्दी",
    "e\u0301 \u1e0b\u0323 ﬁ Å \u212b \u0344 q\u0307\u0323",
    "👩‍👩‍👧 🏴󠁧󠁢󠁥󠁮󠁧󠁿 🌊🌊 \U0001f1fa\U0001f1f8",
    "\x00\x1f\x7f\x85\xa0\u2028\u3000\ufeff\ufffd\ue000",
    '{"name":"get_weather","arguments":{"city":"Zürich"}}<|x|><tool',
    "a" * 200 + " " * 90 + "=" * 70 + "\n" * 9,
)


class PlainEncoder(Protocol):
    """Text to packed ids, no control token among them."""

    def encode(self, text: str) -> bytes:
        """Ids of `text`, little-endian `u32`."""
        ...


class _Fast:
    def __init__(self, spec: str) -> None:
        self._tokenizer = fastokens.Tokenizer.from_json_str(spec)

    def encode(self, text: str) -> bytes:
        ids: bytes = self._tokenizer.encode_batch_flat([text])[0]
        return ids


class _Reference:
    def __init__(self, spec: str) -> None:
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(spec)
        except Exception as error:  # the library raises no narrower class
            raise ValueError(str(error)) from error

    def encode(self, text: str) -> bytes:
        return pack(self._tokenizer.encode(text, add_special_tokens=False).ids)


def open_encoders(spec: Mapping[str, Any]) -> tuple[PlainEncoder, PlainEncoder]:
    """The encoders of a prompt's first segment and of those after a control token.

    They are one, unless the pre-tokenizer treats the start of a prompt apart (SentencePiece's leading space).

    Args:
        spec: a `tokenizer.json`, its control tokens removed.
    """
    text = json.dumps(spec, ensure_ascii=False)
    added = [f"a {token['content']} b{token['content']}c" for token in spec.get("added_tokens") or ()]
    first = _open(text, added)
    later = text.replace('"prepend_scheme": "first"', '"prepend_scheme": "never"')
    return first, first if later == text else _open(later, added)


def _open(spec: str, added: Sequence[str]) -> PlainEncoder:
    reference = _Reference(spec)
    try:
        fast = _Fast(spec)
        exact = all(fast.encode(text) == reference.encode(text) for text in (*_PROBES, *added))
    except (ValueError, RuntimeError, NotImplementedError):
        return reference
    return fast if exact else reference
