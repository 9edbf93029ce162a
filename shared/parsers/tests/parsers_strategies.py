"""What model output may look like: turns of every format, noise made of its markers, and cuts."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from catenary_parsers import (
    FORMATS,
    ArgumentsDelta,
    Call,
    Event,
    Parser,
    ReasoningDelta,
    TextDelta,
    ToolSpec,
    format_named,
    markers_of,
    reasoning_named,
    render_call,
    render_turn,
)
from catenary_parsers.grammar import grammar_of
from catenary_parsers.values import JSON
from hypothesis import strategies as st

NAMES = sorted(FORMATS)
TOOLS = (
    ToolSpec(
        "save",
        {
            "type": "object",
            "properties": {
                "text": {"type": "string"},
                "count": {"type": "integer"},
                "ratio": {"type": "number"},
                "flag": {"type": "boolean"},
                "items": {"type": "array"},
                "options": {"type": "object"},
                "maybe": {"type": ["integer", "null"]},
            },
        },
    ),
    ToolSpec("ping", {"type": "object", "properties": {}}),
)

_CHARS = st.characters(codec="utf-8", exclude_characters="\r")
_WORDS = st.text(st.sampled_from("abcxyz ÄŒ潮🌊.,:;!?()'\"\\/-_=0123456789{}[]<>|&\n\t"), max_size=12)
PROSE = st.text(st.sampled_from("abcxyz Ä潮🌊.,!?-0123456789\n"), min_size=1, max_size=20).map(str.strip).filter(bool)


def literals(name: str) -> list[str]:
    """Every marker of a format and its style of thinking."""
    fmt = format_named(name)
    grammar = grammar_of(fmt, reasoning_named(fmt.reasoning), frozenset())
    return sorted(grammar.everything.all | set(fmt.implicit))


def noise(name: str) -> st.SearchStrategy[str]:
    """Text in which anything may go wrong: markers, pieces of markers, calls, pieces of calls, prose."""
    marks = literals(name)
    calls = [
        render_call(name, Call("save", {"text": "a\n<b>", "count": 3, "items": [1, {"k": "v"}]})),
        render_call(name, Call("ping", {})),
        render_turn(name, "think", "text", [Call("save", {"text": "x", "maybe": None}), Call("other", {"q": "1"})]),
    ]
    return st.lists(
        st.one_of(
            st.sampled_from(marks),
            st.sampled_from(marks).flatmap(lambda mark: st.integers(0, len(mark)).map(lambda n: mark[:n])),
            st.sampled_from(calls),
            st.sampled_from(calls).flatmap(
                lambda call: st.tuples(st.integers(0, len(call)), st.integers(0, 4), _WORDS).map(
                    lambda edit: call[: edit[0]] + edit[2] + call[edit[0] + edit[1] :]
                )
            ),
            st.sampled_from(calls).flatmap(lambda call: st.integers(0, len(call)).map(lambda n: call[:n])),
            _WORDS,
            st.sampled_from(
                [
                    '{"name": "save", ',
                    '"arguments": {',
                    "save(",
                    "[save(text='",
                    "```json\n",
                    '"}}',
                    ")]",
                    " to=",
                    "save",
                ]
            ),
            st.text(_CHARS, max_size=5),
        ),
        max_size=8,
    ).map("".join)


def cut(text: str, cuts: Iterable[int]) -> list[str]:
    """`text` in pieces."""
    places = sorted({min(place, len(text)) for place in cuts})
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


def read(
    parser: Parser, pieces: Iterable[str], reason: Any = "stop", special: frozenset[str] = frozenset()
) -> list[Event]:
    """All events of a text that comes in pieces, neighbouring deltas joined."""
    events: list[Event] = []
    for piece in pieces:
        events += parser.special(1, piece) if piece in special else parser.feed(piece)
    return joined(events + parser.close(reason))


def joined(events: Iterable[Event]) -> list[Event]:
    """The events with neighbouring deltas as one."""
    result: list[Event] = []
    for event in events:
        last = result[-1] if result else None
        if isinstance(event, TextDelta) and isinstance(last, TextDelta):
            result[-1] = TextDelta(last.text + event.text)
        elif isinstance(event, ReasoningDelta) and isinstance(last, ReasoningDelta):
            result[-1] = ReasoningDelta(last.text + event.text)
        elif isinstance(event, ArgumentsDelta) and isinstance(last, ArgumentsDelta):
            result[-1] = ArgumentsDelta(event.index, last.text + event.text)
        else:
            result.append(event)
    return result


def tokens_apart(text: str, special: frozenset[str]) -> list[str]:
    """`text` with each control token as a piece of its own."""
    if not special:
        return [text]
    pattern = "|".join(re.escape(token) for token in sorted(special, key=len, reverse=True))
    return [piece for piece in re.split(f"({pattern})", text) if piece]


def reasons(name: str) -> bool:
    """Whether models of the format write thinking that is told from text."""
    return bool(reasoning_named(format_named(name).reasoning).writing)


def opens_thinking(name: str) -> bool:
    """Whether templates can open thinking with a marker."""
    return bool(reasoning_named(format_named(name).reasoning).open)


def may_be_plain(name: str) -> bool:
    """Whether some marker of the format is no token, and may be hidden in a text of tokens' spellings."""
    fmt = format_named(name)
    rest = set(literals(name))
    for token in SPECIAL[name]:
        rest = {mark for mark in rest if token not in mark}
    return bool(rest - set(fmt.implicit))


def calls(name: str) -> st.SearchStrategy[Call]:
    """Calls that the format can write without loss."""
    writing = format_named(name).writing
    # Between tags and quote tokens nothing is escaped, so that text is limited to what no marker is made of.
    words = PROSE if writing.parameter or writing.dialect.quote else st.text(_CHARS, max_size=12)
    numbers = st.integers(-(10**25), 10**25)
    keys = st.text(st.sampled_from("abcxyz_"), min_size=1, max_size=5)
    nested = st.recursive(
        st.one_of(words, numbers, st.booleans(), st.none()),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
        max_leaves=6,
    )
    parameters = st.fixed_dictionaries(
        {},
        optional={
            "text": words,
            "count": numbers,
            "ratio": st.floats(allow_nan=False, allow_infinity=False),
            "flag": st.booleans(),
            "items": st.lists(nested, max_size=3),
            "options": st.dictionaries(keys, nested, max_size=3),
            "maybe": st.none() | numbers,
        },
    )
    return st.builds(Call, st.just("save"), parameters) | st.just(Call("ping", {}))


WITH_JSON = [
    name
    for name, fmt in FORMATS.items()
    if not fmt.writing.parameter and not fmt.implicit and fmt.writing.dialect is JSON
]
"""Formats whose arguments are JSON and whose calls have markers."""
SPECIAL = {name: markers_of(name) for name in NAMES}
