"""Reading prompts of many chat templates by their control tokens alone."""

import re

import pytest
from catenary_tokenizers import ControlToken
from catenary_worker.engines.sim.offers import read_offers
from catenary_worker.engines.sim.prompt import PromptView, read_prompt
from hypothesis import given, settings
from hypothesis import strategies as st

WEATHER = '{"type": "function", "function": {"name": "tide", "description": "Tide table", "parameters": {"type": "object", "properties": {"port": {"type": "string"}}, "required": ["port"]}}}'


def view(text: str, controls: str = r"<\|[^|]+\|>|<｜[^｜]+｜>") -> PromptView:
    parts: list[str | ControlToken] = []
    for at, part in enumerate(re.split(f"({controls})", text)):
        if at % 2:
            parts.append(ControlToken(id=at, text=part, special=True))
        elif part:
            parts.append(part)
    return read_prompt(parts)


CHATML = r"<\|[^|]+\|>|</?(?:think|tool_call|tool_response)>"
ASKED = [
    (
        (
            f"<|im_start|>system\nBe kind.\n<tools>\n{WEATHER}\n</tools>\n<tool_call>\n{{}}\n</tool_call><|im_end|>\n"
            "<|im_start|>user\nTide at Ayr?<|im_end|>\n<|im_start|>assistant\n"
        ),
        CHATML,
    ),
    (
        (
            f"<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n{WEATHER}<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nTide at Ayr?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
        ),
        CHATML,
    ),
    (f"<｜begin▁of▁sentence｜>{WEATHER}<｜User｜>Tide at Ayr?<｜Assistant｜><think>\n", r"<｜[^｜]+｜>|<think>"),
    (f"<s>[AVAILABLE_TOOLS] [{WEATHER}][/AVAILABLE_TOOLS][INST] Tide at Ayr?[/INST]", r"<s>|\[/?[A-Z_]+\]"),
    (
        (
            f"<|im_system|>tool_declare<|im_middle|>[{WEATHER}]<|im_end|><|im_user|>user<|im_middle|>Tide at Ayr?<|im_end|>"
            "<|im_assistant|>assistant<|im_middle|>"
        ),
        CHATML,
    ),
    (f"[gMASK]<sop><|system|>\n# Tools\n{WEATHER}<|user|>\nTide at Ayr?<|assistant|>\n", r"\[gMASK\]|<sop>|<\|\w+\|>"),
    (
        (
            "<|start|>system<|message|>You are a model.<|end|><|start|>developer<|message|># Tools\n\n## functions\n\n"
            "namespace functions {\n\n// Tide table\ntype tide = (_: {\n// where\nport: string,\n}) => any;\n\n"
            "} // namespace functions<|end|><|start|>user<|message|>Tide at Ayr?<|end|><|start|>assistant"
        ),
        CHATML,
    ),
    (
        (
            "<|im_start|>system\n<tools>\n<function>\n<name>tide</name>\n<description>Tide table</description>\n<parameters>\n"
            "<parameter>\n<name>port</name>\n<type>string</type>\n</parameter>\n<required>['port']</required>\n</parameters>\n"
            "</function>\n</tools><|im_end|>\n<|im_start|>user\nTide at Ayr?<|im_end|>\n<|im_start|>assistant\n"
        ),
        CHATML,
    ),
    (
        f"<bos><start_of_turn>user\n{WEATHER}\n\nTide at Ayr?<end_of_turn>\n<start_of_turn>model\n",
        r"<bos>|<\w+_of_turn>",
    ),
]


@pytest.mark.parametrize(("text", "controls"), ASKED)
def test_the_question_and_the_tools_are_found(text: str, controls: str) -> None:
    seen = view(text, controls)
    assert seen.user.endswith("Tide at Ayr?")
    assert seen.results == ()
    assert [offer.name for offer in seen.tools] == ["tide"]
    assert seen.tools[0].description == "Tide table"
    properties = seen.tools[0].parameters["properties"]
    assert isinstance(properties, dict)
    assert properties["port"]["type"] == "string"


SURROUNDED = """<system-reminder>
You are in `/tmp/here`. Offer the skill <skill>
review
</skill> when asked to.
</system-reminder>
<env>a shell</env>
Tide at <b>Ayr</b>?"""


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (SURROUNDED, "Tide at <b>Ayr</b>?"),
        ("Tide at Ayr?\n<system-reminder>\nBe brief.\n</system-reminder>", "Tide at Ayr?"),
        ("<question>\nTide at Ayr?\n</question>", "<question>\nTide at Ayr?\n</question>"),
        ("Is <i>\nAyr\n</i> high?\n<open> at Ayr", "Is <i>\nAyr\n</i> high?\n<open> at Ayr"),
    ],
)
def test_what_a_harness_puts_beside_the_users_words_is_not_theirs(said: str, words: str) -> None:
    assert view(f"<|im_start|>user\n{said}<|im_end|>\n<|im_start|>assistant\n").user == words


