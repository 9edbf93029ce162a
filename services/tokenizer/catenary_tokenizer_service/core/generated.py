"""A turn's tokens over all its attempts. The rule: none is taken twice, none skipped, no old attempt adds one."""

from dataclasses import dataclass, field
from typing import Literal

TOKEN_BYTES = 4
Verdict = Literal["taken", "old", "gap"]


@dataclass(slots=True)
class Generated:
    """What was generated since the original prompt.

    Attributes:
        ids: little-endian u32.
        attempt: the one attempt whose tokens count.
    """

    attempt: int
    ids: bytearray = field(default_factory=bytearray)

    @property
    def count(self) -> int:
        """Tokens taken."""
        return len(self.ids) // TOKEN_BYTES

    def take(self, attempt: int, offset: int, tokens: bytes) -> tuple[Verdict, bytes]:
        """Offer tokens from `offset` on; the new ones among them, when none is missing before."""
        if attempt != self.attempt:
            return "old", b""
        have = len(self.ids)
        start = offset * TOKEN_BYTES
        if start == have:  # nearly always
            self.ids += tokens
            return "taken", tokens
        if start > have:
            return "gap", b""
        fresh = tokens[have - start :]
        self.ids += fresh
        return "taken", fresh
