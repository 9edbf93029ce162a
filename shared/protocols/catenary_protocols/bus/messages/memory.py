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


class CarryMemory(Message, frozen=True):
    """Answers of a model (its `card`) whose sessions are yours now. Not confirmed: what is lost is encoded anew."""

    card: str
    answers: tuple[RememberedAnswer, ...]
