"""What a client will send back of a turn. The rule: what was delivered, in order, as its API has it come back."""

from collections.abc import Iterable

from catenary_protocols.conversation import AssistantMessage, CallPart, Conversation, ReasoningPart, TextPart
from catenary_protocols.thoughts import tell_of_thoughts
from catenary_protocols.turn_events import CallComplete, CallCut, Malformed, ReasoningDelta, TextDelta, TurnEvent


class Echo:
    """A turn's answer, put together from its events up to its end.

    Attributes:
        calls: its calls, in order.
        whole: whether all that the model said will come back; markup that became nothing does not.
    """

    def __init__(self, events: Iterable[TurnEvent]) -> None:
        self.calls: list[CallComplete] = []
        self.whole = True
        self._parts: list[tuple[type[ReasoningPart | TextPart], list[str]] | CallPart] = []
        for event in events:
            match event:
                case ReasoningDelta():
                    self._text(ReasoningPart, event.text)
                case TextDelta():
                    self._text(TextPart, event.text)
                case CallComplete():
                    self.calls.append(event)
                    self._parts.append(CallPart(id=event.id, name=event.name, arguments=event.arguments))
                case Malformed() | CallCut():
                    self.whole = False

    def message(self, api: str, *, reasoning: bool) -> AssistantMessage:
        """The message, with or without its reasoning."""
        parts = (part if isinstance(part, CallPart) else part[0](text="".join(part[1])) for part in self._parts)
        kept = tuple(part for part in parts if reasoning or not isinstance(part, ReasoningPart))
        calls = (part for part in kept if isinstance(part, CallPart))
        return AssistantMessage(parts=kept, left_out=api == "chat" and not reasoning and tell_of_thoughts(calls))

    @property
    def reasons(self) -> bool:
        """Whether it has reasoning."""
        return any(not isinstance(part, CallPart) and part[0] is ReasoningPart for part in self._parts)

    def _text(self, kind: type[ReasoningPart | TextPart], text: str) -> None:
        last = self._parts[-1] if self._parts else None
        if isinstance(last, tuple) and last[0] is kind:
            last[1].append(text)
        else:
            self._parts.append((kind, [text]))


def echoes_reasoning(conversation: Conversation, api: str) -> bool:
    """Whether the client sends reasoning back: it does what it did last, else what clients of its API do."""
    for message in reversed(conversation.messages):
        if isinstance(message, AssistantMessage):
            return any(isinstance(part, ReasoningPart) for part in message.parts)
    return api in {"messages", "responses"}
