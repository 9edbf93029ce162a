"""Putting remembered answers into a prompt.

The prompt comes as parts: plain text at even places, control tokens at odd ones. Where the ids before an answer are
those of a remembered prompt, the answer's parts are compared with what was generated, one after the other: equal text
takes the generated ids; text that differs only in how the JSON of a call is spelled, or in the white space beside a
marker, which parsers and templates trim, does too; at the first other difference, tokens wholly inside the common text
are taken and the rest is encoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from xxhash import xxh3_128

from catenary_tokenizers.detokenise import PieceTable
from catenary_tokenizers.ids import TOKEN_BYTES, unpack
from catenary_tokenizers.spelling import common_length, same_but_spelling
from catenary_tokenizers.turn_memory import RememberedTurn, TurnMemory

__all__ = ["MarkedPrompt", "assemble"]


@dataclass(frozen=True, slots=True)
class MarkedPrompt:
    """A rendered prompt and how its parts are encoded.

    Attributes:
        parts: the marked text, cut at its control tokens.
        ids: packed ids of each part.
        encode: ids of a marked text that is a piece of a part.
        clean: takes marks out of a part.
        escape: makes a clean text one that `encode` takes.
        calls: arguments of the conversation's calls, as JSON text or parsed.
        answers: how many messages of the assistant's it holds.
    """

    parts: Sequence[str]
    ids: Sequence[bytes]
    encode: Callable[[str], bytes]
    clean: Callable[[str], str]
    escape: Callable[[str], str]
    calls: Sequence[object]
    answers: int


def assemble(prompt: MarkedPrompt, memory: TurnMemory, scope: bytes) -> bytes:
    """Ids of a prompt with remembered answers in it; `scope` as in `scope_of`."""
    out: list[bytes] = []
    hashed = xxh3_128(scope)
    at = fresh = found = 0
    tails = {control: sorted(tails, key=len, reverse=True) for control, tails in memory.openings.items()}
    encoded = {tail: prompt.encode(tail) if tail else b"" for tail in chain.from_iterable(tails.values())}
    for place, tail in _openings(prompt.parts, tails):
        if place < at:
            continue  # inside the answer before: the model opened a message of its own
        out += prompt.ids[at:place]
        at = place
        hashed.update(b"".join(out[fresh:]))
        fresh = len(out)
        before = hashed.copy()
        before.update(encoded[tail])
        if turn := memory.find(before.digest()):
            out.append(encoded[tail])
            answer = _Answer(prompt, at, len(tail), turn, memory.table)
            at = answer.splice(out)
            memory.count(answer.outcome)
            found += 1
    memory.count("unknown", prompt.answers - found)
    return b"".join([*out, *prompt.ids[at:]])


def _openings(parts: Sequence[str], tails: Mapping[str, Sequence[str]]) -> Iterator[tuple[int, str]]:
    """Parts in which an answer may begin, with the longest of the texts that may come before it."""
    for at, control in enumerate(parts[1::2]):
        for tail in tails.get(control, ()):
            if parts[2 * at + 2].startswith(tail):
                yield 2 * at + 2, tail
                break


class _Answer:
    """One remembered answer on its way into a prompt."""

    def __init__(self, prompt: MarkedPrompt, at: int, skip: int, turn: RememberedTurn, table: PieceTable) -> None:
        self._prompt = prompt
        self._parts = prompt.parts
        self._at = at
        self._skip = skip
        self._turn = turn
        self._table = table
        self.outcome = "hit"

    def splice(self, out: list[bytes]) -> int:
        """Write the answer's ids; the place of the next part to encode."""
        texts = self._turn.texts
        last = len(texts) - 1
        for n, (text, ids) in enumerate(zip(texts, self._turn.ids, strict=True)):
            place = self._at + n
            if n % 2:
                if place >= len(self._parts) or self._parts[place] != text:
                    self.outcome = "hit" if n >= last - 1 else "reasoning" if n == 1 else "shape"
                    return place
                out.append(ids)
            elif n == last and n > 0 and not text:
                return place  # the answer ended with a control token: what follows is the template's
            else:
                marked = self._parts[place][self._skip if n == 0 else 0 :]
                rendered = marked if marked == text else self._prompt.clean(marked)
                if rendered == text or self._is_same(self._inside(rendered, n), self._inside(text, n)):
                    out.append(ids)
                    continue
                self._splice_start(out, rendered, ids, place)
                return place + 1
        return self._at + last + 1

    def _inside(self, text: str, n: int) -> str:
        """A text of the `n`th part without white space that touches a marker which both have."""
        if n or not self._skip:
            text = text.lstrip()
        following = self._at + n + 1
        closed = n + 1 < len(self._turn.texts) and following < len(self._parts)
        return text.rstrip() if closed and self._parts[following] == self._turn.texts[n + 1] else text

    def _is_same(self, rendered: str, text: str) -> bool:
        """Whether a part says what was generated, JSON of calls spelled anyhow; sets the outcome if not."""
        if same_but_spelling(rendered, text, self._prompt.calls):
            return True
        self.outcome = "arguments" if self._prompt.calls and "{" in text[: common_length(rendered, text)] else "text"
        return False

    def _splice_start(self, out: list[bytes], rendered: str, ids: bytes, place: int) -> None:
        """The tokens wholly inside what is rendered, then the rest of the part encoded."""
        kept = ids[: _tokens_inside(ids, rendered.encode("utf-8", "surrogatepass"), self._table) * TOKEN_BYTES]
        if not kept and place == self._at:  # nothing was taken: the part as if nothing had been remembered
            self.outcome = self.outcome if ids else "reasoning"
            out[-1] = self._prompt.ids[place]
            return
        head = b"".join(map(self._table.piece, unpack(kept))).decode()
        out.append(kept)
        if len(head) < len(rendered):
            out.append(self._prompt.encode(self._prompt.escape(rendered[len(head) :])))


def _tokens_inside(ids: bytes, text: bytes, table: PieceTable) -> int:
    """How many of the tokens stand wholly inside `text`'s beginning, and end between two characters."""
    kept = length = 0
    for count, token in enumerate(unpack(ids), 1):
        piece = table.piece(token)
        if not text.startswith(piece, length):
            break
        length += len(piece)
        if length == len(text) or text[length] & 0xC0 != 0x80:
            kept = count
    return kept
