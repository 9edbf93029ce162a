"""Added tokens of every kind: cut, encoded and kept out of content as the reference tokenizer finds them."""

import json
from pathlib import Path
from typing import Any

import pytest
from catenary_tokenizers import ModelTokenizer, embedded_path, load, unpack
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

KINDS: dict[str, dict[str, bool]] = {
    "<l>": {"lstrip": True},
    "<r>": {"rstrip": True},
    "<lr>": {"lstrip": True, "rstrip": True},
    "word": {"single_word": True},
    "a-marker": {"single_word": True},
    "<think>x": {},
    "<normalized>": {"normalized": True},
    "\n\n": {},
    "    ": {"normalized": True},
    "~": {},
}
TEXTS = st.lists(
    st.one_of(
        st.sampled_from(
            [
                *KINDS,
                "<think>",
                "wordy",
                " word ",
                "a-markers",
                " a-marker ",
                "\n",
                " ",
                "\t",
                "a",
                "\x1c",
                "\u3000",
                "¼",
                "Ⓐ",
                "é",
            ]
        ),
        st.text(max_size=3),
    ),
    max_size=10,
).map("".join)


def variant(directory: Path, change: dict[str, Any]) -> tuple[ModelTokenizer, Tokenizer]:
    """The embedded vocabulary with these fields of its `tokenizer.json` changed, and its reference."""
    spec = json.loads((embedded_path() / "tokenizer.json").read_bytes())
    vocab = spec["model"]["vocab"]
    flags = {**spec["added_tokens"][0], "special": False}
    for text, kind in KINDS.items():
        index = vocab.get(text, max(token["id"] for token in spec["added_tokens"]) + 1)
        spec["added_tokens"].append({**flags, "id": index, "content": text, **kind})
    directory.mkdir(exist_ok=True)
    (directory / "tokenizer.json").write_text(json.dumps(spec | change))
    return load(directory), Tokenizer.from_file(str(directory / "tokenizer.json"))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelTokenizer, Tokenizer]:
    return variant(tmp_path_factory.mktemp("plain"), {})


@pytest.fixture(scope="module")
def spaced(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelTokenizer, Tokenizer]:
    """A pre-tokenizer that treats the start of a prompt apart."""
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True}
    steps = [metaspace, {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]
    return variant(tmp_path_factory.mktemp("spaced"), {"pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}})


@settings(max_examples=300, deadline=None)
@given(text=TEXTS)
def test_cut_at_added_tokens_as_the_reference_does(plain: tuple[ModelTokenizer, Tokenizer], text: str) -> None:
    model, reference = plain
    assert list(unpack(model.encode(text, special=True))) == reference.encode(text, add_special_tokens=False).ids


@settings(max_examples=300, deadline=None)
@given(text=TEXTS)
def test_the_start_of_a_prompt_is_treated_apart_where_the_reference_does(
    spaced: tuple[ModelTokenizer, Tokenizer], text: str
) -> None:
    model, reference = spaced
    assert list(unpack(model.encode(text, special=True))) == reference.encode(text, add_special_tokens=False).ids


@settings(max_examples=300, deadline=None)
@given(text=TEXTS)
def test_content_holds_none_of_them(plain: tuple[ModelTokenizer, Tokenizer], text: str) -> None:
    model, _ = plain
    ids = model.encode(text, special=False)
    assert set(model.control_tokens.values()).isdisjoint(unpack(ids))
    assert model.decode(ids) == text


def test_white_space_and_single_characters_are_text(plain: tuple[ModelTokenizer, Tokenizer]) -> None:
    model, reference = plain
    assert {"\n\n", "    ", "~"}.isdisjoint(model.control_tokens)
    ids = list(unpack(model.encode("a\n\n    ~", special=False)))
    assert ids == reference.encode("a\n\n    ~", add_special_tokens=False).ids


def test_unsafe_models_let_content_be_control_tokens() -> None:
    model = load(embedded_path(), safe=False)
    ids = model.encode_prompt(model.render([{"role": "user", "content": "<|im_end|>"}]))
    end = model.control_tokens["<|im_end|>"]
    assert list(unpack(ids)).count(end) == 2
    assert end not in unpack(model.encode("<|im_end|>", special=False))
