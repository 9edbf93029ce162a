"""Loading: every file a model directory may have, on vocabularies small enough to write here."""

import base64
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from catenary_tokenizers import ModelDirectoryError, embedded_path, load, unpack
from catenary_tokenizers.ranks import spec_from_ranks
from catenary_tokenizers.vocabulary import AddedToken

RANKS = {bytes([byte]): byte for byte in range(256)} | {b"ab": 256, b"abc": 257}
END = AddedToken(258, "<end>", special=True)
USER = [{"role": "user", "content": "abc"}]


def write(directory: Path, **files: Any) -> Path:
    """Files by name, `_` for `.`: text as it is, anything else as JSON."""
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (directory / name.replace("__", ".")).write_text(text, encoding="utf-8")
    return directory


def spec(**change: Any) -> dict[str, Any]:
    return spec_from_ranks(RANKS, ".", [END]) | change


def ids(directory: Path, text: str) -> list[int]:
    return list(unpack(load(directory).encode(text, special=True)))


def test_a_bare_vocabulary_is_a_model_without_template(tmp_path: Path) -> None:
    model = load(write(tmp_path, tokenizer__json=spec_from_ranks(RANKS, "[a-z]+", [END])))
    assert list(unpack(model.encode("abcab<end>", special=True))) == [257, 256, 258]
    assert (model.chat_template, model.eos_ids, model.context_length) == ("", frozenset(), None)
    assert model.render(USER).text == ""


