"""The engine: one machine for all formats, from text to events.

Three rules make it. What is read is read by generators that wait for text, so that cuts in the stream mean nothing. A
block of calls is tried: what does not fit is given back, as text where it might have been text, else as Malformed. And
inside thinking a block that fits is a draft, which waits for the end of thinking to be reasoning, or for the end of all
text to be calls (P4).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, TypeAlias

from catenary_parsers.calls import read_named
from catenary_parsers.events import ArgumentsDelta, TextDelta, ToolCallBegun, ToolCallComplete
from catenary_parsers.grammar import Scope, grammar_of
from catenary_parsers.lexer import SPACE, Source, accept, skip_space, until
from catenary_parsers.registry import format_named, reasoning_named
from catenary_parsers.sink import Sink

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from catenary_parsers.events import CloseReason, Event
    from catenary_parsers.grammar import Grammar, ToolSpec
    from catenary_parsers.lexer import Steps

Thinking: TypeAlias = Literal["none", "open", "closed"]
"""What the prompt's template left behind: nothing, an open thinking block, or an empty closed one."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_MAX_HEADER = 256
"""Characters of a message's header; what goes on without a body is text."""
_FOREIGN = "\udfff"
"""Stands for a control token that is no marker of the format."""


class Parser:
    """Reads one model output. Feed it text and control tokens in order, then close it."""

    __slots__ = ("_closed", "_grammar", "_machine", "_sink", "_spellings", "_src", "_tools")

    def __init__(self, grammar: Grammar, tools: Mapping[str, Mapping[str, object]], thinking: Thinking) -> None:
        self._tools = tools
        self._grammar = grammar
        self._spellings = {symbol: token for token, symbol in grammar.symbols.items()}
        self._src = Source()
        self._sink = Sink(self._spellings)
        self._closed = False
        if thinking != "none":
            self._sink.boundary()
        ends = bool(grammar.ends_of_thinking.all)  # without an end to thinking nothing tells it from text
        self._machine = self._run(thinking=thinking == "open" and ends)
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
        grammar = self._grammar
        if text in grammar.fmt.markers or text in grammar.reasoning.markers:
            return self._advance(text)  # a marker that `special` does not name
        return self._advance(grammar.symbols.get(text, _FOREIGN))

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
            else:
                mark = yield from until(src, grammar.in_text, sink.text)
                if not mark:
                    return
            if mark in grammar.fmt.implicit:
                yield from self._maybe_block(mark)
            elif (
                mark in grammar.headers
                or mark in grammar.frame.body
                or (mark in grammar.frame.bare_start and sink.fresh)
            ):
                thinking = yield from self._header(mark)
            elif mark in grammar.frame.bare_start:
                sink.text(mark)
            elif mark in grammar.blocks or mark in grammar.bare:
                yield from self._block(mark)
            elif mark in grammar.reasoning.open:
                sink.boundary()
                thinking = True

    def _header(self, mark: str) -> Steps[bool]:
        """Read a message's header and go where it leads; return whether that is into thinking."""
        grammar, src, sink = self._grammar, self._src, self._sink
        sink.boundary()
        pieces = [mark]
        if mark not in grammar.frame.body:
            pieces.append((yield from until(src, grammar.in_header, pieces.append)))
        whole = "".join(pieces)
        header = sink.spell(whole[max(0, whole.rfind(grammar.frame.start[0])) :])
        if pieces[-1] not in grammar.frame.body or len(header) > _MAX_HEADER:
            text = grammar.everything.without(whole)
            words = grammar.frame.words.match(text)
            if words and (src.natural or not src.ended):
                sink.text(text[words.end() :])
            return False
        for route in grammar.frame.routes:
            found = route.header.search(header)
            if found:
                if route.to == "call":
                    yield from self._block("", found.groupdict().get("name") or "")
                return route.to == "reasoning"
        return False

    def _scope(self, *, wrapped: bool = True, implicit: bool = False) -> Scope:
        return Scope(self._tools, self._grammar.closers, self._grammar.follow, wrapped=wrapped, implicit=implicit)

    def _block(self, mark: str, name: str = "") -> Steps[None]:
        """Read a block of calls behind its marker, or the arguments of the call to `name`."""
        src, sink = self._src, self._sink
        bare = mark in self._grammar.bare
        if bare:
            src.unread(mark)
        src.keep()
        scope = self._scope(wrapped=not bare)
        reason = yield from (read_named(src, sink, scope, name) if name else self._read_block(src, sink, scope))
        if reason:
            self._refuse(reason)
        else:
            src.forget()

    def _maybe_block(self, mark: str) -> Steps[None]:
        """Try a block of calls whose marker may be text as well; the marker's last character is part of the call."""
        src, sink = self._src, self._sink
        if not self._tools:
            sink.text(mark)
            return
        fresh = sink.fresh
        src.unread(mark[-1])
        src.keep()
        sink.hold(self._tools)
        reason = yield from self._read_block(src, sink, self._scope(implicit=True))
        if sink.is_held and (reason or not fresh):
            sink.drop()
            src.rewind(1)
            sink.text(mark)
        elif reason:
            self._refuse(reason)
        else:
            if sink.is_held:
                sink.release()
            src.forget()

    def _refuse(self, reason: str) -> None:
        """What was read is no call: say so, and read on where the next call may begin."""
        src, sink, grammar = self._src, self._sink, self._grammar
        if src.ended and not src.natural and src.pos == len(src.buf):
            sink.cut()
            src.forget()
            return
        raw = src.kept()
        # A broken call may have swallowed the opener of a good one.
        own = len(raw) - len(raw.lstrip(SPACE))
        found = grammar.resumes.find(raw, own + any(raw.startswith(opener, own) for opener in grammar.bare))
        if found < 0:
            src.forget()
            found = len(raw)
        else:
            src.rewind(found)
        sink.malformed(grammar.everything.without(raw[:found]), reason)

    def _read_block(self, src: Source, sink: Sink, scope: Scope) -> Steps[str]:
        """Read calls up to the block's end; return why the first one or a begun one is none, or nothing."""
        while True:
            char = yield from skip_space(src)
            if not char:
                return "the text ends before a call" if scope.first else ""
            if (yield from accept(src, scope.closers)):
                return "no call between the markers" if scope.first else ""
            for body in self._grammar.fmt.bodies:
                if (yield from body.starts(src, scope)):
                    break
            else:
                return "no call behind the marker" if scope.first else ""
            reason = yield from body.read(src, sink, scope)
            if reason and (scope.first or sink.is_open or sink.is_held):
                return reason
            if reason:
                src.rewind(0)  # what follows the calls is text
                return ""
            scope.first = False
            if not sink.is_held:
                src.keep()

    def _think(self) -> Steps[str]:  # noqa: C901 - a kind of marker is a branch
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
            if (
                grammar.fmt.ends_thinking
                and mark not in grammar.openers.all
                and mark not in grammar.ends_of_thinking.all
            ):
                continue
            if mark in grammar.ends_of_thinking.all or grammar.fmt.ends_thinking:
                for text, _ in held:
                    sink.reasoning(text)
                sink.boundary()
                return mark
            text, events = yield from self._draft(mark)
            if events:
                held.append((text, events))
            else:
                emit(mark)

    def _draft(self, mark: str) -> Steps[tuple[str, list[Event]]]:
        """Try a block of calls inside thinking: its text and events, or only its marker read if it is none."""
        src, ends = self._src, self._grammar.ends_of_thinking
        inner, recorder = Source(), Sink(self._spellings)
        given = 0
        bare = mark in self._grammar.bare
        if bare:
            src.unread(mark)
        src.keep()
        block = self._read_block(inner, recorder, self._scope(wrapped=not bare))
        while True:
            found = ends.search(src.buf, src.pos)
            stop = found.start() if found else len(src.buf)
            inner.push(src.buf[src.pos : stop])
            given += stop - src.pos
            src.pos = stop
            try:
                next(block)
                if src.ended or (found and found.group() in ends.all):
                    inner.end(natural=src.natural)  # only now: the end says nothing of text that stands before it
                    next(block)
            except StopIteration as done:
                fits = not done.value
                break
            yield
        if not fits:
            src.rewind(len(mark) if bare else 0)
            return "", []
        text = src.kept()[: given - len(inner.buf) + inner.pos]
        src.rewind(len(text))
        return text if bare else mark + text, recorder.take()

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
    return Parser(grammar_of(fmt, style, frozenset(special)), {tool.name: tool.parameters for tool in tools}, thinking)


def markers_of(format: str, reasoning: str = "auto") -> frozenset[str]:  # noqa: A002 - as in open_parser
    """The markers that a model of this format may have as single control tokens, those of its thinking included.

    A caller names in `special` those of them that its model's vocabulary has.

    Raises:
        UnknownFormat: there is no such format or style of thinking.
    """
    fmt = format_named(format)
    style = reasoning_named(fmt.reasoning if reasoning == "auto" else reasoning)
    return frozenset((*fmt.markers, *style.markers))
