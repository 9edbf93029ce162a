"""Parser events to turn events: the one place that knows both vocabularies."""

from collections.abc import Iterable

import catenary_parsers as said
from catenary_protocols.call_ids import call_id
from catenary_protocols.ids import call_key
from catenary_protocols.turn_events import (
    ArgumentsDelta,
    CallBegun,
    CallComplete,
    CallCut,
    Malformed,
    ReasoningDelta,
    TextDelta,
    TurnEvent,
)

from catenary_tokenizer_service.core.calls import CallPolicy


class Mapping:
    """For one choice of one turn: gives calls their ids and keys, and decides who runs them."""

    __slots__ = ("_choice", "_ids", "_policy", "_thought", "_turn_id")

    def __init__(self, turn_id: str, policy: CallPolicy, choice: int = 0) -> None:
        self._turn_id = turn_id
        self._policy = policy
        self._choice = choice
        self._ids: dict[int, str] = {}
        self._thought = 0

    def map(self, events: Iterable[said.Event]) -> list[TurnEvent]:
        """The same, as turn events."""
        return [self._one(event) for event in events]

    def _one(self, event: said.Event) -> TurnEvent:
        match event:
            case said.TextDelta(text):
                return TextDelta(text=text, choice=self._choice)
            case said.ReasoningDelta(text):
                self._thought += len(text)
                return ReasoningDelta(text=text, choice=self._choice)
            case said.ArgumentsDelta(index, text):
                return ArgumentsDelta(index=index, text=text, choice=self._choice)
            case said.ToolCallBegun(index, model_id, name):
                given = self._ids[index] = model_id or call_id(self._turn_id, self._choice, index, self._thought)
                return CallBegun(index=index, id=given, name=name, choice=self._choice)
            case said.ToolCallComplete():
                return self._complete(event)
            case said.ToolCallCut(index, arguments):
                return CallCut(index=index, arguments=arguments, choice=self._choice)
            case said.Malformed(raw, reason):
                return Malformed(raw=raw, reason=reason, choice=self._choice)

    def _complete(self, call: said.ToolCallComplete) -> CallComplete:
        run_by = self._policy.run_by(call.name, decided_at_close=call.decided_at_close)
        return CallComplete(
            index=call.index,
            id=self._ids[call.index],
            name=call.name,
            arguments=call.arguments,
            key=call_key(self._turn_id, self._choice, call.index) if run_by else "",
            run_by=run_by,
            choice=self._choice,
        )
