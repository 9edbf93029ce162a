"""For tests: a model of random weights as a GGUF file. Needs the packages `gguf` and `numpy`."""

import json
from pathlib import Path

import gguf
import numpy as np
from catenary_tokenizers import embedded_path, load

_WIDTH, _LAYERS, _HEADS, _KV_HEADS, _HIDDEN = 64, 2, 4, 2, 128
_CONTEXT = 4096
_NORMAL, _CONTROL = 1, 3


def write_tiny_gguf(file: Path, cut: str = "qwen2", seed: int = 7) -> Path:
    """A Llama with the embedded vocabulary and template. Left to itself it says words without end.

    `cut` is how it says that text is cut into words.
    """
    tokenizer = load(embedded_path())
    spec = json.loads((embedded_path() / "tokenizer.json").read_bytes())
    names = {index: text for text, index in spec["model"]["vocab"].items()}
    names |= {token["id"]: token["content"] for token in spec["added_tokens"]}
    controls = set(tokenizer.control_tokens.values())
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_name("tiny")
    writer.add_context_length(_CONTEXT)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(_LAYERS)
    writer.add_feed_forward_length(_HIDDEN)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(_WIDTH // _HEADS)
    writer.add_vocab_size(len(names))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(cut)
    writer.add_token_list([names[index] for index in range(len(names))])
    writer.add_token_types([_CONTROL if index in controls else _NORMAL for index in range(len(names))])
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in spec["model"]["merges"]])
    writer.add_eos_token_id(min(tokenizer.eos_ids))
    writer.add_add_bos_token(False)
    writer.add_chat_template(tokenizer.chat_template)
    says = [index in tokenizer.table.texts for index in range(len(names))]
    _add_weights(writer, says, np.random.default_rng(seed))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _add_weights(writer: gguf.GGUFWriter, says: list[bool], random: np.random.Generator) -> None:
    """Tokens that it does not say have the logit 0; with so many others one is always greater."""
    narrow = _WIDTH * _KV_HEADS // _HEADS
    shapes = {
        "attn_q": (_WIDTH, _WIDTH),
        "attn_k": (narrow, _WIDTH),
        "attn_v": (narrow, _WIDTH),
        "attn_output": (_WIDTH, _WIDTH),
        "ffn_gate": (_HIDDEN, _WIDTH),
        "ffn_up": (_HIDDEN, _WIDTH),
        "ffn_down": (_WIDTH, _HIDDEN),
    }
    ones = np.ones(_WIDTH, np.float32)

    def noise(rows: int, columns: int, scale: float) -> "np.ndarray[tuple[int, ...], np.dtype[np.float32]]":
        return (random.standard_normal((rows, columns)) * scale).astype(np.float32)

    writer.add_tensor("token_embd.weight", noise(len(says), _WIDTH, 1.0))
    for layer in range(_LAYERS):
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{norm}.weight", ones)
        for name, shape in shapes.items():
            writer.add_tensor(f"blk.{layer}.{name}.weight", noise(*shape, 0.3))
    writer.add_tensor("output_norm.weight", ones)
    writer.add_tensor("output.weight", noise(len(says), _WIDTH, 0.3) * np.array(says, np.float32)[:, None])
