"""The engine: one machine for all formats, from text to events.

Three rules make it. What is read is read by generators that wait for text, so that cuts in the stream mean nothing. A
block of calls is tried: what does not fit is given back, as text where it might have been text, else as Malformed. And
inside thinking a block that fits is a draft, which waits for the end of thinking to be reasoning, or for the end of all
text to be calls (P4).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, TypeAlias

from catenary_parsers.events import ArgumentsDelta, TextDelta, ToolCallBegun, ToolCallComplete
from catenary_parsers.grammar import grammar_of
from catenary_parsers.lexer import Source, accept, skip_space, until
from catenary_parsers.registry import format_named, reasoning_named
from catenary_parsers.sink import Sink

if TYPE_CHECKING:
    from collections.abc import Iterable

    from catenary_parsers.events import CloseReason, Event
    from catenary_parsers.grammar import Grammar, ToolSpec
    from catenary_parsers.lexer import Steps

Thinking: TypeAlias = Literal["none", "open", "closed"]
"""What the prompt's template left behind: nothing, an open thinking block, or an empty closed one."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_FOREIGN = "\udfff"
"""Stands for a control token that is no marker of the format."""


class Parser:
    """Reads one model output. Feed it text and control tokens in order, then close it."""

    __slots__ = ("_closed", "_grammar", "_machine", "_sink", "_spellings", "_src", "_tools")

    def __init__(self, grammar: Grammar, tools: tuple[ToolSpec, ...], thinking: Thinking) -> None:
        self._tools = tools
        self._grammar = grammar
        self._spellings = {symbol: token for token, symbol in grammar.symbols.items()}
        self._src = Source()
        self._sink = Sink(self._spellings)
        self._closed = False
        if thinking != "none":
            self._sink.boundary()
        self._machine = self._run(thinking=thinking == "open")
        next(self._machine)

    def feed(self, text: str) -> list[Event]:
        """Read more text.

        Raises:
            ValueError: the parser is closed.
        """
        if self._closed:
            raise ValueError("feed after close")
        if not text.isascii():
            text = _SURROGATE.sub("\ufffd", text)
        return self._advance(text)

    def special(self, token_id: int, text: str, /) -> list[Event]:  # noqa: ARG002 - the id is for formats without texts
        """Read a control token: a marker if the format has it, else nothing.

        Raises:
            ValueError: the parser is closed.
        """
        if self._closed:
            raise ValueError("special after close")
        return self._advance(self._grammar.symbols.get(text, _FOREIGN))

    def close(self, reason: CloseReason) -> list[Event]:
        """The output has ended: decide what was left open.

        Raises:
            ValueError: the parser is closed already.
        """
        if self._closed:
            raise ValueError("close after close")
        self._closed = True
        self._src.end(natural=reason == "stop")
        for _ in self._machine:
            pass
        self._sink.end()
        return self._sink.take()

    def _advance(self, text: str) -> list[Event]:
        self._src.push(text)
        next(self._machine)
        return self._sink.take()

    def _run(self, *, thinking: bool) -> Steps[None]:
        grammar, src, sink = self._grammar, self._src, self._sink
        mark = ""
        while True:
            if thinking:
                mark = yield from self._think()
                thinking = False
            elif mark in grammar.reasoning.open:
                thinking = True
            elif mark in grammar.fmt.open:
                yield from self._block()
                mark = ""
            else:
                mark = yield from until(src, grammar.in_text, sink.text)
                if not mark:
                    return
                sink.boundary()

    def _block(self) -> Steps[None]:
        """Read a block of calls behind its marker."""
        src = self._src
        src.keep()
        reason = yield from self._read_block(src, self._sink)
        if not reason:
            src.forget()
            return
        if src.ended and not src.natural:
            self._sink.cut()
            src.forget()
            return
        raw = src.kept()
        # A broken call may have swallowed the opener of a good one.
        found = self._grammar.openers.find(raw)
        if found < 0:
            src.forget()
            self._sink.malformed(raw, reason)
        else:
            src.rewind(found)
            self._sink.malformed(raw[:found], reason)

    def _read_block(self, src: Source, sink: Sink) -> Steps[str]:
        """Read calls up to the block's end; return why the first one or a begun one is none, or nothing."""
        calls = 0
        while True:
            char = yield from skip_space(src)
            if not char:
                return "" if calls else "the text ends before a call"
            if (yield from accept(src, self._grammar.closers)):
                return "" if calls else "no call between the markers"
            for body in self._grammar.fmt.bodies:
                if (yield from body.starts(src)):
                    break
            else:
                return "" if calls else "no call behind the marker"
            reason = yield from body.read(src, sink)
            if reason:
                return reason
            calls += 1

    def _think(self) -> Steps[str]:
        """Read thinking up to what ends it; return the call marker that did, if one did."""
        grammar, src, sink = self._grammar, self._src, self._sink
        held: list[tuple[str, list[Event]]] = []  # from the first draft on: text, and the calls it would be

        def emit(text: str) -> None:
            if held:
                held.append((text, []))
            else:
                sink.reasoning(text)

        while True:
            mark = yield from until(src, grammar.in_thinking, emit)
            if not mark:
                for text, events in held:
                    self._call_at_close(events) if events else sink.reasoning(text)
                return ""
            if mark in grammar.reasoning.open:
                continue
            if mark in grammar.reasoning.close or grammar.fmt.ends_thinking:
                for text, _ in held:
                    sink.reasoning(text)
                sink.boundary()
                return mark if mark in grammar.fmt.open else ""
            text, events = yield from self._draft()
            if events:
                held.append((mark + text, events))
            else:
                emit(mark)

    def _draft(self) -> Steps[tuple[str, list[Event]]]:
        """Try a block of calls inside thinking: its text and events, or nothing read if it is none."""
        src, ends = self._src, self._grammar.ends
        inner, recorder = Source(), Sink(self._spellings)
        inner.keep()
        src.keep()
        block = self._read_block(inner, recorder)
        while True:
            found = ends.search(src.buf, src.pos)
            stop = found.start() if found else len(src.buf)
            inner.push(src.buf[src.pos : stop])
            src.pos = stop
            if src.ended or (found and found.group() in ends.all):
                inner.end(natural=src.natural)
            try:
                next(block)
            except StopIteration as done:
                fits = not done.value
                break
            yield
        text = inner.kept() if fits else ""
        src.rewind(len(text))
        return text, recorder.take() if fits else []

    def _call_at_close(self, events: list[Event]) -> None:
        """A draft whose thinking never ended is a call."""
        for event in events:
            match event:
                case ToolCallBegun():
                    self._sink.begin(event.name, event.id)
                case ArgumentsDelta():
                    self._sink.arguments(event.text)
                case ToolCallComplete():
                    self._sink.unconverted.extend(event.unconverted)
                    self._sink.complete(at_close=True)
                case TextDelta():
                    self._sink.reasoning(event.text)
                case _:
                    pass


