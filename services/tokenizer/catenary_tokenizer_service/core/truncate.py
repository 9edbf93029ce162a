"""Which messages a conversation that is too long can do without. The rule: the oldest, with all that answered them.

What goes is all before some user message but the instructions: a question, its calls, their results and its answer go
together, so that no result is left without its call. The last question stays.
"""

from collections.abc import Generator

import msgspec
from catenary_protocols.conversation import Conversation, SystemMessage, UserMessage


def questions(conversation: Conversation) -> int:
    """How many questions it has."""
    return sum(isinstance(message, UserMessage) for message in conversation.messages)


def without_oldest(conversation: Conversation, count: int) -> Conversation:
    """The conversation without its `count` oldest questions, of which it has more."""
    messages = conversation.messages
    asked = [place for place, message in enumerate(messages) if isinstance(message, UserMessage)]
    start = asked[count]
    kept = tuple(message for message in messages[:start] if isinstance(message, SystemMessage))
    return msgspec.structs.replace(conversation, messages=kept + messages[start:])


def shortened(conversation: Conversation) -> Generator[Conversation, bool, Conversation]:
    """The longest such conversation that fits; its last question alone, when none does.

    Yields those to try, and wants to be sent whether they fit.
    """
    most = questions(conversation) - 1
    if most < 1:
        return conversation
    least = 1
    while least < most:
        middle = (least + most) // 2
        fits = yield without_oldest(conversation, middle)
        least, most = (least, middle) if fits else (middle + 1, most)
    return without_oldest(conversation, least)
