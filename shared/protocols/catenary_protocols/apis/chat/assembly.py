"""What the model has said so far, choice by choice: the message that a stream's reader is putting together."""

from msgspec import UNSET

from catenary_protocols.apis.chat.answer import ChatAnswer, Function, ToolCall


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
    """One choice. `text_before`, `reasoning_before` and `after` are the bytes around its deltas."""

    __slots__ = ("after", "calls", "reasoning", "reasoning_before", "text", "text_before")

    def __init__(self, before: bytes, after: bytes) -> None:
        self.text_before = before + b'"content":'
        self.reasoning_before = before + b'"reasoning_content":'
        self.after = after
        self.text: list[str] = []
        self.reasoning: list[str] = []
        self.calls: dict[int, Call] = {}

    def answer(self) -> ChatAnswer:
        """The message."""
        text = "".join(self.text)
        calls = [
            ToolCall(id=call.id, function=Function(name=call.name, arguments="".join(call.arguments)))
            for call in self.calls.values()
        ]
        return ChatAnswer(
            content=None if calls and not text else text,
            reasoning_content="".join(self.reasoning) or UNSET,
            tool_calls=calls or UNSET,
        )
