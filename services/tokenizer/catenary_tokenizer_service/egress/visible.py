"""Which tokens visible text came from. The rule: each is told of once, with the text in which it begins to show.

Text may show later than its token came: half a character waits for the other half, a possible marker for its end. So
tokens wait here until text shows in which they are found; those that became something else are forgotten.
"""

from collections.abc import Container, Iterable

import msgspec
from catenary_protocols.conversation import TokenLogprob
from catenary_protocols.turn_events import ReasoningDelta, TextDelta, TokenPiece, TurnEvent, VisibleToken
from catenary_tokenizers.detokenise import PieceTable


class VisibleTokens:
    """For one answer whose request wants to know of its tokens. `markers`: control tokens that never show."""

    def __init__(self, table: PieceTable, markers: Container[str]) -> None:
        self._piece = table.piece
        self._markers = {index for index, token in table.controls.items() if token.text in markers}
        self._waiting: list[tuple[bytes, VisibleToken | None]] = []

    def came(self, token: int, said: TokenLogprob | None) -> None:
        """A token; of some the engine does not know how likely they were."""
        if token in self._markers:
            return
        piece = self._piece(token)
        self._waiting.append((piece, self._visible(piece, said) if said is not None else None))

    def told(self, events: Iterable[TurnEvent]) -> list[TurnEvent]:
        """The same events, texts with the tokens that came since the last one and show in them."""
        told = [self._one(event) for event in events]
        if told and not isinstance(told[-1], TextDelta | ReasoningDelta):
            self._waiting.clear()
        return told

    def _one(self, event: TurnEvent) -> TurnEvent:
        if isinstance(event, TextDelta) and event.text:
            tokens = self._found(event.text.encode())
            return msgspec.structs.replace(event, tokens=tuple(tokens)) if tokens else event
        if isinstance(event, ReasoningDelta):
            self._found(event.text.encode())
        else:
            del self._waiting[:-1]  # the end of the newest may be text again
        return event

    def _found(self, text: bytes) -> list[VisibleToken]:
        """Tokens that begin in `text`. They wait no longer, nor do those before them; of the last one, what is left."""
        pieces = [piece for piece, _ in self._waiting]
        at = b"".join(pieces).find(text)
        begin, end = (at, at + len(text)) if at >= 0 else (0, sum(map(len, pieces)))
        found, waiting, place = [], [], 0
        for piece, token in self._waiting:
            shows = place < end and place + len(piece) > begin
            if shows and token is not None:
                found.append(token)
            if place + len(piece) > end:
                waiting.append((piece[max(0, end - place) :], None if shows else token))
            place += len(piece)
        self._waiting = waiting
        return found

    def _visible(self, piece: bytes, said: TokenLogprob) -> VisibleToken:
        top = (TokenPiece(piece=self._piece(other), logprob=logprob) for other, logprob in said.top.items())
        return VisibleToken(piece=piece, logprob=said.logprob, top=tuple(top))
