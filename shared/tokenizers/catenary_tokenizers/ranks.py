"""Rank files (tiktoken, tekken) as a `tokenizer.json`: the same ids for the same bytes, one path for all models.

A tiktoken file does not say how its model cuts text into words nor which control tokens it has: the first is known
here by family, the second stands in `tokenizer_config.json`.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from catenary_tokenizers.vocabulary import AddedToken, byte_alphabet

__all__ = ["byte_level_spec", "parse_tiktoken", "spec_from_ranks", "spec_from_tekken", "spec_from_tiktoken"]

Ranks = Mapping[bytes, int]

_SUFFIX = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_END = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_LEAD = r"[^\r\n\p{L}\p{N}]?"
# How families with tiktoken files cut words, by the start of `model_type`, with the Unicode form they want.
_FAMILIES = {
    "qwen": (rf"{_SUFFIX}|{_LEAD}\p{{L}}+|\p{{N}}|{_END}", "NFC"),
    "kimi": (
        rf"[\p{{Han}}]+|{_LEAD}{_UPPER}*{_LOWER}+{_SUFFIX}?|{_LEAD}{_UPPER}+{_LOWER}*{_SUFFIX}?|\p{{N}}{{1,3}}|{_END}",
        None,
    ),
}


def parse_tiktoken(content: bytes) -> dict[bytes, int]:
    """The ranks of a tiktoken file: a base64 token and its rank a line. `ValueError` for anything else."""
    ranks: dict[bytes, int] = {}
    for line in content.splitlines():
        if line.strip():
            token, rank = line.split()
            ranks[base64.b64decode(token)] = int(rank)
    return ranks


def spec_from_ranks(
    ranks: Ranks, pattern: str, added: Sequence[AddedToken], *, first_id: int = 0, normalizer: str | None = None
) -> dict[str, Any]:
    """A byte-level BPE `tokenizer.json` that encodes as tiktoken does.

    Args:
        ranks: bytes of each token to its rank; lower ranks merge first.
        pattern: regular expression that cuts text into words.
        added: control tokens with their ids.
        first_id: id of rank 0.
        normalizer: `NFC` or another of `tokenizers`' Unicode forms.
    """
    shown = {byte: char for char, byte in byte_alphabet().items()}
    names = {token: "".join(map(shown.__getitem__, token)) for token in ranks}
    merges: list[list[str]] = []
    for token, _ in sorted(ranks.items(), key=lambda item: item[1]):
        cuts = [(token[:at], token[at:]) for at in range(1, len(token))]
        known = [(left, right) for left, right in cuts if left in ranks and right in ranks]
        known.sort(key=lambda cut: (ranks[cut[0]], ranks[cut[1]]))
        merges += ([names[left], names[right]] for left, right in known)
    vocab = {token.text: token.id for token in added if token.id < first_id}
    vocab |= {names[token]: first_id + rank for token, rank in ranks.items()}
    return byte_level_spec(vocab, merges, pattern, added, normalizer=normalizer, ignore_merges=True)


def byte_level_spec(
    vocab: Mapping[str, int],
    merges: Sequence[Sequence[str]],
    pattern: str,
    added: Sequence[AddedToken],
    *,
    normalizer: str | None,
    ignore_merges: bool,
) -> dict[str, Any]:
    """A `tokenizer.json` of byte-level BPE.

    Args:
        vocab: tokens in the byte alphabet to ids.
        merges: pairs of tokens, the first to merge first.
        pattern: regular expression that cuts text into words.
        added: control tokens with their ids.
        normalizer: `NFC` or another of `tokenizers`' Unicode forms.
        ignore_merges: whether a word that is a token is that token, whatever the merges give.
    """
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": token.id,
                "content": token.text,
                "special": token.special,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
            }
            for token in added
        ],
        "normalizer": {"type": normalizer} if normalizer else None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
                _BYTE_LEVEL,
            ],
        },
        "post_processor": None,
        "decoder": _BYTE_LEVEL,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": ignore_merges,
            "vocab": dict(vocab),
            "merges": [list(merge) for merge in merges],
        },
    }


def spec_from_tiktoken(content: bytes, family: str, added: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """A tiktoken file as a `tokenizer.json`.

    Args:
        content: the file.
        family: the model's `model_type`.
        added: `added_tokens_decoder` of the model's `tokenizer_config.json`.

    Raises:
        ValueError: not such a file, or a family whose words are not known here.
    """
    for name, (pattern, normalizer) in _FAMILIES.items():
        if family.startswith(name):
            tokens = [AddedToken(int(n), str(t["content"]), special=bool(t.get("special"))) for n, t in added.items()]
            return spec_from_ranks(parse_tiktoken(content), pattern, tokens, normalizer=normalizer)
    raise ValueError(
        f"how models of type {family!r} cut words is not known: their vocabulary is needed as tokenizer.json"
    )


def spec_from_tekken(content: Mapping[str, Any]) -> dict[str, Any]:
    """A Mistral `tekken.json` as a `tokenizer.json`: special tokens first, then the ranks."""
    config = content["config"]
    specials = int(config["default_num_special_tokens"])
    size = int(config["default_vocab_size"]) - specials
    ranks = {base64.b64decode(entry["token_bytes"]): int(entry["rank"]) for entry in content["vocab"][:size]}
    listed = {int(entry["rank"]): str(entry["token_str"]) for entry in content.get("special_tokens") or ()}
    listed = listed or dict(enumerate(_TEKKEN_SPECIALS))
    added = [AddedToken(n, listed.get(n, f"<SPECIAL_{n}>"), special=True) for n in range(specials)]
    return spec_from_ranks(ranks, str(config["pattern"]), added, first_id=specials)


_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}

# Of files that list none: names by id, the rest are `<SPECIAL_n>`.
_TEKKEN_SPECIALS = [
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
]
