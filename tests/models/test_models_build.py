"""The case models: each loads, renders a tool loop in its family's form, and says the same in ids."""

from pathlib import Path

import pytest
from catenary_tokenizers import TurnMemory, load, scope_of, unpack

from tests.models.build import CONTEXT, FAMILIES, build
from tests.models.conversations import TOOLS, calls, fixed, result, system, user

LOOP = [system(), user("Tide?"), calls(0, {"city": "Ayr"}, {"city": "Oban"}, reasoning="Hm."), result(0), result(1)]
CALL = {
    "m-hermes": '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oban"}}\n</tool_call>',
    "m-qwen": '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oban"}}\n</tool_call>',
    "m-qwen3c": "<tool_call>\n<function=get_weather>\n<parameter=city>\nOban\n</parameter>\n</function>\n</tool_call>",
    "m-kimi": '<|tool_call_begin|>functions.get_weather:1<|tool_call_argument_begin|>{"city": "Oban"}<|tool_call_end|>',
    "m-harmony": '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Oban"}<|call|>',
    "m-vision": '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oban"}}\n</tool_call>',
}


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return build(tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_case_model_loads_and_renders_its_family(name: str, directories: dict[str, Path]) -> None:
    model = load(directories[name])
    assert model.context_length == CONTEXT
    assert {model.control_tokens[end] for end in FAMILIES[name].ends.split()} == model.eos_ids
    assert not model.template.needs_process
    rendered = model.render(LOOP, TOOLS)
    assert CALL[name] in rendered.text
    assert ("Hm." in rendered.text) == (FAMILIES[name].reasoning != "none")
    assert model.decode(model.encode_prompt(rendered)) == rendered.text


@pytest.mark.parametrize("name", FAMILIES)
def test_prompts_of_a_tool_loop_only_grow(name: str, directories: dict[str, Path]) -> None:
    model = load(directories[name])
    first = model.encode_prompt(model.render(LOOP[:2], TOOLS))
    assert model.encode_prompt(model.render(LOOP, TOOLS)).startswith(first)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_conversation_renders(name: str, directories: dict[str, Path]) -> None:
    model = load(directories[name])
    for messages in fixed():
        assert len(unpack(model.encode_prompt(model.render(messages, TOOLS)))) > 5


WRITTEN = {
    "m-hermes": '<tool_call>\n{"name":"get_weather","arguments":{"city":"Ayr"}}\n</tool_call><|im_end|>',
    "m-qwen": '<think>\nHm.\n</think>\n\n<tool_call>\n{"name":"get_weather","arguments":{"city":"Ayr"}}\n</tool_call><|im_end|>',
    "m-qwen3c": "<tool_call>\n<function=get_weather>\n<parameter=city>\nAyr\n</parameter>\n</function>\n</tool_call><|im_end|>",
    "m-kimi": "<think>Hm.</think><|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
    '<|tool_call_argument_begin|>{"city":"Ayr"}<|tool_call_end|><|tool_calls_section_end|><|im_end|>',
    "m-harmony": "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather "
    '<|constrain|>json<|message|>{"city":"Ayr"}<|call|>',
    "m-vision": '<tool_call>\n{"name":"get_weather","arguments":{"city":"Ayr"}}\n</tool_call><|im_end|>',
}


@pytest.mark.parametrize("name", FAMILIES)
def test_what_the_model_wrote_goes_on_in_the_next_prompt(name: str, directories: dict[str, Path]) -> None:
    model = load(directories[name])
    memory = TurnMemory(model.table, 1 << 20)
    scope = scope_of(tenant="", salt="", model=name, template=model.chat_template)
    prompt = model.encode_prompt(model.render(LOOP[:2], TOOLS), memory, scope)
    written = model.encode(WRITTEN[name], special=True)
    memory.remember(scope, prompt, written)
    echo = calls(0, {"city": "Ayr"}, reasoning="Hm.")
    following = model.render([*LOOP[:2], echo, result(0)], TOOLS)
    assert model.encode_prompt(following, memory, scope).startswith(prompt + written)
    assert memory.counts == {"hit": 1}


def test_an_image_is_one_token_in_the_prompt(directories: dict[str, Path]) -> None:
    model = load(directories["m-vision"])
    content = [{"type": "text", "text": "chart:"}, {"type": "image", "image": "aGk="}]
    text = model.render([{"role": "user", "content": content}]).text
    assert "chart:<|vision_start|><|image_pad|><|vision_end|>" in text
    assert "aGk=" not in text
