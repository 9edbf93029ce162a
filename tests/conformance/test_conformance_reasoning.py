"""What a model thought goes back before its own call, through every API alike, in the real templates of five families."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from catenary_protocols.apis.chat import CHAT
from catenary_protocols.apis.messages import messages_api
from catenary_protocols.apis.responses import responses_api
from catenary_protocols.conversation import Conversation
from catenary_tokenizer_service.core.shape import chat_messages, chat_tools
from catenary_tokenizers.chat import ChatTemplate
from catenary_tokenizers.probe import open_template
from catenary_tokenizers.safety import Shield

from tests.models.fetch import templates

Json = dict[str, Any]

NOW = datetime(2026, 2, 3, tzinfo=UTC)
SCHEMA = {"type": "object", "properties": {"port": {"type": "string"}}}
TEMPLATES = {
    "nemotron": ("trl", "nemotron_3_super"),
    "qwen": ("trl", "qwen3"),
    "deepseek": ("axolotl", "deepseek_v3"),
    "deepseek, once": ("trl", "deepseekv3"),
    "glm": ("trl", "glm4moe"),
    "gpt-oss": ("trl", "gptoss"),
}


class Marked:
    """Seals by a mark."""

    def seal(self, text: str) -> str:
        return f"sealed:{text}"

    def open(self, token: str) -> str | None:
        return token.removeprefix("sealed:") if token.startswith("sealed:") else None


@dataclass(frozen=True)
class Asked:
    """What the user said."""

    text: str


@dataclass(frozen=True)
class Answer:
    """What the model said in one go: (thought, port that its call is for) in order, then text after a last thought."""

    steps: tuple[tuple[str, str], ...] = ()
    thought: str = ""
    text: str = ""


@dataclass(frozen=True)
class Told:
    """What the tool said of a port."""

    port: str


History = Sequence[Asked | Answer | Told]


def sent_in_chat(history: History) -> Conversation:
    messages: list[Json] = []
    for one in history:
        match one:
            case Asked():
                messages.append({"role": "user", "content": one.text})
            case Told():
                messages.append({"role": "tool", "tool_call_id": f"call_{one.port}", "content": f"tide {one.port}"})
            case Answer():
                thoughts = [thought for thought, _ in one.steps] + ([one.thought] if one.thought else [])
                message: Json = {"role": "assistant", "content": one.text or None}
                message["reasoning_content"] = thoughts[0] if len(thoughts) == 1 else thoughts
                message["tool_calls"] = [_chat_call(port) for _, port in one.steps] or None
                messages.append(message)
    tool = {"type": "function", "function": {"name": "tide", "parameters": SCHEMA}}
    return CHAT.read(_body(messages=messages, tools=[tool])).conversation


def sent_in_chat_one_by_one(history: History) -> Conversation:
    """From a client that begins a message with each thought."""
    apart: list[Asked | Answer | Told] = []
    for one in history:
        if isinstance(one, Answer):
            *before, last = [Answer(steps=(step,)) for step in one.steps] or [Answer()]
            last = Answer(steps=last.steps, text=one.text) if not one.thought else last
            apart += [*before, last] if last.steps else before
            apart += [Answer(thought=one.thought, text=one.text)] if one.thought else []
        else:
            apart.append(one)
    return sent_in_chat(apart)


def sent_in_messages(history: History) -> Conversation:
    messages: list[Json] = []
    for one in history:
        match one:
            case Asked():
                messages.append({"role": "user", "content": one.text})
            case Told():
                block = {"type": "tool_result", "tool_use_id": f"call_{one.port}", "content": f"tide {one.port}"}
                if messages[-1]["role"] == "user" and isinstance(messages[-1]["content"], list):
                    messages[-1]["content"].append(block)
                else:
                    messages.append({"role": "user", "content": [block]})
            case Answer():
                content: list[Json] = []
                for thought, port in one.steps:
                    content.append(_thinking(thought))
                    content.append({"type": "tool_use", "id": f"call_{port}", "name": "tide", "input": {"port": port}})
                content += [_thinking(one.thought)] if one.thought else []
                content += [{"type": "text", "text": one.text}] if one.text else []
                messages.append({"role": "assistant", "content": content})
    tool = {"name": "tide", "input_schema": SCHEMA}
    return messages_api(Marked()).read(_body(max_tokens=9, messages=messages, tools=[tool])).conversation


def sent_in_responses(history: History) -> Conversation:
    items: list[Json] = []
    for one in history:
        match one:
            case Asked():
                items.append({"role": "user", "content": one.text})
            case Told():
                output = {"type": "function_call_output", "call_id": f"call_{one.port}", "output": f"tide {one.port}"}
                items.append(output)
            case Answer():
                for thought, port in one.steps:
                    items.append(_reasoning(thought))
                    items.append({"type": "function_call", "call_id": f"call_{port}", **_called(port)})
                items += [_reasoning(one.thought)] if one.thought else []
                text = {"type": "output_text", "text": one.text}
                items += [{"type": "message", "role": "assistant", "content": [text]}] if one.text else []
    tool = {"type": "function", "name": "tide", "parameters": SCHEMA}
    return responses_api(Marked()).read(_body(input=items, tools=[tool])).conversation


def _body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", **fields}).encode()


def _called(port: str) -> Json:
    return {"name": "tide", "arguments": json.dumps({"port": port})}


def _chat_call(port: str) -> Json:
    return {"id": f"call_{port}", "type": "function", "function": _called(port)}


def _thinking(thought: str) -> Json:
    return {"type": "thinking", "thinking": thought, "signature": f"sealed:{thought}"}


def _reasoning(thought: str) -> Json:
    return {"type": "reasoning", "summary": [], "encrypted_content": f"sealed:{thought}"}


READERS: dict[str, Callable[[History], Conversation]] = {
    "chat": sent_in_chat,
    "chat, one by one": sent_in_chat_one_by_one,
    "messages": sent_in_messages,
    "responses": sent_in_responses,
}


@cache
def template_of(family: str) -> ChatTemplate:
    package, name = TEMPLATES[family]
    return open_template(templates(package)[name], {"bos_token": "<s>", "eos_token": "</s>"})


def prompt(family: str, history: History, **options: object) -> str:
    """The prompt, which is the same through all APIs."""
    prompts = {}
    for api, sent in READERS.items():
        conversation = sent(history)
        messages, tools = chat_messages(conversation), chat_tools(conversation)
        prompts[api] = template_of(family).render(messages, tools, Shield([]), NOW, options)
    assert len(set(prompts.values())) == 1, prompts
    return prompts["chat"]


LOOP: History = (
    Asked("Where is it high?"),
    Answer(steps=(("First Ayr.", "Ayr"),)),
    Told("Ayr"),
    Answer(steps=(("Oban then.", "Oban"),)),
    Told("Oban"),
    Answer(steps=(("Last Wick.", "Wick"),)),
    Told("Wick"),
)
AT_ONCE: History = (
    Asked("Where is it high?"),
    Answer(steps=(("First Ayr.", "Ayr"), ("Oban then.", "Oban"), ("Last Wick.", "Wick"))),
    Told("Ayr"),
    Told("Oban"),
    Told("Wick"),
)
NEMOTRON = (
    "<|im_start|>assistant\n<think>\n{}\n</think>\n<tool_call>\n<function=tide>\n<parameter=port>\n{}\n</parameter>"
)
QWEN = '<|im_start|>assistant\n<think>\n{}\n</think>\n\n<tool_call>\n{{"name": "tide", "arguments": {{"port": "{}"}}}}'
GLM = "<|assistant|>\n<think>{}</think>\n<tool_call>tide\n<arg_key>port</arg_key>\n<arg_value>{}</arg_value>"
GPT_OSS = (
    "<|start|>assistant<|channel|>analysis<|message|>{}<|end|>"
    '<|start|>assistant to=functions.tide<|channel|>commentary json<|message|>{{"port": "{}"}}<|call|>'
)
DEEPSEEK_CALL = '<｜tool▁call▁begin｜>function<｜tool▁sep｜>tide\n```json\n{{"port": "{}"}}\n```'
DEEPSEEK = "<｜Assistant｜><think>\n{}\n</think>\n\n<｜tool▁calls▁begin｜>" + DEEPSEEK_CALL
DEEPSEEK_LATER = "<｜tool▁outputs▁end｜><think>\n{}\n</think>\n\n<｜end▁of▁sentence｜>\n" + DEEPSEEK_CALL
FORMS = {"nemotron": NEMOTRON, "qwen": QWEN, "deepseek": DEEPSEEK, "glm": GLM, "gpt-oss": GPT_OSS}
THOUGHTS = (("First Ayr.", "Ayr"), ("Oban then.", "Oban"), ("Last Wick.", "Wick"))


def in_order(text: str, *pieces: str) -> bool:
    """Whether each piece is there once, behind the one before it."""
    places = [text.find(piece) for piece in pieces]
    return -1 not in places and places == sorted(places) and all(text.count(piece) == 1 for piece in pieces)


@pytest.mark.parametrize("family", FORMS)
def test_each_thought_of_a_tool_loop_stands_before_its_own_call(family: str) -> None:
    steps = [piece for step in THOUGHTS for piece in (FORMS[family].format(*step), f"tide {step[1]}")]
    assert in_order(prompt(family, LOOP), *steps)


@pytest.mark.parametrize("family", FORMS)
def test_thoughts_between_the_calls_of_one_answer_stand_before_their_own(family: str) -> None:
    text = prompt(family, AT_ONCE)
    assert in_order(text, *(FORMS[family].format(*step) for step in THOUGHTS))
    assert in_order(text, *(f"tide {port}" for _, port in THOUGHTS))
    assert all(text.count(thought) == 1 for thought, _ in THOUGHTS)


def test_a_template_that_prints_thoughts_before_the_first_call_alone_gets_them_where_it_prints_them() -> None:
    looped = prompt("deepseek, once", LOOP)
    later = (DEEPSEEK_LATER.format(*step) for step in THOUGHTS[1:])
    assert in_order(looped, DEEPSEEK.format(*THOUGHTS[0]), "tide Ayr", *later)
    at_once = prompt("deepseek, once", AT_ONCE)
    calls = (DEEPSEEK_CALL.format(port) for _, port in THOUGHTS[1:])
    assert in_order(at_once, DEEPSEEK.format("\n".join(thought for thought, _ in THOUGHTS), "Ayr"), *calls)


@pytest.mark.parametrize("family", TEMPLATES)
def test_what_follows_the_calls_is_not_lost(family: str) -> None:
    answer = Answer(steps=THOUGHTS[:2], thought="Enough.", text="One moment.")
    text = prompt(family, (Asked("Where?"), answer, Told("Ayr"), Told("Oban")))
    said = ("First Ayr.", "Oban then.", "Enough.", "One moment.", "tide Ayr", "tide Oban")
    assert all(text.count(one) == 1 for one in said)
    if family in {"nemotron", "qwen", "glm"}:
        steps = [FORMS[family].format(*step) for step in THOUGHTS[:2]]
        assert in_order(text, *steps, "Enough.", "One moment.", "tide Ayr", "tide Oban")


@pytest.mark.parametrize("family", TEMPLATES)
def test_a_loop_only_ever_adds_to_its_prompt(family: str) -> None:
    prompts = [prompt(family, LOOP[:end]) for end in (1, 3, 5, 7)]
    assert [later.startswith(earlier) for earlier, later in pairwise(prompts)] == [True] * 3


def questions() -> History:
    """Three questions, each with thoughts and calls by turns and an answer that was thought about."""
    history: list[Asked | Answer | Told] = []
    for n in range(3):
        both = Answer(steps=((f"Think {n}a.", f"Ayr{n}"), (f"Think {n}b.", f"Oban{n}")))
        third = Answer(steps=((f"Think {n}c.", f"Wick{n}"),))
        history += [Asked(f"Question {n}?"), both, Told(f"Ayr{n}"), Told(f"Oban{n}"), third, Told(f"Wick{n}")]
        history += [Answer(thought=f"Think {n}d.", text=f"Said {n}.")] if n < 2 else []
    return history


def test_nemotron_keeps_every_thought_of_three_turns_before_its_call_when_told_to() -> None:
    text = prompt("nemotron", questions(), truncate_history_thinking=False)
    ports = {"a": "Ayr", "b": "Oban", "c": "Wick"}
    steps = [NEMOTRON.format(f"Think {n}{step}.", f"{port}{n}") for n in range(3) for step, port in ports.items()]
    assert in_order(text, *steps)
    assert in_order(text, steps[2], "<think>\nThink 0d.\n</think>\nSaid 0.", *steps[3:6], "Think 1d.", *steps[6:])


@pytest.mark.parametrize(
    ("family", "kept"),
    [
        ("nemotron", ("2a", "2b", "2c")),
        ("qwen", ("2a", "2b", "2c")),
        ("glm", ("2a", "2b", "2c")),
        ("gpt-oss", ("2a", "2b", "2c")),
        ("deepseek", ("0a", "0b", "0c", "0d", "1a", "1b", "1c", "1d", "2a", "2b", "2c")),
    ],
)
def test_which_thoughts_of_earlier_questions_stay_is_the_templates_policy(family: str, kept: tuple[str, ...]) -> None:
    text = prompt(family, questions())
    told = [f"{n}{step}" for n in range(3) for step in "abcd" if f"Think {n}{step}." in text]
    assert told == list(kept)
    ports = {"a": "Ayr", "b": "Oban", "c": "Wick"}
    assert in_order(
        text, *(FORMS[family].format(f"Think {one}.", f"{ports[one[1]]}{one[0]}") for one in kept if one[1] in ports)
    )
