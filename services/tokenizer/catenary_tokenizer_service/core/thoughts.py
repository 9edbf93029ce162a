"""What was thought before calls, for the clients of an API that has no field of its own for it.

The rule: who leaves the field out has decided nothing. Calls that come back without it get what was delivered with them
put back into the conversation, and the model's template decides what of it is written. What a client says itself is
not touched; what is not known under its tenant, its session and its calls' ids stays out, and is counted.
"""

import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import blake2b

import msgspec
from catenary_protocols.bus.messages import RememberedThoughts
from catenary_protocols.call_ids import bare
from catenary_protocols.conversation import AssistantMessage, CallPart, Conversation, Message, TextPart
from catenary_protocols.thoughts import in_place, tell_of_thoughts
from catenary_protocols.turn_events import CallBegun, ReasoningDelta, TurnEvent

_OVERHEAD = 250  # bytes of an entry's objects beside its text, measured on CPython 3.11
_encode = msgspec.json.Encoder().encode


class Thoughts:
    """Of one model, the least recently used dropped first. Nothing is kept, nor put back, within `max_bytes` of 0."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._kept: dict[bytes, RememberedThoughts] = {}
        self._counts: Counter[str] = Counter()

    def remember(self, tenant: str, session: str, events: Iterable[TurnEvent]) -> None:
        """Keep what a turn's client got of its thoughts, if it made calls whose ids tell of them."""
        if not self._max_bytes:
            return
        texts: list[str] = []
        calls: list[CallPart] = []
        for event in events:
            if isinstance(event, ReasoningDelta):
                texts.append(event.text)
            elif isinstance(event, CallBegun):
                calls.append(CallPart(id=event.id, name=event.name, arguments=""))
        if tell_of_thoughts(calls):
            self._keep(RememberedThoughts(key=_key(tenant, session, calls), text="".join(texts), session=session))

    def restored(self, conversation: Conversation, tenant: str, session: str) -> Conversation:
        """The conversation with all thoughts that were left out of it and are known."""
        if not self._max_bytes or not any(map(_left_out, conversation.messages)):
            return conversation
        if not conversation.restore:
            self._counts["declined"] += sum(map(_left_out, conversation.messages))
            return conversation
        messages = tuple(self._whole(message, tenant, session) for message in conversation.messages)
        return msgspec.structs.replace(conversation, messages=messages)

    @property
    def counts(self) -> Mapping[str, int]:
        """Answers whose thoughts were left out, by what became of them: `restored`, or `unknown` or `declined`."""
        return self._counts

    @property
    def size(self) -> int:
        """Bytes held."""
        return self._bytes

    def sessions(self) -> set[str]:
        """Whose thoughts are here."""
        return {one.session for one in self._kept.values()}

    def take(self, sessions: Collection[str]) -> list[RememberedThoughts]:
        """Those of sessions that move to another instance, the least recently used first; here they are forgotten."""
        leaving = [one for one in self._kept.values() if one.session in sessions]
        for one in leaving:
            self._drop(one.key)
        return leaving

    def accept(self, thoughts: Iterable[RememberedThoughts]) -> None:
        """From the instance that had their session before; those that it has itself it keeps."""
        for one in thoughts:
            if one.key not in self._kept:
                self._keep(one)

    def _whole(self, message: Message, tenant: str, session: str) -> Message:
        if not isinstance(message, AssistantMessage) or not message.left_out:
            return message
        calls = [part for part in message.parts if isinstance(part, CallPart)]
        key = _key(tenant, session, calls)
        known = self._kept.pop(key, None)
        self._counts["unknown" if known is None else "restored"] += 1
        if known is None:
            return message
        self._kept[key] = known
        said = [part for part in message.parts if isinstance(part, TextPart)]
        return AssistantMessage(parts=in_place(known.text, said, calls))

    def _keep(self, one: RememberedThoughts) -> None:
        self._drop(one.key)
        if _size(one) > self._max_bytes:
            return
        self._kept[one.key] = one
        self._bytes += _size(one)
        while self._bytes > self._max_bytes:
            self._drop(next(iter(self._kept)))

    def _drop(self, key: bytes) -> None:
        if (one := self._kept.pop(key, None)) is not None:
            self._bytes -= _size(one)


def _left_out(message: Message) -> bool:
    return isinstance(message, AssistantMessage) and message.left_out


def _key(tenant: str, session: str, calls: Sequence[CallPart]) -> bytes:
    """A digest. Of ids it takes what every client sends back of them."""
    return blake2b(_encode((tenant, session, [bare(call.id) for call in calls])), digest_size=16).digest()


def _size(one: RememberedThoughts) -> int:
    return _OVERHEAD + sys.getsizeof(one.text)
