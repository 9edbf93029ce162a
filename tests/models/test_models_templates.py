"""Rendering equals Hugging Face's, over every real template of two packages.

Hugging Face gets the conversation that the template wants (`shape.py`); where a template takes a conversation as it is, that
is the conversation itself.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from typing import Any

import pytest
from catenary_tokenizers.chat import ChatTemplate
from catenary_tokenizers.errors import PromptError
from catenary_tokenizers.probe import open_template
from catenary_tokenizers.safety import Shield
from catenary_tokenizers.shape import shape_messages, shape_tools
from transformers.utils.chat_template_utils import render_jinja_template

from tests.models.conversations import TOOLS, Message, drawn, fixed
from tests.models.fetch import templates

VARIABLES = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
CONTROLS = ["<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>", "[INST]", "<s>"]
CONTROL = re.compile("|".join(map(re.escape, CONTROLS)))
MARKING = Shield(CONTROLS)
PLAIN = Shield([])
CONVERSATIONS = [*fixed(), *map(drawn, range(3))]
# Shown unchanged by these, with and without tools; others merge, demote or drop something.
FIRST_FIVE = {"trl/qwen3": 18, "trl/llama3_1": 10, "trl/deepseekv3": 10, "trl/glm4moe": 18, "trl/gptoss": 12}


@cache
def sources() -> dict[str, str]:
    return {f"{package}/{name}": text for package in ("trl", "axolotl") for name, text in templates(package).items()}


def open_one(source: str) -> ChatTemplate:
    return open_template(source, VARIABLES)


def ours(template: ChatTemplate, messages: list[Message], tools: list[dict[str, Any]], **kwargs: object) -> str:
    return MARKING.clean(template.render(messages, tools, MARKING, datetime.now().astimezone(), kwargs))


def reference(template: ChatTemplate, messages: list[Message], tools: list[dict[str, Any]], **kwargs: object) -> str:
    variables: dict[str, Any] = {**VARIABLES, **kwargs}
    rendered = render_jinja_template(
        [shape_messages(messages, template.traits, PLAIN)],
        tools=[_plain(tool) for tool in shape_tools(tools, template.traits)] or None,
        chat_template=template.source,
        **variables,
    )
    return str(rendered[0][0])


def _plain(tool: Mapping[str, object]) -> dict[str, object]:
    return dict(tool)


@pytest.mark.parametrize("package", ["trl", "axolotl"])
def test_every_template_renders_as_hugging_face_does(package: str) -> None:
    differing = []
    for name, source in sources().items():
        if not name.startswith(package):
            continue
        template = open_one(source)
        assert not template.needs_process, name
        for number, messages in enumerate(CONVERSATIONS):
            for tools in ([], TOOLS):
                prompt = {"add_generation_prompt": messages[-1]["role"] != "assistant"}
                if ours(template, messages, tools, **prompt) != reference(template, messages, tools, **prompt):
                    differing.append((name, number, bool(tools)))
    assert differing == []


@pytest.mark.parametrize("name", FIRST_FIVE)
def test_conversations_a_template_takes_are_given_to_it_unchanged(name: str) -> None:
    template = open_one(sources()[name])
    unchanged = [m for m in CONVERSATIONS if shape_messages(m, template.traits, PLAIN) == m]
    assert len(unchanged) == FIRST_FIVE[name]


def everywhere(text: str) -> tuple[list[Message], list[dict[str, Any]]]:
    """A conversation with a caller's text wherever one may stand."""
    schema = {"type": "object", "properties": {text: {"type": "string", "description": text, "enum": [text]}}}
    tools = [{"type": "function", "function": {"name": text, "description": text, "parameters": schema}}]
    call = {"id": text, "function": {"name": text, "arguments": {text: text, "deep": [{text: [text]}]}}}
    answer = {"role": "assistant", "content": text, "reasoning_content": text, "tool_calls": [call]}
    result = {"role": "tool", "content": text, "tool_call_id": text, "name": text}
    return [{"role": "system", "content": text}, {"role": "user", "content": text}, answer, result], tools


def test_no_template_lets_a_caller_write_control_tokens() -> None:
    def controls(template: ChatTemplate, text: str) -> list[str]:
        messages, tools = everywhere(text)
        marked = template.render(messages, tools, MARKING, datetime.now().astimezone(), {})
        assert MARKING.mark not in MARKING.clean(marked)
        return CONTROL.findall(marked)

    for name, source in sources().items():
        template = open_one(source)
        expected = controls(template, "neutral")
        for control in CONTROLS:
            for attack in (control, control[:-1], control[1:], control[1:-1]):
                assert controls(template, attack) == expected, (name, attack)


@pytest.mark.parametrize("switch", [True, False])
def test_template_variables_reach_it(switch: bool) -> None:
    template = open_one(sources()["trl/qwen3"])
    messages = CONVERSATIONS[0]
    kwargs = {"add_generation_prompt": True, "enable_thinking": switch}
    assert ours(template, messages, [], **kwargs) == reference(template, messages, [], **kwargs)


def test_a_template_that_asks_for_the_date_needs_to_be_given_it() -> None:
    template = open_one(sources()["trl/llama3_2"])
    with pytest.raises(PromptError, match="pass `now`"):
        template.render(CONVERSATIONS[0], [], MARKING, None, {})
