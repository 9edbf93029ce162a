"""What the model has said so far, choice by choice: the message that a stream's reader is putting together."""

from msgspec import UNSET

from catenary_protocols.apis.chat.answer import ChatAnswer, ChatLogprobs, Function, Reason, ToolCall
from catenary_protocols.apis.likely import Held


class Call:
    """A call on its way. `key` is known once it is complete."""

    __slots__ = ("arguments", "id", "key", "name", "size")

    def __init__(self, id_: str, name: str) -> None:
        self.id = id_
        self.name = name
        self.key = ""
        self.arguments: list[str] = []
        self.size = 0

    def add(self, text: str) -> None:
        """More of the arguments."""
        self.arguments.append(text)
        self.size += len(text)


class Choice:
    """One choice. `text_before`, `reasoning_before` and `after` are the bytes around its deltas.

    `reason` is why it ended, once it has; `likely` is of its text's tokens.
    """

    __slots__ = ("after", "calls", "likely", "reason", "reasoning", "reasoning_before", "text", "text_before")

    def __init__(self, before: bytes, after: bytes) -> None:
        self.text_before = before + b'"content":'
        self.reasoning_before = before + b'"reasoning_content":'
        self.after = after
        self.text: list[str] = []
        self.reasoning: list[str] = []
        self.likely = Held()
        self.calls: dict[int, Call] = {}
        self.reason: Reason = "stop"

    def logprobs(self) -> ChatLogprobs:
        """Of its text's tokens."""
        return ChatLogprobs(content=self.likely.told())

    def answer(self, *, functions: bool) -> ChatAnswer:
        """The message; `functions` tells its call in the older form."""
        text = "".join(self.text)
        calls = [
            ToolCall(id=call.id, function=Function(name=call.name, arguments="".join(call.arguments)))
            for call in self.calls.values()
        ]
        return ChatAnswer(
            content=None if calls and not text else text,
            reasoning_content="".join(self.reasoning) or UNSET,
            tool_calls=UNSET if functions or not calls else calls,
            function_call=calls[0].function if functions and calls else UNSET,
        )
