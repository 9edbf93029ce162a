"""What two agents send over four tool turns and at the start of another session, their words replaced by ours.

`make clients` and the slow tests drive the agents themselves; the forms of their requests stay here, a line each.
"""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from catenary_protocols.apis.api import Api
from catenary_protocols.apis.messages import messages_api
from catenary_protocols.apis.responses import responses_api
from catenary_tokenizer_service.core.shape import chat_messages, chat_tools
from catenary_tokenizers.safety import Shield

from tests.conformance.test_conformance_reasoning import NOW, TEMPLATES, Marked, template_of

RECORDED = Path(__file__).parent / "recorded"
APIS: dict[str, Api[Any]] = {"claude-code": messages_api(Marked()), "codex": responses_api(Marked())}
PAIRS = [(agent, family) for agent in APIS for family in TEMPLATES]


def prompts(agent: str, family: str) -> list[str]:
    """Of five turns, then of the first turn of another session."""
    bodies = (RECORDED / f"{agent}.jsonl").read_bytes().splitlines()
    assert len(bodies) == 6
    conversations = [APIS[agent].read(body).conversation for body in bodies]
    template = template_of(family)
    return [template.render(chat_messages(one), chat_tools(one), Shield([]), NOW, {}) for one in conversations]


@pytest.mark.parametrize(("agent", "family"), PAIRS)
def test_each_prompt_is_the_one_before_it_and_more(agent: str, family: str) -> None:
    turns = prompts(agent, family)[:-1]
    assert [later.startswith(earlier) for earlier, later in pairwise(turns)] == [True] * 4
    calls = [turns[-1].index(f"cat part-{part}.txt") for part in range(4)]
    assert calls == sorted(calls)


@pytest.mark.parametrize(("agent", "family"), PAIRS)
def test_sessions_differ_only_from_the_users_words_on(agent: str, family: str) -> None:
    first, *_, other = prompts(agent, family)
    head, asked, _ = first.partition("Read the four parts")
    assert asked
    assert other.startswith(head)
    assert "billing" not in first


def test_thoughts_come_back_from_their_seals() -> None:
    for agent in APIS:
        last = prompts(agent, "qwen")[-2]
        assert [last.count(f"Part {part} next.") for part in range(1, 5)] == [1] * 4


def test_tools_are_offered_once_they_are_loaded_and_by_their_own_names() -> None:
    claude, codex = (prompts(agent, "qwen")[0] for agent in APIS)
    assert '"Bash"' in claude
    assert "DeferredToolPlaceholder" not in claude
    assert '"close_agent"' in codex
