"""Looks for input that breaks a law, for as many seconds as the first argument says.

The invariant: no text raises, and one text gives the same events whole, in characters, and cut anywhere, by text and by
control tokens. Texts are turns of every format with markers, pieces of markers and random edits in them.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter

from catenary_parsers import Call, CloseReason, Thinking, open_parser, render_turn

from . import parsers_strategies as some

_WORDS = (
    "a",
    " ",
    "\n",
    "{",
    "}",
    "[",
    "]",
    '"',
    "'",
    "\\",
    ",",
    ":",
    "<",
    ">",
    "</",
    "|",
    "(",
    ")",
    "=",
    "save",
    "1",
    "é",
    "🌊",
)
_THINKING: tuple[Thinking, ...] = ("none", "open", "closed")
_REASONS: tuple[CloseReason, ...] = ("stop", "length", "cancelled", "error")


def main(seconds: float, seed: int) -> int:
    """Return how many texts broke a law; print each."""
    chance = random.Random(seed)  # noqa: S311 - texts, no secrets
    until = time.monotonic() + seconds
    tried: Counter[str] = Counter()
    broken = 0
    while time.monotonic() < until:
        name = chance.choice(some.NAMES)
        text = _text(chance, name)
        tried[name] += 1
        try:
            _check(chance, name, text)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what we look for
            broken += 1
            print(f"{name}: {text!r}\n  {type(error).__name__}: {str(error)[:500]}")
    print(f"{sum(tried.values())} texts over {len(tried)} formats, {broken} broke a law (seed {seed})")
    return broken


def _text(chance: random.Random, name: str) -> str:
    marks = some.literals(name)
    value = "".join(chance.choices([*_WORDS, *marks], k=chance.randrange(6)))
    calls = [
        Call("save", {"text": value, "count": chance.randrange(99), "items": [value, {"k": None}]}),
        Call("ping", {}),
    ]
    turn = render_turn(
        name, chance.choice(["", "hm"]), chance.choice(["", "text"]), chance.sample(calls, chance.randrange(3))
    )
    pieces = [turn, *chance.choices([*marks, *_WORDS], k=chance.randrange(8))]
    chance.shuffle(pieces)
    text = "".join(pieces)
    for _ in range(chance.randrange(5)):
        at = chance.randrange(len(text) + 1)
        text = text[:at] + chance.choice(["", *_WORDS, *marks]) + text[at + chance.randrange(4) :]
    return text[: chance.randrange(len(text) + 1)] if chance.random() < 0.3 else text


def _check(chance: random.Random, name: str, text: str) -> None:
    thinking, reason = chance.choice(_THINKING), chance.choice(_REASONS)
    tools = some.TOOLS if chance.random() < 0.9 else ()
    cuts = some.cut(text, [chance.randrange(len(text) + 1) for _ in range(chance.randrange(1, 9))])
    whole = some.read(open_parser(name, tools=tools, thinking=thinking), [text], reason)
    for pieces in (list(text), cuts):
        assert some.read(open_parser(name, tools=tools, thinking=thinking), pieces, reason) == whole
    special = some.SPECIAL[name]
    apart = some.tokens_apart(text, special)
    smaller = [part for piece in apart for part in ([piece] if piece in special else piece)]
    by_token = some.read(open_parser(name, tools=tools, thinking=thinking, special=special), apart, reason, special)
    assert (
        some.read(open_parser(name, tools=tools, thinking=thinking, special=special), smaller, reason, special)
        == by_token
    )


if __name__ == "__main__":
    sys.exit(min(1, main(float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else time.time_ns() % 2**31)))
