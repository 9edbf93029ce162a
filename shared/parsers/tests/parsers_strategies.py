"""What model output may look like: turns of every format, noise made of its markers, and cuts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from catenary_parsers import (
    FORMATS,
    ArgumentsDelta,
    Event,
    Parser,
    ReasoningDelta,
    TextDelta,
    ToolSpec,
    format_named,
    markers_of,
    reasoning_named,
)
from catenary_parsers.grammar import grammar_of
from catenary_parsers.render import Call, render_call, render_turn
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
    events += parser.close(reason)
    joined: list[Event] = []
    for event in events:
        last = joined[-1] if joined else None
        if isinstance(event, TextDelta) and isinstance(last, TextDelta):
            joined[-1] = TextDelta(last.text + event.text)
        elif isinstance(event, ReasoningDelta) and isinstance(last, ReasoningDelta):
            joined[-1] = ReasoningDelta(last.text + event.text)
        elif isinstance(event, ArgumentsDelta) and isinstance(last, ArgumentsDelta):
            joined[-1] = ArgumentsDelta(event.index, last.text + event.text)
        else:
            joined.append(event)
    return joined


SPECIAL = {name: markers_of(name) for name in NAMES}
