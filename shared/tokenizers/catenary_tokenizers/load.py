"""A model directory to a `ModelTokenizer`: the one place of this package that reads files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from catenary_tokenizers.chat import ChatTemplate
from catenary_tokenizers.cut import Cutter
from catenary_tokenizers.encode import open_encoders
from catenary_tokenizers.errors import ModelDirectoryError
from catenary_tokenizers.model import ModelTokenizer
from catenary_tokenizers.probe import open_template
from catenary_tokenizers.ranks import spec_from_tekken, spec_from_tiktoken
from catenary_tokenizers.safety import Shield
from catenary_tokenizers.sentencepiece import spec_from_sentencepiece
from catenary_tokenizers.spec import added_tokens, begin_ids, control_tokens, piece_table, plain_spec
from catenary_tokenizers.template import Engine, Jinja2Engine

__all__ = ["embedded_path", "load"]

CACHE_BYTES = 256 << 20
_UNLIMITED = 1 << 40  # Hugging Face writes 1e30 for "not known"


def embedded_path() -> Path:
    """The model directory that comes with this package: a small byte-level vocabulary and a ChatML template."""
    return Path(__file__).parent / "embedded"


def load(
    directory: Path,
    *,
    cache_bytes: int = CACHE_BYTES,
    safe: bool = True,
    sandbox: Callable[[str], Engine] = Jinja2Engine,
) -> ModelTokenizer:
    """Load a model directory.

    Args:
        directory: holds `tokenizer.json` (or Mistral's `tekken.json`, tiktoken ranks of a known family, or a
            SentencePiece BPE model); `tokenizer_config.json`, `chat_template.jinja`, `config.json` and
            `generation_config.json` are read where they are.
        cache_bytes: bound of the segment cache.
        safe: whether control tokens that callers spell stay plain text; without, they become control tokens, as with
            Hugging Face's `apply_chat_template`.
        sandbox: opens jinja2's sandbox for a template; see `probe.open_template`.

    Raises:
        ModelDirectoryError: a file is missing or cannot be used.
    """
    if not directory.is_dir():
        raise ModelDirectoryError(directory, "not a directory")
    config = _json(directory / "tokenizer_config.json")
    model = _json(directory / "config.json")
    generation = _json(directory / "generation_config.json")
    path, spec = _vocabulary(directory, config, model)
    try:
        added = added_tokens(spec)
        controls = control_tokens(spec, added)
        table = piece_table(spec, added, controls)
        encoders = open_encoders(plain_spec(spec, controls))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelDirectoryError(path, f"not a vocabulary this package reads: {error}") from error
    templates = _templates(directory, config, sandbox)
    texts, source = [token.text for token in controls], "".join(template.source for template in templates.values())
    return ModelTokenizer(
        encoders=encoders,
        controls=controls,
        cutter=Cutter(added, controls),
        table=table,
        template=templates["default"],
        tool_template=templates.get("tool_use", templates["default"]),
        shield=Shield(texts, source),
        content_shield=Shield(texts, source, idle=not safe),
        eos_ids=_eos(config, model, generation, {token.text: token.id for token in added}),
        begin=begin_ids(spec.get("post_processor")),
        context_length=_context(model, config),
        cache_bytes=cache_bytes,
    )


def _vocabulary(directory: Path, config: Mapping[str, Any], model: Mapping[str, Any]) -> tuple[Path, Mapping[str, Any]]:
    """The vocabulary's file, and what it says as a `tokenizer.json`."""
    path = directory / "tokenizer.json"
    if spec := _json(path):
        return path, spec
    family, added = str(model.get("model_type", "")), config.get("added_tokens_decoder") or {}
    readers: list[tuple[str, Callable[[Path], Mapping[str, Any]]]] = [
        ("tekken.json", lambda file: spec_from_tekken(_json(file))),
        ("tiktoken.model", lambda file: spec_from_tiktoken(file.read_bytes(), family, added)),
        ("*.tiktoken", lambda file: spec_from_tiktoken(file.read_bytes(), family, added)),
        ("tokenizer.model*", lambda file: spec_from_sentencepiece(file.read_bytes())),
    ]
    for pattern, read in readers:
        for file in sorted(directory.glob(pattern)):
            try:
                return file, read(file)
            except (KeyError, TypeError, ValueError) as error:
                raise ModelDirectoryError(file, str(error)) from error
    raise ModelDirectoryError(path, "missing or empty")


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


def _templates(directory: Path, config: Mapping[str, Any], sandbox: Callable[[str], Engine]) -> dict[str, ChatTemplate]:
    """The templates by name: `default`, and `tool_use` for conversations with tools."""
    given = config.get("chat_template") or _json(directory / "chat_template.json").get("chat_template")
    sources = {"default": given if isinstance(given, str) else ""}
    if isinstance(given, list):
        sources |= {str(entry["name"]): str(entry["template"]) for entry in given}
    extra = directory / "additional_chat_templates"
    for name, path in [("default", directory / "chat_template.jinja"), ("tool_use", extra / "tool_use.jinja")]:
        if path.is_file():
            sources[name] = path.read_text(encoding="utf-8")
    try:
        return {
            name: open_template(sources[name], _variables(config), sandbox)
            for name in ("default", "tool_use")
            if name in sources
        }
    except ValueError as error:
        raise ModelDirectoryError(directory / "chat_template.jinja", f"not a template: {error}") from error


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


def _context(model: Mapping[str, Any], config: Mapping[str, Any]) -> int | None:
    text_model = model.get("text_config") or {}
    for value in (model.get("max_position_embeddings"), text_model.get("max_position_embeddings")):
        if isinstance(value, int):
            return value
    most = config.get("model_max_length")
    return most if isinstance(most, int) and most < _UNLIMITED else None
