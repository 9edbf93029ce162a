"""One answer from tokens to turn events: detokenise, parse, stop. Pure; how it is cut never changes the result."""

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

from catenary_parsers import ToolSpec, open_parser
from catenary_protocols.conversation import TokenLogprob, Tool
from catenary_protocols.errors import ErrorInfo
from catenary_protocols.turn_events import (
    CallBegun,
    CallComplete,
    FinishReason,
    Malformed,
    ReasoningDelta,
    TextDelta,
    TurnEvent,
)
from catenary_tokenizers import unpack

from catenary_tokenizer_service.core.calls import CallPolicy, unfit
from catenary_tokenizer_service.core.generated import TOKEN_BYTES
from catenary_tokenizer_service.core.guide import Thinking
from catenary_tokenizer_service.core.shape import KEPT_TOOLS, is_short
from catenary_tokenizer_service.egress.mapping import Mapping
from catenary_tokenizer_service.egress.stop import StopMatcher
from catenary_tokenizer_service.egress.visible import VisibleTokens
from catenary_tokenizer_service.models import ServedModel

EngineFinish = Literal["stop", "length", "cancelled", "error"]


def _spec(tool: Tool) -> ToolSpec:
    return _known_spec(tool) if is_short(tool) else _read_spec(tool)


def _read_spec(tool: Tool) -> ToolSpec:
    return ToolSpec(tool.name, json.loads(tool.schema))


_known_spec = lru_cache(maxsize=KEPT_TOOLS)(_read_spec)


class AnswerStream:
    """See the module.

    Attributes:
        ended: why the answer ended before the engine did (a stop string, one call where only one is allowed, or one
            that does not fit), or "".
        stop: the stop string that matched.
        called: names of the tools that were called.
        unfit: what is wrong with a strict tool's call that ended the answer; it is told of to nobody.
        malformed: some markup was no call, and was shown as text.
        reasoning_tokens: tokens whose text went to reasoning.
    """

    def __init__(
        self,
        model: ServedModel,
        turn_id: str,
        policy: CallPolicy,
        *,
        tools: Sequence[Tool] = (),
        prompt: bytes = b"",
        thinking: Thinking = "none",
        stop: tuple[str, ...] = (),
        one_call: bool = False,
        choice: int = 0,
        plain: bool = False,
        likely: bool = False,
    ) -> None:
        self._detokenizer = model.tokenizer.detokenizer(prompt[-4 * TOKEN_BYTES :])
        self._special = model.special
        self._parser = (
            None
            if plain
            else open_parser(
                model.card.parser,
                tools=map(_spec, tools),
                reasoning=model.card.reasoning,
                thinking=thinking,
                special=model.special,
            )
        )
        self._choice = choice
        self._mapping = Mapping(turn_id, policy, choice)
        self._stop = StopMatcher(stop) if stop else None
        self._visible_tokens = VisibleTokens(model.tokenizer.table, () if plain else model.special) if likely else None
        self._one_call = one_call
        self._strict = {} if model.card.guides else {tool.name: tool.schema for tool in tools if tool.strict}
        self._tokens = 0
        self.ended: Literal["", "stop", "tool_calls"] = ""
        self.stop = ""
        self.called: set[str] = set()
        self.unfit: ErrorInfo | None = None
        self.malformed = False
        self.reasoning_tokens = 0

    def counted(self, generated: int) -> int:
        """Completion tokens to report: up to the one at which the answer ended here."""
        return self._tokens if self.ended else generated

    def push(self, ids: bytes, logprobs: Sequence[TokenLogprob | None] = ()) -> list[TurnEvent]:
        """Events of these tokens; none after the answer ended. `logprobs`: of each of them, if anybody asked."""
        visible = self._visible_tokens
        if self._stop is None and not self._one_call and visible is None:
            return self._push(ids)
        out: list[TurnEvent] = []
        for place, token in enumerate(unpack(ids)):  # one by one, so that the token at which it ends is known
            if self.ended:
                break
            if visible is not None:
                visible.came(token, logprobs[place] if place < len(logprobs) else None)
            at = place * TOKEN_BYTES
            events = self._push(ids[at : at + TOKEN_BYTES])
            out += events if visible is None else visible.told(events)
        return out

    def close(self, finish: EngineFinish) -> list[TurnEvent]:
        """The last events; nothing of the text is lost."""
        if self.ended:
            return []
        events = self._feed(self._detokenizer.flush())
        if self._parser is not None:
            events += self._mapping.map(self._parser.close(finish))
        out = self._visible(events)
        if self._stop is not None and not self.ended and (rest := self._stop.flush()):
            out.append(TextDelta(text=rest, choice=self._choice))
        return out if self._visible_tokens is None else self._visible_tokens.told(out)

    def reason(self, finish: EngineFinish) -> FinishReason:
        """The finish reason to tell."""
        if self.ended:
            return self.ended
        if finish == "length":
            return "length"
        if finish == "stop":
            return "tool_calls" if self.called else "stop"
        return "cancelled"

    def _push(self, ids: bytes) -> list[TurnEvent]:
        self._tokens += len(ids) // TOKEN_BYTES
        events: list[TurnEvent] = []
        for run in self._detokenizer.push(ids):
            if isinstance(run, str):
                events += self._feed(run)
            elif self._parser is not None and run.text in self._special:
                events += self._mapping.map(self._parser.special(run.id, run.text))
            elif run.text in self._special or not run.special:  # nobody parses it: spelled as the model wrote it
                events += self._feed(run.text)
        if events and type(events[0]) is ReasoningDelta:
            self.reasoning_tokens += len(ids) // TOKEN_BYTES
        return self._visible(events)

    def _feed(self, text: str) -> list[TurnEvent]:
        if not text:
            return []
        if self._parser is None:
            return [TextDelta(text=text, choice=self._choice)]
        return self._mapping.map(self._parser.feed(text))

    def _visible(self, events: list[TurnEvent]) -> list[TurnEvent]:
        """Apply stop strings to visible text, and end after the first call where only one is allowed."""
        out: list[TurnEvent] = []
        for event in events:
            if self.ended:
                break
            if self._stop is not None and isinstance(event, TextDelta):
                out += self._match(self._stop, event)
                continue
            if (
                self._stop is not None
                and isinstance(event, CallBegun | ReasoningDelta)
                and (held := self._stop.flush())
            ):
                out.append(TextDelta(text=held, choice=self._choice))
            if isinstance(event, CallComplete):
                self.called.add(event.name)
                self.unfit = self._judge(event)
                if self.unfit is not None or self._one_call:
                    self.ended = "tool_calls"
                if self.unfit is not None:
                    break
            elif isinstance(event, Malformed):
                self.malformed = True
            out.append(event)
        return out

    def _judge(self, call: CallComplete) -> ErrorInfo | None:
        """Of a strict tool's call, where no engine was held to the schema."""
        if call.name not in self._strict:
            return None
        from catenary_tokenizer_service.core.schemas import misfit  # few need it, and it takes 12 MB

        problem = misfit(self._strict[call.name], call.arguments)
        return unfit(call.name, problem) if problem else None

    def _match(self, stop: StopMatcher, event: TextDelta) -> list[TurnEvent]:
        text = stop.push(event.text)
        if stop.matched is not None:
            self.ended, self.stop = "stop", stop.matched
        return [TextDelta(text=text, choice=event.choice)] if text else []
