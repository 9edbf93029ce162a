"""Turn events → chunks, and the whole completion from the same events."""

from collections.abc import Sequence
from itertools import accumulate

import msgspec

from catenary_protocols.apis.api import Draft
from catenary_protocols.apis.chat.answer import usage_of
from catenary_protocols.apis.completions.answer import Completion, CompletionChoice, CompletionLogprobs, Reason
from catenary_protocols.apis.error_bodies import openai_error
from catenary_protocols.apis.likely import Held, logprob_of, text_of
from catenary_protocols.apis.sse import DONE, event
from catenary_protocols.errors import ErrorInfo
from catenary_protocols.turn_events import Failed, Finished, TextDelta, TurnEvent, Usage, VisibleToken

_encode = msgspec.json.Encoder().encode
_CANCELLED = ErrorInfo(code="cancelled", message="the turn was cancelled")


class _Text:
    """What was said of one choice."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self._length = 0
        self._offsets: list[int] = []
        self._likely = Held()

    def add(self, delta: TextDelta) -> CompletionLogprobs | None:
        """More of it; what is known of the tokens that begin in it."""
        offset = self._length
        self.pieces.append(delta.text)
        self._length += len(delta.text)
        if not delta.tokens:
            return None
        self._offsets.append(offset)
        self._likely.add(delta.tokens)
        return _told(delta.tokens, offset)

    def logprobs(self) -> CompletionLogprobs:
        """Of its tokens so far."""
        whole = CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
        for told in map(_told, self._likely.deltas(), self._offsets):
            for name in CompletionLogprobs.__struct_fields__:
                getattr(whole, name).extend(getattr(told, name))
        return whole


def _told(tokens: Sequence[VisibleToken], offset: int) -> CompletionLogprobs:
    """Of tokens of which the first one stands at `offset`."""
    texts = [text_of(token.piece) for token in tokens]
    return CompletionLogprobs(
        tokens=texts,
        token_logprobs=[logprob_of(token) for token in tokens],
        top_logprobs=[{text_of(other.piece): logprob_of(other) for other in token.top} for token in tokens],
        text_offset=list(accumulate(map(len, texts[:-1]), initial=offset)),
    )


class CompletionsEncoder:
    """`api.Encoder` of Completions."""

    def __init__(self, draft: Draft, turn_id: str, created: int) -> None:
        self._frame = Completion(id=f"cmpl-{turn_id}", created=created, model=draft.model, choices=[])
        self._include_usage = draft.include_usage
        self._likely = draft.sampling.logprobs is not None
        self._texts = [_Text() for _ in range(draft.choices)]
        self._reasons: dict[int, Reason] = {}
        self._usage = Usage()

    def feed(self, events: Sequence[TurnEvent]) -> bytes:
        """Chunks for these events."""
        return b"".join(self._one(one) for one in events)

    def heartbeat(self) -> bytes:
        """A chunk without text."""
        return self._chunk(CompletionChoice(index=0, text=""))

    def body(self) -> bytes:
        """The completion."""
        choices = [
            CompletionChoice(
                index=index,
                text="".join(text.pieces),
                finish_reason=self._reasons.get(index),
                logprobs=text.logprobs() if self._likely else None,
            )
            for index, text in enumerate(self._texts)
        ]
        return _encode(msgspec.structs.replace(self._frame, choices=choices, usage=usage_of(self._usage)))

    def _one(self, one: TurnEvent) -> bytes:
        match one:
            case TextDelta():
                logprobs = self._texts[one.choice].add(one)
                return self._chunk(CompletionChoice(index=one.choice, text=one.text, logprobs=logprobs))
            case Finished(reason="cancelled"):
                return self._failed(_CANCELLED)
            case Finished():
                return self._finished(one)
            case Failed():
                return self._failed(one.error)
            case _:
                return b""

    def _finished(self, end: Finished) -> bytes:
        reason: Reason = "length" if end.reason == "length" else "stop"
        self._reasons[end.choice] = reason
        self._usage = end.usage
        last = self._chunk(CompletionChoice(index=end.choice, text="", finish_reason=reason))
        if len(self._reasons) < len(self._texts):
            return last
        usage = event(msgspec.structs.replace(self._frame, usage=usage_of(self._usage)))
        return last + (usage if self._include_usage else b"") + DONE

    def _failed(self, error: ErrorInfo) -> bytes:
        return b"data: %b\n\n%b" % (openai_error(error), DONE)

    def _chunk(self, choice: CompletionChoice) -> bytes:
        return event(msgspec.structs.replace(self._frame, choices=[choice]))
