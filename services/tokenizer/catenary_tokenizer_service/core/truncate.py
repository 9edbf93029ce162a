"""Which messages a conversation that is too long can do without. The rule: the oldest, with all that answered them.

What goes is all before some user message but the instructions: a question, its calls, their results and its answer go
together, so that no result is left without its call. The last question stays.
"""

from bisect import bisect_left
from collections.abc import Callable

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


def shortened(conversation: Conversation, fits: Callable[[Conversation], bool]) -> Conversation:
    """The longest such conversation that fits; its last question alone, when none does."""
    most = questions(conversation) - 1
    if most < 1:
        return conversation
    count = bisect_left(range(1, most), True, key=lambda gone: fits(without_oldest(conversation, gone))) + 1
    return without_oldest(conversation, count)
