"""The nine laws, over every format.

1 cuts mean nothing · 2 no text lost, none invented · 3 no marker leaks · 4 deltas join to the arguments · 5 no input
raises · 6 parsing undoes rendering · 7 flat cost (tests/bench) · 8 parsers share nothing · 9 a token's text is text.
"""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING, Any

import pytest
from catenary_parsers import (
    ArgumentsDelta,
    Call,
    Event,
    Malformed,
    ReasoningDelta,
    TextDelta,
    ToolCallBegun,
    ToolCallComplete,
    ToolCallCut,
    open_parser,
    render_turn,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from . import parsers_strategies as some

if TYPE_CHECKING:
    from catenary_parsers import Thinking

THINKING = st.sampled_from(["none", "open", "closed"])
REASON = st.sampled_from(["stop", "length", "cancelled", "error"])
CUTS = st.lists(st.integers(0, 300), max_size=6)
EVERY_FORMAT = pytest.mark.parametrize("name", some.NAMES)

# 27 formats times 25 examples; a law is asked of every format.
LAW = settings(deadline=None, max_examples=25, suppress_health_check=list(HealthCheck))


@EVERY_FORMAT
@LAW
@given(data=st.data(), cuts=CUTS, thinking=THINKING, reason=REASON)
def test_law_1_chunking_never_changes_the_result(
    name: str, data: st.DataObject, cuts: list[int], thinking: Thinking, reason: str
) -> None:
    text = data.draw(some.noise(name))

    def result(pieces: list[str]) -> list[Event]:
        return some.read(open_parser(name, tools=some.TOOLS, thinking=thinking), pieces, reason)

    whole = result([text])
    assert result(some.cut(text, cuts)) == whole
    assert result(list(text)) == whole


@EVERY_FORMAT
@LAW
@given(data=st.data(), cuts=CUTS, reason=REASON)
def test_law_1_holds_for_control_tokens_too(name: str, data: st.DataObject, cuts: list[int], reason: str) -> None:
    special = some.SPECIAL[name]
    pieces = some.tokens_apart(data.draw(some.noise(name)), special)
    smaller = [part for piece in pieces for part in ([piece] if piece in special else some.cut(piece, cuts))]
    whole = some.read(open_parser(name, tools=some.TOOLS, special=special), pieces, reason, special)
    assert some.read(open_parser(name, tools=some.TOOLS, special=special), smaller, reason, special) == whole


@EVERY_FORMAT
@LAW
@given(data=st.data(), thinking=THINKING, tools=st.booleans())
def test_law_2_no_text_is_invented(name: str, data: st.DataObject, thinking: Thinking, tools: bool) -> None:
    text = data.draw(some.noise(name))
    events = some.read(open_parser(name, tools=some.TOOLS if tools else (), thinking=thinking), [text])
    given_text = iter(_dense(text))
    assert all(char in given_text for char in _dense(_shown(events)))


@EVERY_FORMAT
@LAW
@given(text=st.text(st.sampled_from("abc ÄŒ潮🌊.,\n\t "), min_size=1))
def test_law_2_text_without_markers_comes_out_as_it_is(name: str, text: str) -> None:
    assert some.read(open_parser(name, tools=some.TOOLS), list(text)) == [TextDelta(text)]


@EVERY_FORMAT
@LAW
@given(words=st.lists(some.PROSE, min_size=1, max_size=4), data=st.data())
def test_law_2_no_text_is_lost(name: str, words: list[str], data: st.DataObject) -> None:
    """Prose around stray closing markers and broken calls is all shown, in order."""
    closing = [mark for mark in some.literals(name) if mark.startswith(("</", "<|close", "[/")) or "end" in mark]
    noise = st.sampled_from([*closing, " ", "\n"])
    text = "".join(word + data.draw(noise) for word in words)
    assert _dense(_shown(some.read(open_parser(name, tools=some.TOOLS), [text]))) == _dense("".join(words))


@EVERY_FORMAT
@LAW
@given(data=st.data(), thinking=THINKING, reason=REASON)
def test_law_3_no_marker_leaks_into_the_answer(name: str, data: st.DataObject, thinking: Thinking, reason: str) -> None:
    events = some.read(open_parser(name, tools=some.TOOLS, thinking=thinking), [data.draw(some.noise(name))], reason)
    markers = [mark for mark in some.literals(name) if not mark[0].isalnum() and len(mark) > 2]
    for event in events:
        if isinstance(event, TextDelta | Malformed):
            text = event.text if isinstance(event, TextDelta) else event.raw
            assert not [mark for mark in markers if mark in text]


@EVERY_FORMAT
@LAW
@given(data=st.data(), thinking=THINKING, reason=REASON)
def test_laws_4_and_5_calls_are_whole_and_nothing_raises(
    name: str, data: st.DataObject, thinking: Thinking, reason: str
) -> None:
    events = some.read(open_parser(name, tools=some.TOOLS, thinking=thinking), [data.draw(some.noise(name))], reason)
    calls: list[str] = []
    begun: ToolCallBegun | None = None
    for event in events:
        match event:
            case ToolCallBegun(index, _, called):
                assert begun is None
                assert (index, bool(called)) == (len(calls), True)
                calls.append("")
                begun = event
            case ArgumentsDelta(index, text):
                assert begun
                assert index == begun.index
                calls[index] += text
            case ToolCallComplete(index, call_id, called, arguments, value):
                assert begun == ToolCallBegun(index, call_id, called)
                assert calls[index] == arguments
                assert json.loads(arguments) == value
                begun = None
            case ToolCallCut(index, arguments):
                assert begun
                assert (index, calls[index]) == (begun.index, arguments)
                begun = None
            case TextDelta(text) | ReasoningDelta(text):
                assert text
                assert begun is None
            case Malformed():
                assert begun is None
    assert begun is None
    json.dumps([str(event) for event in events], ensure_ascii=False).encode()


@pytest.mark.parametrize("name", some.WITH_JSON)
@LAW
@given(at=st.floats(0, 1), noise=some.PROSE | st.just(""))
def test_law_5_the_good_call_after_a_broken_one_still_comes(name: str, at: float, noise: str) -> None:
    broken = render_turn(name, calls=[Call("save", {"text": "a {b} c", "items": [1, "x"]})])
    text = broken[: int(at * len(broken))] + noise + render_turn(name, calls=[Call("ping", {})])
    events = some.read(open_parser(name, tools=some.TOOLS), [text])
    assert [event.name for event in events if isinstance(event, ToolCallComplete)][-1:] == ["ping"]


@EVERY_FORMAT
@LAW
@given(text=st.text(max_size=200), reason=REASON, thinking=THINKING)
def test_law_5_no_input_raises(name: str, text: str, reason: str, thinking: Thinking) -> None:
    some.read(open_parser(name, tools=some.TOOLS, thinking=thinking), list(text), reason)


@EVERY_FORMAT
@LAW
@given(data=st.data())
def test_law_6_parsing_undoes_rendering(name: str, data: st.DataObject) -> None:
    reasoning = data.draw(some.PROSE | st.just("")) if some.reasons(name) else ""
    text = data.draw(some.PROSE | st.just(""))
    calls = data.draw(st.lists(some.calls(name), max_size=3))
    written = render_turn(name, reasoning, text, calls)
    events = some.read(open_parser(name, tools=some.TOOLS), [written])
    complete = [(event.name, event.value) for event in events if isinstance(event, ToolCallComplete)]
    assert complete == [(call.name, call.arguments) for call in calls]
    assert "".join(event.text for event in events if isinstance(event, ReasoningDelta)) == reasoning
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == text
    assert not [event for event in events if isinstance(event, Malformed | ToolCallCut)]


@pytest.mark.parametrize("name", [name for name in some.NAMES if some.opens_thinking(name)])
@LAW
@given(reasoning=some.PROSE | st.just(""), text=some.PROSE)
def test_law_6_holds_where_the_template_opened_thinking(name: str, reasoning: str, text: str) -> None:
    written = render_turn(name, reasoning, text, thinking="open")
    events = some.read(open_parser(name, thinking="open"), [written])
    assert events == [*([ReasoningDelta(reasoning)] if reasoning else []), TextDelta(text)]


@EVERY_FORMAT
def test_law_4_arguments_stream_as_they_are_written(name: str) -> None:
    """Each piece of a long string is delivered in the feed that brought it, or in the next."""
    words = [f"word{n} " for n in range(50)]
    written = render_turn(name, calls=[Call("save", {"text": "".join(words)})])
    before, _, after = written.partition("".join(words))
    parser = open_parser(name, tools=some.TOOLS)
    parser.feed(before)
    late = 0
    for word in words:
        deltas = [event.text for event in parser.feed(word) if isinstance(event, ArgumentsDelta)]
        late += not any(word.strip() in delta for delta in deltas)
    assert late == 0
    assert any(isinstance(event, ToolCallComplete) for event in parser.feed(after) + parser.close("stop"))


@pytest.mark.slow
@EVERY_FORMAT
def test_law_7_the_cost_of_a_token_does_not_grow_with_length(name: str) -> None:
    before, _, _ = render_turn(name, calls=[Call("save", {"text": "@"})]).partition("@")

    def cost(tokens: int) -> float:
        feed = open_parser(name, tools=some.TOOLS).feed
        feed(before)
        start = time.process_time()
        for _ in range(tokens):
            feed(" word")
        return (time.process_time() - start) / tokens

    assert min(cost(40_000) for _ in range(3)) < 1.5 * min(cost(1_000) for _ in range(5))


@EVERY_FORMAT
@LAW
@given(data=st.data())
def test_law_8_parsers_share_nothing(name: str, data: st.DataObject) -> None:
    texts = data.draw(st.lists(some.noise(name), min_size=2, max_size=3))
    alone = [some.read(open_parser(name, tools=some.TOOLS), list(text)) for text in texts]
    parsers = [open_parser(name, tools=some.TOOLS) for _ in texts]
    fed: list[list[Event]] = [[] for _ in texts]
    for place in range(max(map(len, texts))):
        for parser, text, events in zip(parsers, texts, fed, strict=True):
            if place < len(text):
                events.extend(parser.feed(text[place]))
    for parser, events in zip(parsers, fed, strict=True):
        events.extend(parser.close("stop"))
    assert [some.joined(events) for events in fed] == alone


@EVERY_FORMAT
@LAW
@given(data=st.data(), words=st.lists(some.PROSE, min_size=1, max_size=4))
def test_law_9_text_that_spells_a_token_stays_text(name: str, data: st.DataObject, words: list[str]) -> None:
    special = some.SPECIAL[name]
    if not special or some.may_be_plain(name):
        return
    marks = st.sampled_from(sorted(special))
    text = "".join(word + data.draw(marks) for word in words)
    events = some.read(open_parser(name, special=special), [text])
    assert events == [TextDelta(text)]


def _shown(events: list[Event]) -> str:
    shown = ""
    for event in events:
        if isinstance(event, TextDelta | ReasoningDelta):
            shown += event.text
        elif isinstance(event, Malformed):
            shown += event.raw
    return shown


def _dense(text: str) -> str:
    return re.sub(r"\s", "", text)


def test_the_laws_have_teeth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without hold-back the first law breaks, so the texts above do reach the places where it matters."""
    from catenary_parsers import lexer

    def whole_only(words: Any) -> str:
        return "|".join(map(re.escape, sorted(words, key=len, reverse=True)))

    monkeypatch.setattr(lexer, "_alternatives", whole_only)
    from catenary_parsers.grammar import grammar_of

    grammar_of.cache_clear()
    try:
        text = "a <tool_call>"
        whole = some.read(open_parser("hermes"), [text])
        assert some.read(open_parser("hermes"), list(text)) != whole
    finally:
        grammar_of.cache_clear()
