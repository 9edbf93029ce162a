"""Turn memory: generated ids come back into the next prompt, and the prompt still says what was rendered."""

import json
from typing import Any

import pytest
from catenary_tokenizers import ModelTokenizer, TurnMemory, embedded_path, load, pack, scope_of, unpack
from catenary_tokenizers.spelling import same_but_spelling, same_json
from hypothesis import given, settings
from hypothesis import strategies as st

SCOPE = scope_of(tenant="t", salt="", model="m", template="x")
START: list[dict[str, Any]] = [{"role": "user", "content": "Weather in Bern?"}]
MEGABYTE = 1 << 20


@pytest.fixture(scope="module")
def model() -> ModelTokenizer:
    return load(embedded_path())


def spelled(model: ModelTokenizer, text: str) -> bytes:
    """Ids of a text as no tokenizer would cut it: control tokens whole, everything else a byte a token."""
    byte_ids = {bytes(piece): index for index, piece in enumerate(model.table.pieces) if len(piece) == 1}
    out = b""
    for part in model._cutter.cut(text):
        known = model.control_tokens.get(part)
        out += pack([known]) if known is not None else pack([byte_ids[bytes([byte])] for byte in part.encode()])
    return out


def runs(model: ModelTokenizer, ids: bytes) -> list[str]:
    """The texts between a prompt's control tokens."""
    found: list[list[int]] = [[]]
    for token in unpack(ids):
        if token in model.table.controls:
            found.append([])
        else:
            found[-1].append(token)
    return [model.decode(pack(run)) for run in found]


def answered(reasoning: str = "", content: str = "", arguments: object = None) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if reasoning:
        message["reasoning_content"] = reasoning
    if arguments is not None:
        message["tool_calls"] = [{"id": "c", "function": {"name": "get_weather", "arguments": arguments}}]
    return message


def next_prompt(model: ModelTokenizer, memory: TurnMemory, echo: dict[str, Any]) -> tuple[bytes, str]:
    rendered = model.render([*START, echo, {"role": "tool", "content": "sunny", "tool_call_id": "c"}])
    return model.encode_prompt(rendered, memory, SCOPE), rendered.text


def first_prompt(model: ModelTokenizer) -> bytes:
    return model.encode_prompt(model.render(START))


def test_a_turn_sent_back_is_spliced_whole(model: ModelTokenizer) -> None:
    memory = TurnMemory(model.table, MEGABYTE)
    text = '<think>\nLook.\n</think>\n\nWait.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bern"}}\n</tool_call>'
    prompt, generated = first_prompt(model), spelled(model, text + "<|im_end|>")
    memory.remember(SCOPE, prompt, generated)
    ids, rendered = next_prompt(model, memory, answered("Look.", "Wait.", {"city": "Bern"}))
    assert ids.startswith(prompt + generated)
    assert model.decode(ids) == rendered
    assert memory.counts == {"hit": 1}


def test_json_of_calls_may_be_spelled_anew(model: ModelTokenizer) -> None:
    memory = TurnMemory(model.table, MEGABYTE)
    text = '<tool_call>\n{"name":"get_weather","arguments":{"b":9000.0,"a":"\\u00fc"}}\n</tool_call>'
    prompt, generated = first_prompt(model), spelled(model, text + "<|im_end|>")
    memory.remember(SCOPE, prompt, generated)
    ids, _ = next_prompt(model, memory, answered(arguments='{"a":"ü","b":9000}'))
    assert ids.startswith(prompt + generated)
    assert memory.counts == {"hit": 1}


@pytest.mark.parametrize(
    ("echo", "reason"),
    [
        (answered("Look.", "Other."), "text"),
        (answered("", "Wait."), "reasoning"),
        (answered("Look.", "Wait.", {"city": "Basel"}), "arguments"),
    ],
)
def test_what_differs_is_encoded_and_counted(model: ModelTokenizer, echo: dict[str, Any], reason: str) -> None:
    memory = TurnMemory(model.table, MEGABYTE)
    text = '<think>\nLook.\n</think>\n\nWait.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bern"}}\n</tool_call>'
    memory.remember(SCOPE, first_prompt(model), spelled(model, text + "<|im_end|>"))
    ids, rendered = next_prompt(model, memory, echo)
    assert model.decode(ids) == rendered
    assert memory.counts == {reason: 1}


def test_a_cut_answer_keeps_the_tokens_wholly_inside_it(model: ModelTokenizer) -> None:
    memory = TurnMemory(model.table, MEGABYTE)
    prompt, generated = first_prompt(model), spelled(model, "It is warm. STOP and more")
    memory.remember(SCOPE, prompt, generated)
    rendered = model.render([*START, answered(content="It is warm. "), {"role": "user", "content": "ok"}])
    ids = model.encode_prompt(rendered, memory, SCOPE)
    assert ids.startswith(prompt + spelled(model, "It is warm. ") + pack([model.control_tokens["<|im_end|>"]]))
    assert model.decode(ids) == rendered.text


