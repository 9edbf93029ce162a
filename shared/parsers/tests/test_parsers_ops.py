"""Long arguments: what they cost, and how soon they are told."""

from __future__ import annotations

import json
import time

import pytest
from catenary_parsers import ArgumentsDelta, Call, ToolCallComplete, ToolSpec, open_parser, render_turn

KB = 1000
SAVE = ToolSpec("save", {"type": "object", "properties": {"text": {"type": "string"}}})
JSON_AND_TAGS = pytest.mark.parametrize("name", ["hermes", "qwen3_coder"])


def parts(name: str) -> tuple[str, str]:
    """What stands before and behind a string argument."""
    before, _, behind = render_turn(name, calls=[Call("save", {"text": "@"})]).partition("@")
    return before, behind


@JSON_AND_TAGS
def test_twice_the_argument_costs_about_twice_the_time(name: str) -> None:
    before, _ = parts(name)

    def cost(size: int) -> float:
        feed = open_parser(name, tools=[SAVE]).feed
        feed(before)
        start = time.process_time()
        for _ in range(size):
            feed("x")
        return time.process_time() - start

    assert min(cost(200 * KB) for _ in range(2)) < 3 * min(cost(100 * KB) for _ in range(2))


@JSON_AND_TAGS
def test_a_long_argument_is_told_while_it_is_written(name: str) -> None:
    """At 1 kB a second, 2 s are 2 kB: the first piece comes sooner, and so does each after the one before."""
    before, behind = parts(name)
    parser = open_parser(name, tools=[SAVE])
    parser.feed(before)
    value = "a line of text\n" * (20 * KB // 15)
    told, since, longest = "", 0, 0
    for character in value:
        pieces = [event.text for event in parser.feed(character) if isinstance(event, ArgumentsDelta)]
        told += "".join(pieces)
        since = 0 if pieces else since + 1
        longest = max(longest, since)
    assert longest <= 100
    (complete,) = [event for event in parser.feed(behind) if isinstance(event, ToolCallComplete)]
    assert json.loads(complete.arguments) == {"text": value}
    assert len(told) >= len(value) - 100