RESULTS = [
    (
        (
            "<|im_start|>user\nTide?<|im_end|>\n<|im_start|>assistant\n<tool_call>\n{}\n</tool_call><|im_end|>\n"
            "<|im_start|>user\n<tool_response>\nhigh\n</tool_response>\n<tool_response>\nlow\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
        ),
        CHATML,
        ("high", "low"),
    ),
    (
        "<|im_start|>user\nTide?<|im_end|>\n<|im_start|>user\n<tool_response>\nhigh\n</tool_response><|im_end|>\n<|im_start|>assistant\n",
        r"<\|[^|]+\|>",
        ("high",),
    ),
    (
        (
            "<|start_header_id|>user<|end_header_id|>\n\nTide?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n{}<|eot_id|>"
            "<|start_header_id|>ipython<|end_header_id|>\n\nhigh<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
        ),
        CHATML,
        ("high",),
    ),
    (
        "<s>[INST] Tide?[/INST][TOOL_CALLS] [{}]</s>[TOOL_RESULTS] high[/TOOL_RESULTS]",
        r"</?s>|\[/?[A-Z_]+\]",
        ("high",),
    ),
    (
        (
            "<｜User｜>Tide?<｜Assistant｜><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>tide<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
            "<｜end▁of▁sentence｜><｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>high<｜tool▁output▁end｜><｜tool▁outputs▁end｜>"
        ),
        r"<｜[^｜]+｜>",
        ("high",),
    ),
    (
        (
            "<|im_user|>user<|im_middle|>Tide?<|im_end|><|im_assistant|>assistant<|im_middle|>{}<|im_end|>"
            "<|im_system|>tide<|im_middle|>high<|im_end|><|im_assistant|>assistant<|im_middle|>"
        ),
        CHATML,
        ("high",),
    ),
    ("<|user|>\nTide?<|assistant|>\n<|observation|>\nhigh<|assistant|>\n", r"<\|\w+\|>", ("high",)),
    (
        (
            "<|start|>user<|message|>Tide?<|end|><|start|>assistant<|channel|>commentary to=functions.tide<|constrain|>json<|message|>{}<|call|>"
            "<|start|>functions.tide to=assistant<|channel|>commentary<|message|>high<|end|><|start|>assistant"
        ),
        CHATML,
        ("high",),
    ),
]


@pytest.mark.parametrize(("text", "controls", "results"), RESULTS)
def test_results_that_came_last_are_found(text: str, controls: str, results: tuple[str, ...]) -> None:
    seen = view(text, controls)
    assert seen.results == results
    assert seen.user == "Tide?"


def test_a_question_after_results_is_a_question() -> None:
    seen = view("<|user|>Tide?<|observation|>high<|assistant|>High.<|user|>And at Ayr?<|assistant|>", r"<\|\w+\|>")
    assert (seen.user, seen.results) == ("And at Ayr?", ())


def test_a_spelled_control_token_is_content() -> None:
    parts: list[str | ControlToken] = [
        ControlToken(1, "<|user|>", special=True),
        "What is <|observation|> for?",
        ControlToken(2, "<|assistant|>", special=True),
    ]
    seen = read_prompt(parts)
    assert (seen.user, seen.results) == ("What is <|observation|> for?", ())


def test_an_earlier_call_is_no_offer() -> None:
    assert (
        read_offers('{"name": "tide", "arguments": {"port": "Ayr"}} {"name": "tide", "parameters": {"port": "Ayr"}}')
        == ()
    )


@pytest.mark.parametrize(
    "text", ['{"type": "function"', '{"name": 3}', '{"function": []}', '{"name": "a", "parameters": [1]}', "{" * 5000]
)
def test_broken_listings_offer_nothing(text: str) -> None:
    assert read_offers(text) == ()


def test_typescript_choices_and_lists_keep_their_kind() -> None:
    text = 'type f = (_: {\nunit?: "c" | "f", // default: c\nplaces: string[],\n}) => any;\ntype g = () => any;'
    first, second = read_offers(text)
    assert first.parameters == {
        "type": "object",
        "properties": {"unit": {"enum": ["c", "f"]}, "places": {"type": "array", "items": {"type": "string"}}},
        "required": ["places"],
    }
    assert second.parameters["properties"] == {}


controls = st.sampled_from(
    [
        "<|im_start|>",
        "<|im_end|>",
        "<|user|>",
        "[INST]",
        "[/INST]",
        "<|im_middle|>",
        "<tool_response>",
        "</think>",
        "<|channel|>",
        "<|x|>",
        "{",
    ]
).map(lambda text: ControlToken(7, text, special=True))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.one_of(
            controls,
            st.sampled_from(["user\nx", "tool", "", "\n", "{", f"{WEATHER}", "type f = (_: {"]),
            st.text(max_size=9),
        ),
        max_size=9,
    )
)
def test_no_prompt_is_beyond_reading(parts: list[str | ControlToken]) -> None:
    seen = read_prompt(parts)
    assert all(result.strip() for result in seen.results)
    assert {offer.name for offer in seen.tools} <= {"tide", "f"}
