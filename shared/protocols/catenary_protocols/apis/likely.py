"""How likely the tokens of a text were, as the OpenAI APIs tell it."""

from collections.abc import Iterable, Iterator

import msgspec

from catenary_protocols.turn_events import TokenPiece, VisibleToken

_Piece = tuple[bytes, float]
_pack = msgspec.json.Encoder().encode
_unpack = msgspec.json.Decoder(list[tuple[_Piece, list[_Piece]]]).decode
LEAST = -9999.0
"""Stands for the logarithm of zero, which JSON cannot say."""


class LikelyToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token as text (U+FFFD for what is only a part of a character) and as bytes, and its log probability."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprobs(LikelyToken, frozen=True, kw_only=True):
    """A token of the answer; `top_logprobs` are the likeliest at its place, the likeliest first."""

    top_logprobs: list[LikelyToken]


def text_of(piece: bytes) -> str:
    """A token's text."""
    return piece.decode("utf-8", "replace")


def logprob_of(piece: TokenPiece) -> float:
    """A token's log probability. What is no number, or none that a probability has, is told as the nearest that is."""
    return min(piece.logprob, 0.0) if piece.logprob > LEAST else LEAST


def told(tokens: Iterable[VisibleToken]) -> list[TokenLogprobs]:
    """The tokens of a text."""
    return [
        TokenLogprobs(
            token=text_of(one.piece),
            logprob=logprob_of(one),
            bytes=list(one.piece),
            top_logprobs=[
                LikelyToken(token=text_of(other.piece), logprob=logprob_of(other), bytes=list(other.piece))
                for other in one.top
            ],
        )
        for one in tokens
    ]


def _bare(token: TokenPiece) -> _Piece:
    return token.piece, logprob_of(token)


class Held:
    """What is known of a text's tokens while it is on its way, packed: as objects it would take many times the room."""

    __slots__ = ("_packed",)

    def __init__(self) -> None:
        self._packed: list[bytes] = []

    def add(self, tokens: tuple[VisibleToken, ...]) -> None:
        """The tokens of one delta."""
        pieces = [(_bare(token), [_bare(other) for other in token.top]) for token in tokens]
        self._packed.append(_pack(pieces))

    def deltas(self) -> Iterator[tuple[VisibleToken, ...]]:
        """The tokens, delta by delta."""
        for packed in self._packed:
            yield tuple(
                VisibleToken(
                    piece=piece,
                    logprob=logprob,
                    top=tuple(TokenPiece(piece=other, logprob=likely) for other, likely in top),
                )
                for (piece, logprob), top in _unpack(packed)
            )

    def told(self) -> list[TokenLogprobs]:
        """All tokens."""
        return [one for tokens in self.deltas() for one in told(tokens)]