def test_another_tenant_shares_nothing(model: ModelTokenizer) -> None:
    memory = TurnMemory(model.table, MEGABYTE)
    memory.remember(SCOPE, first_prompt(model), spelled(model, "Sunny."))
    rendered = model.render([*START, answered(content="Sunny."), START[0]])
    other = scope_of(tenant="other", salt="", model="m", template="x")
    assert model.encode_prompt(rendered, memory, other) == model.encode_prompt(rendered)
    assert memory.counts == {"unknown": 1}
    assert scope_of(tenant="a", salt="b", model="", template="") != scope_of(
        tenant="ab", salt="", model="", template=""
    )


def test_memory_is_bounded_and_moves_with_its_session(model: ModelTokenizer) -> None:
    memory = TurnMemory(model.table, 40_000)
    for turn in range(100):
        memory.remember(SCOPE, first_prompt(model) + pack([turn]) * 3, spelled(model, "x" * 200), session=str(turn % 2))
        assert memory.size <= 40_000
    moved = TurnMemory(model.table, MEGABYTE)
    assert memory.sessions() == {"0", "1"}
    leaving = memory.take({"1"})
    moved.accept(leaving)
    moved.accept(leaving)
    assert moved.sessions() == {"1"}
    assert moved.take({"1"}) == leaving
    assert len(memory.take({"0", "1"})) > 0
    assert memory.size == moved.size == 0
    assert not any(memory.openings.values())


WORDS = ["Hm.", "a b", "\n", " x ", "ü🌊", "{", '{"a": 1}', "<think>", "</tool_call>", "\ue000", "\ue001", "é"]
TEXTS = st.lists(st.sampled_from(WORDS), max_size=4).map("".join)
VALUES = st.dictionaries(st.sampled_from(["a", "b", "ü"]), st.one_of(st.none(), st.booleans(), st.floats(-9, 9), TEXTS))
ANSWERS = st.tuples(TEXTS, TEXTS, VALUES)


@settings(max_examples=300, deadline=None)
@given(said=ANSWERS, echoed=ANSWERS, same=st.booleans(), cut=st.integers(0, 60))
def test_the_prompt_says_what_was_rendered(
    model: ModelTokenizer, said: tuple[str, str, Any], echoed: tuple[str, str, Any], same: bool, cut: int
) -> None:
    """The law: with any memory at all, decoded ids are the rendered text, but for the spelling of a call's JSON and for
    white space beside the answer's markers.
    """
    memory = TurnMemory(model.table, MEGABYTE)
    reasoning, content, arguments = said
    generated = spelled(
        model,
        f"<think>\n{reasoning}\n</think>\n\n{content}\n<tool_call>\n"
        f'{{"name":"get_weather","arguments":{json.dumps(arguments)}}}\n</tool_call><|im_end|>',
    )
    memory.remember(SCOPE, first_prompt(model), generated[: len(generated) - 4 * cut])
    echo = said if same else echoed
    ids, rendered = next_prompt(model, memory, answered(*echo))
    plain, _ = next_prompt(model, TurnMemory(model.table, 0), answered(*echo))
    assert model.decode(plain) == rendered
    controls = set(model.control_tokens.values())
    assert [i for i in unpack(ids) if i in controls] == [i for i in unpack(plain) if i in controls]
    before = len(runs(model, first_prompt(model))) - 1
    after = runs(model, plain).index("user\n", before)
    for place, (left, right) in enumerate(zip(runs(model, ids), runs(model, plain), strict=True)):
        inside = before <= place < after
        assert left == right or (inside and same_but_spelling(left.strip(), right.strip(), [echo[2]]))


SPACE = st.text(" \n\t", max_size=3)
PLAIN = st.sampled_from(["Hm.", "a b", "ü🌊 {", "x\n\ny"])


@settings(max_examples=200, deadline=None)
@given(said=st.tuples(PLAIN, PLAIN, st.dictionaries(PLAIN, PLAIN)), spaces=st.lists(SPACE, min_size=7, max_size=7))
def test_white_space_beside_markers_is_the_models_own(
    model: ModelTokenizer, said: tuple[str, str, Any], spaces: list[str]
) -> None:
    memory = TurnMemory(model.table, MEGABYTE)
    call = json.dumps({"name": "get_weather", "arguments": said[2]})
    parts = ["<think>", said[0], "</think>", said[1], "<tool_call>", call, "</tool_call>"]
    generated = "".join(part + space for part, space in zip(parts, spaces, strict=True))
    prompt, ids = first_prompt(model), spelled(model, f"{generated}<|im_end|>")
    memory.remember(SCOPE, prompt, ids)
    following, _ = next_prompt(model, memory, answered(*said))
    assert following.startswith(prompt + ids)
    assert memory.counts == {"hit": 1}


def test_white_space_that_touches_no_marker_is_text(model: ModelTokenizer) -> None:
    memory = TurnMemory(model.table, MEGABYTE)
    memory.remember(SCOPE, first_prompt(model), spelled(model, "\nIt is warm.<|im_end|>"))
    ids, rendered = next_prompt(model, memory, answered(content="It is warm."))
    assert model.decode(ids) == rendered
    assert memory.counts == {"text": 1}


def test_json_values_are_compared_by_type() -> None:
    assert same_json({"a": 1, "b": [1.0]}, {"b": [1], "a": 1})
    for left, right in [(True, 1), ("1", 1), (None, False), ([1], [1, 2]), ({"a": 1}, {"b": 1}), (0, None)]:
        assert not same_json(left, right)