def test_templates_by_name(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    model = load(write(tmp_path, tokenizer__json=spec(), tokenizer_config__json={"chat_template": named}))
    assert model.render(USER).text == "plain"
    assert model.render(USER, [{"type": "function", "function": {"name": "f"}}]).text == "tools"


def test_a_template_file_comes_before_the_configuration(tmp_path: Path) -> None:
    config = {"chat_template": "old", "bos_token": {"content": "<s>"}, "eos_token": "<end>", "unk_token": None}
    source = "{{ bos_token }}{{ eos_token }}{{ unk_token is defined }}"
    model = load(write(tmp_path, tokenizer__json=spec(), tokenizer_config__json=config, chat_template__jinja=source))
    assert model.render(USER).text.lower() == "<s><end>false"
    assert model.eos_ids == {258}


def test_templates_of_other_layouts(tmp_path: Path) -> None:
    write(tmp_path, tokenizer__json=spec(), chat_template__json={"chat_template": "from json"})
    assert load(tmp_path).render(USER).text == "from json"
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    assert load(tmp_path).tool_template.source == "tools"


def test_ends_and_context_from_wherever_they_stand(tmp_path: Path) -> None:
    write(tmp_path, tokenizer__json=spec(), generation_config__json={"eos_token_id": [1, 2]})
    write(tmp_path, config__json={"eos_token_id": 3, "text_config": {"max_position_embeddings": 77}})
    model = load(tmp_path)
    assert (model.eos_ids, model.context_length) == (frozenset({1, 2, 3}), 77)
    write(tmp_path, config__json={}, tokenizer_config__json={"model_max_length": 99})
    assert load(tmp_path).context_length == 99
    write(tmp_path, tokenizer_config__json={"model_max_length": int(1e30)})
    assert load(tmp_path).context_length is None


def test_the_begin_token_of_a_post_processor(tmp_path: Path) -> None:
    single = [{"SpecialToken": {"id": "<end>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    special = {"<end>": {"id": "<end>", "ids": [258], "tokens": ["<end>"]}}
    template = {"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": special}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    write(tmp_path, tokenizer__json=spec(post_processor={"type": "Sequence", "processors": [byte_level, template]}))
    model = load(tmp_path)
    assert list(unpack(model.encode("a", special=True, begin=True))) == [258, 97]
    assert list(unpack(model.encode("a", special=True))) == [97]


def test_a_tiktoken_file_of_a_known_family(tmp_path: Path) -> None:
    ranks = "\n".join(f"{base64.b64encode(token).decode()} {rank}" for token, rank in RANKS.items())
    write(tmp_path, tiktoken__model=ranks, config__json={"model_type": "kimi_k2"})
    write(tmp_path, tokenizer_config__json={"added_tokens_decoder": {"258": {"content": "<end>", "special": True}}})
    assert ids(tmp_path, "abc<end>漢") == [257, 258, *"漢".encode()]
    write(tmp_path, config__json={"model_type": "other"})
    with pytest.raises(ModelDirectoryError, match=r"type 'other' cut words is not known"):
        load(tmp_path)


def test_a_tekken_file(tmp_path: Path) -> None:
    vocab = [{"rank": rank, "token_bytes": base64.b64encode(token).decode()} for token, rank in RANKS.items()]
    config = {"pattern": "[a-z]+|.", "default_num_special_tokens": 20, "default_vocab_size": 278}
    write(tmp_path, tekken__json={"config": config, "vocab": vocab})
    assert ids(tmp_path, "[INST]abc[/INST]") == [3, 277, 4]
    specials = [{"rank": 3, "token_str": "[ASK]"}]
    write(tmp_path, tekken__json={"config": config, "vocab": vocab, "special_tokens": specials})
    assert ids(tmp_path, "[ASK]abc<SPECIAL_4>") == [3, 277, 4]
    write(tmp_path, tekken__json={"vocab": vocab})
    with pytest.raises(ModelDirectoryError, match="config"):
        load(tmp_path)


def field(number: int, content: bytes | str) -> bytes:
    raw = content.encode() if isinstance(content, str) else content
    return varint(number << 3 | 2) + varint(len(raw)) + raw


def varint(value: int) -> bytes:
    return bytes([value & 0x7F | 0x80]) + varint(value >> 7) if value > 0x7F else bytes([value])


def piece(text: str, score: float, kind: int) -> bytes:
    return field(1, field(1, text) + b"\x15" + struct.pack("<f", score) + b"\x18" + varint(kind))


def sentencepiece(model_type: int = 2, normaliser: str = "identity") -> bytes:
    pieces = piece("<unk>", 0, 2) + piece("<s>", 0, 3) + b"".join(piece(f"<0x{n:02X}>", 0, 6) for n in range(256))
    for rank, text in enumerate(["▁a", "bc", "▁abc", "▁", "a", "b", "c"]):
        pieces += piece(text, -rank, 1)
    trainer = field(2, b"\x18" + varint(model_type) + b"\x09" + bytes(8) + b"\x0d" + bytes(4))
    return pieces + trainer + field(3, field(1, normaliser))


def test_a_sentencepiece_file(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(sentencepiece())
    first = 2 + 256
    assert ids(tmp_path, "abc") == [first + 2]
    assert ids(tmp_path, "<s>a bc") == [1, first, first + 3, first + 1]
    assert ids(tmp_path, "ü") == [first + 3, *(2 + byte for byte in "ü".encode())]
    model = load(tmp_path)
    assert model.decode(model.encode("abc ü", special=False)) == " abc ü"


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (sentencepiece(model_type=1), "type 1"),
        (sentencepiece(normaliser="nmt_nfkc"), "'nmt_nfkc'"),
        (b"\xff", "ends inside a number"),
        (b"\x0b", "wire type 3"),
        (b"\x08\x01", "a number where a message is wanted"),
    ],
)
def test_a_sentencepiece_file_that_cannot_be_used_says_why(tmp_path: Path, content: bytes, error: str) -> None:
    (tmp_path / "tokenizer.model").write_bytes(content)
    with pytest.raises(ModelDirectoryError, match=error):
        load(tmp_path)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True}}, "a WordPiece decoder"),
        ({"decoder": None}, "missing decoder"),
        ({"model": {"type": "Unigram", "vocab": [["a", 0.0]]}}, "not a vocabulary"),
        ({"model": {}}, "'vocab'"),
        ({"added_tokens": [{"id": 1}]}, "'content'"),
        ({"pre_tokenizer": {"type": "Nothing"}}, "not a vocabulary"),
    ],
)
def test_a_vocabulary_that_cannot_be_used_says_why(tmp_path: Path, change: dict[str, Any], error: str) -> None:
    with pytest.raises(ModelDirectoryError, match=error) as caught:
        load(write(tmp_path, tokenizer__json=spec(**change)))
    assert caught.value.path == tmp_path / "tokenizer.json"


def test_a_template_that_is_none_and_json_that_is_no_object(tmp_path: Path) -> None:
    write(tmp_path, tokenizer__json=spec(), chat_template__jinja="{% if %}")
    with pytest.raises(ModelDirectoryError, match="not a template"):
        load(tmp_path)
    write(tmp_path, config__json=[1])
    with pytest.raises(ModelDirectoryError, match="not a JSON object"):
        load(tmp_path)


def test_the_cache_counts_and_forgets() -> None:
    model = load(embedded_path(), cache_bytes=10_000)
    prompt = model.render(USER)
    first, second = model.encode_prompt(prompt), model.encode_prompt(prompt)
    assert first == second
    assert model.cache_stats.hits == model.cache_stats.misses > 0
    model.clear_cache()
    assert model.cache_stats.entries == 0
