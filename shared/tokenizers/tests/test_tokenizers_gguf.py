"""A GGUF file's vocabulary and template are the model's, and a file that is none says so."""

import json
from pathlib import Path

import gguf
import pytest
from catenary_tokenizers import ModelDirectoryError, embedded_path, load, unpack, unpack_gguf

CONTROL, NORMAL, UNKNOWN, BYTE = 3, 1, 2, 6
TEXT = 'The tide turns at 06:40, naïve 漢字 😀 {"a": [1, 22]}\n\n  done.'


def byte_level(file: Path, cut: str = "qwen2", kind: str = "gpt2") -> Path:
    """The embedded model's vocabulary."""
    spec = json.loads((embedded_path() / "tokenizer.json").read_bytes())
    tokens = {index: text for text, index in spec["model"]["vocab"].items()}
    added = {token["id"]: token["content"] for token in spec["added_tokens"]}
    tokens |= added
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(4096)
    writer.add_tokenizer_model(kind)
    writer.add_tokenizer_pre(cut)
    writer.add_token_list([tokens[index] for index in range(len(tokens))])
    writer.add_token_types([CONTROL if index in added else NORMAL for index in range(len(tokens))])
    writer.add_token_merges([" ".join(merge) for merge in spec["model"]["merges"]])
    writer.add_eos_token_id(8185)
    writer.add_add_bos_token(False)
    writer.add_chat_template((embedded_path() / "chat_template.jinja").read_text(encoding="utf-8"))
    return written(writer, file)


def sentencepiece(file: Path) -> Path:
    """Bytes, letters and one word; a begin token comes first."""
    pieces = [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)]
    pieces += [(f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)]
    pieces += [
        ("▁", -1.0, NORMAL),
        ("h", -2.0, NORMAL),
        ("i", -3.0, NORMAL),
        ("hi", -0.5, NORMAL),
        ("▁hi", -0.6, NORMAL),
    ]
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list([text for text, _, _ in pieces])
    writer.add_token_scores([score for _, score, _ in pieces])
    writer.add_token_types([kind for _, _, kind in pieces])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    return written(writer, file)


def written(writer: gguf.GGUFWriter, file: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return file


def test_a_byte_level_vocabulary_is_the_models(tmp_path: Path) -> None:
    unpack_gguf(byte_level(tmp_path / "m.gguf"), tmp_path / "m")
    model, original = load(tmp_path / "m"), load(embedded_path())
    assert model.encode(TEXT, special=False) == original.encode(TEXT, special=False)
    assert model.decode(model.encode(TEXT, special=False)) == TEXT
    assert model.control_tokens == original.control_tokens
    assert (model.chat_template, model.eos_ids, model.begin) == (original.chat_template, frozenset({8185}), b"")
    assert model.context_length == 4096


def test_a_sentencepiece_vocabulary_is_the_models(tmp_path: Path) -> None:
    unpack_gguf(sentencepiece(tmp_path / "m.gguf"), tmp_path / "m")
    model = load(tmp_path / "m")
    assert list(unpack(model.encode("hi hi", special=False, begin=True))) == [1, 263, 263]
    assert model.decode(model.encode("é", special=False)) == " é"
    assert model.eos_ids == {2}


@pytest.mark.parametrize(("cut", "kind", "why"), [("of-nobody", "gpt2", "of-nobody"), ("", "bert", "bert")])
def test_a_vocabulary_that_is_not_known_exactly_is_refused(tmp_path: Path, cut: str, kind: str, why: str) -> None:
    file = byte_level(tmp_path / "m.gguf", cut, kind)
    with pytest.raises(ModelDirectoryError, match=f"{why}.*give a model directory"):
        unpack_gguf(file, tmp_path / "m")


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    whole = byte_level(tmp_path / "m.gguf").read_bytes()
    for name, content in (("text", b"no GGUF"), ("cut", whole[:5000]), ("version", b"GGUF" + b"\x09" + whole[5:])):
        file = tmp_path / f"{name}.gguf"
        file.write_bytes(content)
        with pytest.raises(ModelDirectoryError, match="GGUF"):
            unpack_gguf(file, tmp_path / "m")
    with pytest.raises(ModelDirectoryError, match="nowhere"):
        unpack_gguf(tmp_path / "nowhere.gguf", tmp_path / "m")
