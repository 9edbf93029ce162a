"""A model directory to a `ModelTokenizer`: the one place of this package that reads files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from catenary_tokenizers.detokenise import PieceTable
from catenary_tokenizers.encode import open_encoders
from catenary_tokenizers.errors import ModelDirectoryError
from catenary_tokenizers.ids import pack
from catenary_tokenizers.model import ModelTokenizer
from catenary_tokenizers.probe import open_template
from catenary_tokenizers.safety import Shield
from catenary_tokenizers.vocabulary import AddedToken, ControlToken, piece_bytes

__all__ = ["embedded_path", "load"]

CACHE_BYTES = 256 << 20
_UNLIMITED = 1 << 40  # Hugging Face writes 1e30 for "not known"


def embedded_path() -> Path:
    """The model directory that comes with this package: a small byte-level vocabulary and a ChatML template."""
    return Path(__file__).parent / "embedded"


def load(directory: Path, *, cache_bytes: int = CACHE_BYTES) -> ModelTokenizer:
    """Load a model directory.

    Args:
        directory: holds `tokenizer.json`; `tokenizer_config.json`, `chat_template.jinja`, `config.json` and
            `generation_config.json` are read where they are.
        cache_bytes: bound of the segment cache.

    Raises:
        ModelDirectoryError: a file is missing or cannot be used.
    """
    if not directory.is_dir():
        raise ModelDirectoryError(directory, "not a directory")
    config = _json(directory / "tokenizer_config.json")
    model = _json(directory / "config.json")
    generation = _json(directory / "generation_config.json")
    spec_path = directory / "tokenizer.json"
    spec = _json(spec_path)
    if not spec:
        raise ModelDirectoryError(spec_path, "missing or empty")
    try:
        added = [_added(entry) for entry in spec.get("added_tokens") or ()]
        vocab: Mapping[str, int] = spec["model"]["vocab"]
        pieces = piece_bytes(vocab, list(_types(spec.get("decoder"))))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelDirectoryError(spec_path, f"not a vocabulary this package reads: {error}") from error
    controls = [token for token in added if token.is_control]
    sources = _template_sources(directory, config)
    variables = _variables(config)
    template = open_template(sources.get("default", ""), variables)
    return ModelTokenizer(
        encoders=open_encoders(_without(spec, controls)),
        controls=controls,
        table=_table(pieces, added),
        template=template,
        tool_template=open_template(sources["tool_use"], variables) if "tool_use" in sources else template,
        shield=Shield((token.text for token in controls), "".join(sources.values())),
        eos_ids=_eos(config, model, generation, {**vocab, **{token.text: token.id for token in added}}),
        begin=_begin(spec.get("post_processor")),
        context_length=_context(model, config),
        cache_bytes=cache_bytes,
    )


def _json(path: Path) -> dict[str, Any]:
    """A JSON object, empty where the file is missing."""
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ModelDirectoryError(path, f"not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelDirectoryError(path, "not a JSON object")
    return content


def _added(entry: Mapping[str, Any]) -> AddedToken:
    return AddedToken(
        id=int(entry["id"]),
        text=str(entry["content"]),
        special=bool(entry.get("special")),
        lstrip=bool(entry.get("lstrip")),
        rstrip=bool(entry.get("rstrip")),
        single_word=bool(entry.get("single_word")),
    )


def _types(decoder: Mapping[str, Any] | None) -> Iterator[str]:
    """The types of a decoder and of those inside it."""
    if decoder:
        yield str(decoder["type"])
        for inner in decoder.get("decoders", ()):
            yield from _types(inner)


def _without(spec: Mapping[str, Any], controls: Sequence[AddedToken]) -> dict[str, Any]:
    """The vocabulary as it encodes text between control tokens."""
    hidden = {token.text for token in controls}
    kept = [entry for entry in spec.get("added_tokens") or () if entry["content"] not in hidden]
    return {**spec, "added_tokens": kept, "post_processor": None, "truncation": None, "padding": None}


def _table(pieces: Sequence[bytes], added: Sequence[AddedToken]) -> PieceTable:
    plain = [*pieces, *[b""] * (1 + max((token.id for token in added), default=-1) - len(pieces))]
    for token in added:
        if not token.is_control:
            plain[token.id] = token.text.encode()
    return PieceTable(plain, [ControlToken(t.id, t.text, t.special) for t in added if t.is_control])


def _template_sources(directory: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """The templates by name: `default`, and `tool_use` for conversations with tools."""
    given = config.get("chat_template") or _json(directory / "chat_template.json").get("chat_template") or {}
    if isinstance(given, list):
        sources = {str(entry["name"]): str(entry["template"]) for entry in given}
    else:
        sources = {"default": given} if isinstance(given, str) else {}
    extra = directory / "additional_chat_templates"
    for name, path in [("default", directory / "chat_template.jinja"), ("tool_use", extra / "tool_use.jinja")]:
        if path.is_file():
            sources[name] = path.read_text(encoding="utf-8")
    return sources


def _variables(config: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens' texts, which templates may print."""
    names = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
    return {name: text for name in names if (text := _token_text(config.get(name)))}


def _token_text(value: object) -> str:
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def _eos(
    config: Mapping[str, Any], model: Mapping[str, Any], generation: Mapping[str, Any], ids: Mapping[str, int]
) -> frozenset[int]:
    found: set[int] = set()
    for value in (
        generation.get("eos_token_id"),
        model.get("eos_token_id"),
        ids.get(_token_text(config.get("eos_token"))),
    ):
        found.update(value if isinstance(value, list) else [] if value is None else [value])
    return frozenset(found)


def _begin(processor: Mapping[str, Any] | None) -> bytes:
    """Ids that the post-processor puts before a text."""
    if not processor:
        return b""
    if processor["type"] == "Sequence":
        return b"".join(_begin(inner) for inner in processor["processors"])
    if processor["type"] != "TemplateProcessing":
        return b""
    ids: list[int] = []
    for part in processor["single"]:
        if "Sequence" in part:
            break
        ids += processor["special_tokens"][part["SpecialToken"]["id"]]["ids"]
    return pack(ids)


def _context(model: Mapping[str, Any], config: Mapping[str, Any]) -> int | None:
    text_model = model.get("text_config") or {}
    for value in (model.get("max_position_embeddings"), text_model.get("max_position_embeddings")):
        if isinstance(value, int):
            return value
    most = config.get("model_max_length")
    return most if isinstance(most, int) and most < _UNLIMITED else None
