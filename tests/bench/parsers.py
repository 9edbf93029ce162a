"""What a token costs in the parser: CPU microseconds at 1,000, 10,000 and 80,000 tokens of arguments, for every format.

A token is four characters of code on average and is fed alone. The medians are of five runs in one process; `ratio` is
the cost at the greatest length over that at the least, which is 1 where cost does not grow with length.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from typing import Any

from catenary_parsers import FORMATS, Call, Format, ToolSpec, open_parser, render_turn
from catenary_parsers.values import PYTHON

LENGTHS = (1_000, 10_000, 80_000)
RUNS = 5
_WORDS = [
    "def",
    "return",
    "value",
    "in",
    "file",
    "with",
    "self",
    "for",
    "index",
    "import",
    "path",
    "print",
    "if",
    "else",
    "not",
    "None",
    "list",
]
_TOOL = ToolSpec("save", {"type": "object", "properties": {"text": {"type": "string"}, "rows": {"type": "array"}}})


def measure(formats: tuple[str, ...] = (), lengths: tuple[int, ...] = LENGTHS, runs: int = RUNS) -> dict[str, Any]:
    """Microseconds per token by format and length, and their ratio."""
    found: dict[str, Any] = {}
    for name in formats or tuple(FORMATS):
        cost = {str(length): _median(name, _string(FORMATS[name], length), runs) for length in lengths}
        found[name] = {**cost, "ratio": round(cost[str(lengths[-1])] / cost[str(lengths[0])], 3)}
    cost = {str(length): _median("hermes", _objects(length), runs) for length in lengths}
    found["hermes, many small values"] = {**cost, "ratio": round(cost[str(lengths[-1])] / cost[str(lengths[0])], 3)}
    calls = {
        name: _by_calls(name, runs) for name in formats or ("hermes", "qwen3_coder", "kimi_k2", "harmony", "pythonic")
    }
    return {"unit": "CPU microseconds per token", "formats": found, "after_earlier_calls": calls}


def _tokens(count: int) -> list[str]:
    chance = random.Random(count)  # noqa: S311 - text to read, no secret
    return [
        "\n    " if roll < 0.08 else f" {chance.choice(_WORDS)}" if roll < 0.85 else chance.choice("():.=1x")
        for roll in (chance.random() for _ in range(count))
    ]


def _string(fmt: Format, count: int) -> tuple[str, list[str], str]:
    """A call whose arguments are one long string: what stands before it, its tokens, what stands behind."""
    tokens = _tokens(count)
    before, after = render_turn(fmt.name, calls=[Call("save", {"text": "@"})]).split("@")
    if fmt.writing.dialect is PYTHON:
        tokens = [repr(token)[1:-1] for token in tokens]
    elif not fmt.writing.parameter and not fmt.writing.dialect.quote:
        tokens = [json.dumps(token)[1:-1] for token in tokens]
    return before, tokens, after


def _objects(count: int) -> tuple[str, list[str], str]:
    """A call whose arguments are a list of small objects, in tokens of four characters."""
    rows = json.dumps([{"id": n, "name": f"row {n}"} for n in range(count // 7)])
    before, after = render_turn("hermes", calls=[Call("save", {"rows": "@"})]).split('"@"')
    return before, [rows[at : at + 4] for at in range(0, len(rows), 4)], after


def _by_calls(name: str, runs: int) -> dict[str, float]:
    """The cost of a token in the first and in the tenth hundred of small calls of one turn."""
    call = render_turn(name, calls=[Call("save", {"text": "some words here"})])
    tokens = [call[at : at + 4] for at in range(0, len(call), 4)] * 100
    first: list[float] = []
    tenth: list[float] = []
    for _ in range(runs):
        feed = open_parser(name, tools=[_TOOL]).feed
        for hundred in range(10):
            start = time.process_time()
            for token in tokens:
                feed(token)
            cost = (time.process_time() - start) / len(tokens) * 1e6
            if hundred in {0, 9}:
                (tenth if hundred else first).append(cost)
    before, after = statistics.median(first), statistics.median(tenth)
    return {"first hundred": round(before, 3), "tenth hundred": round(after, 3), "ratio": round(after / before, 3)}


def _median(name: str, turn: tuple[str, list[str], str], runs: int) -> float:
    before, tokens, after = turn
    costs: list[float] = []
    for _ in range(runs):
        parser = open_parser(name, tools=[_TOOL])
        parser.feed(before)
        feed = parser.feed
        start = time.process_time()
        for token in tokens:
            feed(token)
        costs.append((time.process_time() - start) / len(tokens) * 1e6)
        parser.feed(after)
        parser.close("stop")
    return round(statistics.median(costs), 3)


if __name__ == "__main__":
    print(json.dumps(measure(), indent=1))