def open_parser(
    format: str,  # noqa: A002 - it is what the word is
    *,
    tools: Iterable[ToolSpec] = (),
    reasoning: str = "auto",
    thinking: Thinking = "none",
    special: Iterable[str] = frozenset(),
) -> Parser:
    """A parser for one model output.

    Args:
        format: a format's name or alias.
        tools: the tools declared in the request; their schemas give values their types.
        reasoning: a style of thinking; `auto` is the format's own.
        thinking: what the prompt's template left behind.
        special: markers that are one token in this model and come only by `Parser.special`.

    Raises:
        UnknownFormat: there is no such format or style of thinking.
    """
    fmt = format_named(format)
    style = reasoning_named(fmt.reasoning if reasoning == "auto" else reasoning)
    return Parser(grammar_of(fmt, style, frozenset(special)), tuple(tools), thinking)


def markers_of(format: str, reasoning: str = "auto") -> frozenset[str]:  # noqa: A002 - as in open_parser
    """The markers that a model of this format may have as single control tokens, those of its thinking included.

    A caller names in `special` those of them that its model's vocabulary has.

    Raises:
        UnknownFormat: there is no such format or style of thinking.
    """
    fmt = format_named(format)
    style = reasoning_named(fmt.reasoning if reasoning == "auto" else reasoning)
    return frozenset((*fmt.markers, *style.markers))
