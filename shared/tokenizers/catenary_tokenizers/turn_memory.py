"""What the model really generated, to be put back into the next prompt.

A client sends an answer back as text; encoded anew it may give other ids than the model wrote, and the KV blocks
written while decoding would be lost. So a turn's ids are remembered under the ids of its prompt, and spliced in where
the next prompt renders the answer. Law: the decoded prompt equals the rendered text but for the spelling of JSON
inside calls and for white space beside the markers of an answer; what does not match is encoded from the rendered text
as ever (`splice.py`), and counted with its reason.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from xxhash import xxh3_128

from catenary_tokenizers.detokenise import PieceTable
from catenary_tokenizers.ids import TOKEN_BYTES, pack, unpack

__all__ = ["CarriedTurn", "Opening", "RememberedTurn", "TurnMemory", "scope_of"]

_TAIL_TOKENS = 64  # a generation prompt is shorter
_OVERHEAD = 600  # bytes of an entry's objects beside its texts and ids, measured on CPython 3.11

Opening = tuple[str, str]


@dataclass(frozen=True, slots=True)
class CarriedTurn:
    """A generated answer on its way to the memory of another instance that has loaded the same model.

    Attributes:
        key: digest of scope and prompt: who does not know both finds nothing.
        opening: see `RememberedTurn`.
        generated: packed ids.
        session: whose turn it was.
    """

    key: bytes
    opening: Opening
    generated: bytes
    session: str


@dataclass(frozen=True, slots=True)
class RememberedTurn:
    """A generated answer, cut at its control tokens.

    Attributes:
        key: digest of scope and prompt.
        opening: the end of the prompt: its last control token and the text after it.
        texts: plain text at even places, control tokens at odd ones.
        ids: packed ids of each text.
        session: whose turn it was, to carry it along when the session moves.
    """

    key: bytes
    opening: Opening
    texts: tuple[str, ...]
    ids: tuple[bytes, ...]
    session: str

    @property
    def carried(self) -> CarriedTurn:
        """The same, as it travels."""
        return CarriedTurn(self.key, self.opening, b"".join(self.ids), self.session)

    @property
    def size(self) -> int:
        """Bytes it takes."""
        return _OVERHEAD + sum(map(sys.getsizeof, (*self.texts, *self.ids)))


def scope_of(*, tenant: str, salt: str, model: str, template: str) -> bytes:
    """Who may share remembered turns: those of one tenant, salt, model and template source."""
    digest = xxh3_128()
    for part in (tenant, salt, model, template):
        encoded = part.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.digest()


class TurnMemory:
    """Remembered turns of one model, the least recently used dropped first.

    Args:
        table: the model's pieces.
        max_bytes: bound of what is held.
    """

    def __init__(self, table: PieceTable, max_bytes: int) -> None:
        self.table = table
        self._max_bytes = max_bytes
        self._bytes = 0
        self._turns: dict[bytes, RememberedTurn] = {}
        self._openings: dict[str, Counter[str]] = {}
        self._counts: Counter[str] = Counter()

    def remember(self, scope: bytes, prompt: bytes, generated: bytes, *, session: str = "") -> None:
        """Keep a turn that was delivered.

        Args:
            scope: see `scope_of`.
            prompt: ids the engine got.
            generated: ids it wrote, its end token among them or not.
            session: see `RememberedTurn`.
        """
        opening = self._opening(prompt)
        if opening is not None and generated:
            key = xxh3_128(scope + prompt).digest()
            texts, ids = self._runs(generated)
            self._keep(RememberedTurn(key, opening, texts, ids, session))

    def find(self, key: bytes) -> RememberedTurn | None:
        """The turn under a digest, now the most recently used one."""
        turn = self._turns.pop(key, None)
        if turn is not None:
            self._turns[key] = turn
        return turn

    @property
    def openings(self) -> Mapping[str, Collection[str]]:
        """Where an answer may begin: texts that end remembered prompts, by the control token before them."""
        return self._openings

    def count(self, outcome: str, times: int = 1) -> None:
        """Note what became of answers: `hit`, or the reason of a miss."""
        if times > 0:
            self._counts[outcome] += times

    @property
    def counts(self) -> Mapping[str, int]:
        """Answers by outcome: `hit`; `unknown`, `reasoning`, `text`, `arguments`, `shape` are the reasons of a miss."""
        return self._counts

    @property
    def size(self) -> int:
        """Bytes held."""
        return self._bytes

    def sessions(self) -> set[str]:
        """Whose turns are here."""
        return {turn.session for turn in self._turns.values()}

    def take(self, sessions: Collection[str]) -> list[CarriedTurn]:
        """Turns of sessions that move to another instance, the least recently used first; here they are forgotten."""
        leaving = [turn for turn in self._turns.values() if turn.session in sessions]
        for turn in leaving:
            self._drop(turn.key)
        return [turn.carried for turn in leaving]

    def accept(self, turns: Iterable[CarriedTurn]) -> None:
        """Turns from the instance that had their session before; those that it has itself it keeps."""
        for turn in turns:
            if turn.key not in self._turns:
                texts, ids = self._runs(turn.generated)
                self._keep(RememberedTurn(turn.key, turn.opening, texts, ids, turn.session))

    def _keep(self, turn: RememberedTurn) -> None:
        self._drop(turn.key)
        if turn.size > self._max_bytes:
            return
        self._turns[turn.key] = turn
        control, tail = turn.opening
        self._openings.setdefault(control, Counter())[tail] += 1
        self._bytes += turn.size
        while self._bytes > self._max_bytes:
            self._drop(next(iter(self._turns)))

    def _drop(self, key: bytes) -> None:
        turn = self._turns.pop(key, None)
        if turn is None:
            return
        self._bytes -= turn.size
        control, tail = turn.opening
        tails = self._openings[control]
        tails[tail] -= 1
        if not tails[tail]:
            del tails[tail]

    def _opening(self, prompt: bytes) -> Opening | None:
        texts, _ = self._runs(prompt[-_TAIL_TOKENS * TOKEN_BYTES :])
        return (texts[-2], texts[-1]) if len(texts) > 1 else None

    def _runs(self, packed: bytes) -> tuple[tuple[str, ...], tuple[bytes, ...]]:
        texts: list[str] = []
        ids: list[bytes] = []
        run: list[int] = []
        for token in unpack(packed):
            control = self.table.controls.get(token)
            if control is None:
                run.append(token)
                continue
            texts += [self.table.decode(pack(run)), control.text]
            ids += [pack(run), pack([token])]
            run = []
        return (*texts, self.table.decode(pack(run))), (*ids, pack(run))
