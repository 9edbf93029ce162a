"""Between tokenizers: what a model generated for a session, to the instance that owns the session's next turn."""

from catenary_protocols.bus.messages.base import Message
from catenary_protocols.wire import Wire


class RememberedAnswer(Wire, frozen=True):
    """One generated answer.

    Attributes:
        key: digest of tenant, salt, model, template and prompt: who does not know them all finds nothing under it.
        control, tail: the end of the prompt: its last control token and the text after it.
        generated: token ids.
        session: whose turn it was.
    """

    key: bytes
    control: str
    tail: str
    generated: bytes
    session: str


class RememberedThoughts(Wire, frozen=True):
    """What was thought in a turn that made calls.

    Attributes:
        key: digest of tenant, session and the ids of the calls.
        session: whose turn it was.
    """

    key: bytes
    text: str
    session: str


class CarryMemory(Message, frozen=True):
    """What is remembered of a model (its `card`) for sessions that are yours now.

    Not confirmed: of answers, what is lost is encoded anew; thoughts that are lost stay out of prompts.
    """

    card: str
    answers: tuple[RememberedAnswer, ...]
    thoughts: tuple[RememberedThoughts, ...] = ()
