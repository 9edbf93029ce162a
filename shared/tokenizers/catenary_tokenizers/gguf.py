"""A GGUF file's metadata, and the model directory that is in it.

Of the file only the head is read: counts, then keys with typed values. Weights are not looked at. The vocabulary is a
list of pieces with types, and either scores (SentencePiece) or merges and the name of a way to cut words.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from catenary_tokenizers.errors import ModelDirectoryError
from catenary_tokenizers.ranks import byte_level_spec
from catenary_tokenizers.sentencepiece import Piece, spec_from_pieces
from catenary_tokenizers.vocabulary import AddedToken

__all__ = ["read_gguf", "unpack_gguf"]

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_CONTROL, _USER_DEFINED = 3, 4

_SUFFIX = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LEAD = r"[^\r\n\p{L}\p{N}]?"
_END = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SLASH_END = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_SUFFIX}|{_LEAD}\p{{L}}+|\p{{N}}{{1,3}}|{_END}"
_QWEN2 = rf"{_SUFFIX}|{_LEAD}\p{{L}}+|\p{{N}}|{_END}"
_QWEN35 = rf"{_SUFFIX}|{_LEAD}[\p{{L}}\p{{M}}]+|\p{{N}}|{_END}"
_O200K = rf"{_LEAD}{_UPPER}*{_LOWER}+{_SUFFIX}?|{_LEAD}{_UPPER}+{_LOWER}*{_SUFFIX}?|\p{{N}}{{1,3}}|{_SLASH_END}"
_TEKKEN = rf"{_LEAD}{_UPPER}*{_LOWER}+|{_LEAD}{_UPPER}+{_LOWER}*|\p{{N}}|{_SLASH_END}"
# How words are cut, by `tokenizer.ggml.pre`.
_WORDS: Mapping[str, str] = {
    **dict.fromkeys(("gpt-2", "phi-2"), _GPT2),
    **dict.fromkeys(("llama-bpe", "llama3", "dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), _LLAMA3),
    **dict.fromkeys(("qwen2", "stablelm2", "deepseek-r1-qwen"), _QWEN2),
    "qwen35": _QWEN35,
    **dict.fromkeys(("gpt-4o", "llama4"), _O200K),
    **dict.fromkeys(("tekken", "pixtral"), _TEKKEN),
}
_COMPOSED = {"qwen2", "qwen35"}
"""Their models want text in the Unicode form NFC."""
_WHOLE_WORDS_FIRST = {"llama-bpe", "llama3", "gpt-4o", "llama4", "tekken", "pixtral"}


def read_gguf(file: Path) -> dict[str, Any]:
    """The metadata by key, as numbers, texts and lists. Raises `ModelDirectoryError`."""
    try:
        with file.open("rb") as stream:
            if stream.read(4) != _MAGIC:
                raise ModelDirectoryError(file, "not a GGUF file")
            version, _, pairs = _unpack(stream, "<IQQ")
            if version not in _VERSIONS:
                raise ModelDirectoryError(file, f"GGUF version {version} is not read here")
            return {_text(stream): _value(stream, *_unpack(stream, "<I")) for _ in range(pairs)}
    except (OSError, struct.error, KeyError, UnicodeDecodeError) as error:
        raise ModelDirectoryError(file, f"not a GGUF file that can be read: {error}") from error


def unpack_gguf(file: Path, directory: Path) -> None:
    """Write vocabulary, template and context of a GGUF file as a model directory that `load` takes.

    Raises:
        ModelDirectoryError: no GGUF file, or a vocabulary of a kind that is not read here.
    """
    metadata = read_gguf(file)
    try:
        contents = _directory(metadata)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        reason = f"its vocabulary cannot be read ({error}): give a model directory that has it as tokenizer.json"
        raise ModelDirectoryError(file, reason) from error
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (directory / name).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def _directory(metadata: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    architecture = metadata["general.architecture"]

    def text_of(name: str) -> str | None:
        index = metadata.get(f"tokenizer.ggml.{name}_token_id")
        return None if index is None else tokens[index]

    spec = _spec(metadata, tokens)
    if metadata.get("tokenizer.ggml.add_bos_token", metadata["tokenizer.ggml.model"] == "llama"):
        spec["post_processor"] = _begins_with(metadata["tokenizer.ggml.bos_token_id"], tokens)
    config = {f"{name}_token": text for name in ("bos", "eos") if (text := text_of(name)) is not None}
    named = (metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom"))
    ends: set[int] = {token for token in named if token is not None}
    return {
        "tokenizer.json": spec,
        "tokenizer_config.json": {**config, "chat_template": metadata.get("tokenizer.chat_template", "")},
        "config.json": {
            "model_type": architecture,
            "max_position_embeddings": metadata.get(f"{architecture}.context_length"),
            "eos_token_id": sorted(ends),
        },
    }


def _spec(metadata: Mapping[str, Any], tokens: list[str]) -> dict[str, Any]:
    kind, types = metadata["tokenizer.ggml.model"], metadata["tokenizer.ggml.token_type"]
    if kind == "llama":
        scores = metadata["tokenizer.ggml.scores"]
        pieces = [Piece(text, score, type_) for text, score, type_ in zip(tokens, scores, types, strict=True)]
        return spec_from_pieces(pieces, leading_space=metadata.get("tokenizer.ggml.add_space_prefix", True))
    if kind != "gpt2":
        raise ValueError(f"a model of type {kind!r}")
    cut = metadata.get("tokenizer.ggml.pre", "")
    if cut not in _WORDS:
        raise ValueError(f"words cut as {cut!r}")
    added = [
        AddedToken(index, text, special=type_ == _CONTROL)
        for index, (text, type_) in enumerate(zip(tokens, types, strict=True))
        if type_ in {_CONTROL, _USER_DEFINED}
    ]
    marked = {token.id for token in added}
    return byte_level_spec(
        {text: index for index, text in enumerate(tokens) if index not in marked},
        [merge.split(" ", 1) for merge in metadata["tokenizer.ggml.merges"]],
        _WORDS[cut],
        added,
        normalizer="NFC" if cut in _COMPOSED else None,
        ignore_merges=cut in _WHOLE_WORDS_FIRST,
    )


def _begins_with(index: int, tokens: list[str]) -> dict[str, Any]:
    text = tokens[index]
    return {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": text, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {text: {"id": text, "ids": [index], "tokens": [text]}},
    }


def _value(stream: BinaryIO, kind: int) -> Any:
    if kind == _STRING:
        return _text(stream)
    if kind != _ARRAY:
        return _unpack(stream, f"<{_NUMBERS[kind]}")[0]
    inner, count = _unpack(stream, "<IQ")
    if inner in _NUMBERS:
        return list(_unpack(stream, f"<{count}{_NUMBERS[inner]}"))
    return [_value(stream, inner) for _ in range(count)]


def _text(stream: BinaryIO) -> str:
    (length,) = _unpack(stream, "<Q")
    return stream.read(length).decode()


def _unpack(stream: BinaryIO, layout: str) -> tuple[Any, ...]:
    return struct.unpack(layout, stream.read(struct.calcsize(layout)))
