"""The six models that case files name, as model directories: the embedded vocabulary with each family's markers and template."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from catenary_tokenizers import embedded_path

CONTEXT = 4096
TEMPLATES = Path(__file__).parent / "templates"

_CHATML = "<|endoftext|> <|im_start|> <|im_end|>"
_HERMES = f"{_CHATML} <tool_call> </tool_call> <tool_response> </tool_response>"


@dataclass(frozen=True, slots=True)
class Family:
    """A case model: what its turns are written in.

    Attributes:
        template: file in `templates/`; empty for the embedded model's own.
        markers: its control tokens.
        ends: those that end a turn.
        tools: name of its tool-call format.
        reasoning: name of its style of thinking.
        images: whether it takes images.
    """

    template: str
    markers: str
    ends: str
    tools: str
    reasoning: str = "none"
    images: bool = False


FAMILIES = {
    "m-hermes": Family("hermes", _HERMES, "<|im_end|>", tools="hermes"),
    "m-qwen": Family("", f"{_HERMES} <think> </think>", "<|im_end|>", tools="hermes", reasoning="basic"),
    "m-qwen3c": Family("qwen3_coder", _HERMES, "<|im_end|>", tools="qwen3_coder"),
    "m-kimi": Family(
        "kimi",
        "<|im_end|> <|im_user|> <|im_assistant|> <|im_system|> <|im_middle|> <think> </think> "
        "<|tool_calls_section_begin|> <|tool_calls_section_end|> <|tool_call_begin|> <|tool_call_argument_begin|> "
        "<|tool_call_end|>",
        "<|im_end|>",
        tools="kimi_k2",
        reasoning="kimi_k2",
    ),
    "m-harmony": Family(
        "harmony",
        "<|start|> <|message|> <|channel|> <|constrain|> <|end|> <|call|> <|return|>",
        "<|return|> <|call|>",
        tools="harmony",
        reasoning="gpt_oss",
    ),
    "m-vision": Family(
        "vision",
        f"{_HERMES} <|vision_start|> <|vision_end|> <|image_pad|>",
        "<|im_end|>",
        tools="hermes",
        images=True,
    ),
}


def build(root: Path) -> dict[str, Path]:
    """Write every case model below `root`; the directories by name."""
    return {name: _build(root / name, family) for name, family in FAMILIES.items()}


def _build(target: Path, family: Family) -> Path:
    target.mkdir(parents=True, exist_ok=True)
    spec = json.loads((embedded_path() / "tokenizer.json").read_bytes())
    first = min(token["id"] for token in spec["added_tokens"])
    flags = spec["added_tokens"][0]
    markers = family.markers.split()
    spec["added_tokens"] = [{**flags, "id": first + n, "content": text} for n, text in enumerate(markers)]
    ends = family.ends.split()
    config = {
        "eos_token_id": [first + markers.index(end) for end in ends],
        "max_position_embeddings": CONTEXT,
        "model_type": target.name,
        "vocab_size": first + len(markers),
    }
    tokens = {"eos_token": ends[0], "model_max_length": CONTEXT, "tokenizer_class": "PreTrainedTokenizerFast"}
    for file, content in [("tokenizer.json", spec), ("config.json", config), ("tokenizer_config.json", tokens)]:
        (target / file).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    template = TEMPLATES / f"{family.template}.jinja" if family.template else embedded_path() / "chat_template.jinja"
    shutil.copyfile(template, target / "chat_template.jinja")
    return target
