"""Trains the embedded model's vocabulary: `python shared/tokenizers/scripts/train_embedded.py`.

The corpus is what a Debian machine with Python has: the standard library's sources (without its tests) and the common
licences. Reading order is sorted and the trainer breaks ties by the pair, so one corpus always gives one file; the
committed `tokenizer.json` is the reference, and a newer Python's corpus gives another vocabulary, that is another
model.
"""

import json
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

SIZE = 8192
CONTEXT = 131_072
TARGET = Path(__file__).parents[1] / "catenary_tokenizers" / "embedded"
LICENCES = Path("/usr/share/common-licenses")
SKIPPED = {"test", "tests", "idle_test", "idlelib", "lib2to3", "pydoc_data", "site-packages", "turtledemo", "encodings"}
CONTROL = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
]
# Words with the character before them, single digits, punctuation runs with their line ends, white space.
WORDS = r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def corpus() -> Iterator[str]:
    """The training texts, in one fixed order."""
    library = Path(sysconfig.get_path("stdlib"))
    sources = sorted(p for p in library.rglob("*.py") if not SKIPPED & set(p.relative_to(library).parts))
    licences = sorted({p.resolve() for p in LICENCES.iterdir()})
    for path in [*sources, *licences]:
        yield path.read_text(encoding="utf-8", errors="replace")


def train() -> Tokenizer:
    """A byte-level BPE tokenizer with `SIZE` entries, the control tokens last."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=SIZE - len(CONTROL),
        min_frequency=2,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in CONTROL])
    return tokenizer


def write(name: str, content: dict[str, object]) -> None:
    """Write one JSON file of the model directory."""
    (TARGET / name).write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Train and write `tokenizer.json`, `tokenizer_config.json` and `config.json`; the template is written by hand."""
    TARGET.mkdir(parents=True, exist_ok=True)
    tokenizer = train()
    tokenizer.save(str(TARGET / "tokenizer.json"), pretty=False)
    ids = {text: tokenizer.token_to_id(text) for text in CONTROL}
    write(
        "tokenizer_config.json",
        {
            "add_bos_token": False,
            "bos_token": None,
            "clean_up_tokenization_spaces": False,
            "eos_token": "<|im_end|>",
            "model_max_length": CONTEXT,
            "pad_token": "<|endoftext|>",
            "tokenizer_class": "PreTrainedTokenizerFast",
            "unk_token": None,
        },
    )
    write(
        "config.json",
        {
            "architectures": ["CatenarySimForCausalLM"],
            "eos_token_id": ids["<|im_end|>"],
            "max_position_embeddings": CONTEXT,
            "model_type": "catenary_sim",
            "pad_token_id": ids["<|endoftext|>"],
            "vocab_size": SIZE,
        },
    )


if __name__ == "__main__":
    main()
