"""The model that comes with the package: load, render, encode, detokenise, hash."""

from pathlib import Path

import pytest
from catenary_tokenizers import ModelDirectoryError, ModelTokenizer, block_hashes, embedded_path, load, pack, unpack
from catenary_tokenizers.blocks import extend_hashes
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer


@pytest.fixture(scope="module")
def model() -> ModelTokenizer:
    return load(embedded_path())


TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
TURN: list[dict[str, object]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Weather in Zürich?"},
    {
        "role": "assistant",
        "content": "Wait.",
        "reasoning_content": "Look it up.",
        "tool_calls": [{"id": "c1", "function": {"name": "get_weather", "arguments": {"city": "Zürich"}}}],
    },
    {"role": "tool", "content": "sunny", "tool_call_id": "c1"},
]


def test_facts_of_the_embedded_model(model: ModelTokenizer) -> None:
    assert model.context_length == 131_072
    assert model.eos_ids == {model.control_tokens["<|im_end|>"]}
    assert len(model.control_tokens) == 9
    assert not model.template.needs_process


def test_a_turn_renders_in_chatml_with_hermes_calls(model: ModelTokenizer) -> None:
    assert model.render(TURN).text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nWeather in Zürich?<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nLook it up.\n</think>\n\nWait.\n"
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\nsunny\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_thinking_switched_off_closes_it_in_the_prompt(model: ModelTokenizer) -> None:
    rendered = model.render(TURN, enable_thinking=False)
    assert rendered.end.endswith("assistant\n<think>\n\n</think>\n\n")
    assert rendered.text.endswith(rendered.end)


def test_a_prompt_is_a_prefix_of_the_next_ones(model: ModelTokenizer) -> None:
    first = model.render(TURN[:2], [TOOL]).text
    assert model.render(TURN, [TOOL]).text.startswith(first)
    assert '"name": "get_weather"' in first


def test_ids_equal_the_reference_and_decode_to_the_prompt(model: ModelTokenizer) -> None:
    rendered = model.render(TURN, [TOOL])
    ids = model.encode_prompt(rendered)
    reference = Tokenizer.from_file(str(embedded_path() / "tokenizer.json"))
    assert list(unpack(ids)) == reference.encode(rendered.text, add_special_tokens=False).ids
    assert model.decode(ids) == rendered.text


def test_block_hashes_chain_and_go_on_from_a_parent() -> None:
    ids = pack(range(100))
    whole = block_hashes(ids, 16)
    assert len(whole) == 6 * 8
    parent = int.from_bytes(whole[8:16], "little")
    assert block_hashes(ids[32 * 4 :], 16, parent=parent) == whole[16:]
    assert block_hashes(ids, 16, salt="a") != block_hashes(ids, 16, lora="a") != whole
    assert block_hashes(ids, 16, salt="a", lora="b") != block_hashes(ids, 16, salt="ab")


@given(st.lists(st.integers(0, 9000), max_size=70), st.lists(st.integers(0, 9000), max_size=70), st.integers(1, 20))
def test_two_prompts_share_a_hash_exactly_where_they_share_the_prefix(
    left: list[int], right: list[int], size: int
) -> None:
    ours, theirs = block_hashes(pack(left), size), block_hashes(pack(right), size)
    for end in range(8, min(len(ours), len(theirs)) + 1, 8):
        tokens = end // 8 * size
        assert (ours[end - 8 : end] == theirs[end - 8 : end]) == (left[:tokens] == right[:tokens])


@given(st.lists(st.integers(0, 3), max_size=40), st.lists(st.integers(0, 3), max_size=40), st.integers(1, 5))
def test_hashes_extended_from_a_known_prompt_are_the_same(known: list[int], new: list[int], size: int) -> None:
    before, ids = pack(known), pack([*known[: len(new)], *new])
    assert extend_hashes(before, block_hashes(before, size), ids, size) == block_hashes(ids, size)


def test_a_directory_without_a_vocabulary_says_so(tmp_path: Path) -> None:
    with pytest.raises(ModelDirectoryError, match="missing or empty"):
        load(tmp_path)
    with pytest.raises(ModelDirectoryError, match="not a directory"):
        load(tmp_path / "nowhere")
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelDirectoryError, match="not JSON"):
        load(tmp_path)
