"""Text to ids and back, where it matters which text may become control tokens."""

import re
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence

from catenary_tokenizers import ControlToken, ModelTokenizer, unpack

_CONTENT = "\ufdd0"
"""A noncharacter around text that is content, whatever it spells."""
_SESSIONS = 16
"""Prompts kept up to their last control token: a long one takes half a megabyte."""


def content(text: str) -> str:
    """Mark a text as content: its control tokens are spelled, not meant."""
    return f"{_CONTENT}{text.replace(_CONTENT, '')}{_CONTENT}"


class Codec:
    """A model's tokenizer as the speaker uses it."""

    def __init__(self, tokenizer: ModelTokenizer) -> None:
        self._tokenizer = tokenizer
        self._controls = tokenizer.control_tokens
        names = sorted(self._controls, key=len, reverse=True)
        self._split = re.compile(f"({'|'.join(map(re.escape, names))})" if names else r"(?!)")
        calls = {index for text, index in self._controls.items() if "call" in text.lower()}
        self._ends = tokenizer.eos_ids - calls or tokenizer.eos_ids
        self._heads: OrderedDict[str, tuple[bytes, list[str | ControlToken]]] = OrderedDict()

    @property
    def sees_images(self) -> bool:
        """Whether the model has a control token for images."""
        return any(word in text.lower() for text in self._controls for word in ("image", "vision"))

    def read(self, ids: "array[int]", session: str = "") -> list[str | ControlToken]:
        """A prompt as text and control tokens in order; what the session's last one began with is not read again."""
        controls, cut = self._tokenizer.table.controls, len(ids)
        while cut and ids[cut - 1] not in controls:
            cut -= 1
        head = ids[:cut].tobytes()
        known, parts = self._heads.pop(session, (b"", []))
        if not head.startswith(known):
            known, parts = b"", []
        parts = [*parts, *self._parts(head[len(known) :])]
        if session:
            self._heads[session] = head, parts
            if len(self._heads) > _SESSIONS:
                self._heads.popitem(last=False)
        return [*parts, *self._parts(ids[cut:].tobytes())]

    def _parts(self, packed: bytes) -> list[str | ControlToken]:
        stream = self._tokenizer.detokenizer()
        parts = stream.push(packed)
        rest = stream.flush()
        return [*parts, rest] if rest else parts

    def write(self, text: str) -> "array[int]":
        """Ids of what the model says: control tokens spelled in it are meant, but for those inside `content`."""
        ids = array("I")
        for at, part in enumerate(text.split(_CONTENT)):
            ids.extend(unpack(self._tokenizer.encode(part, special=at % 2 == 0)))
        return ids

    def pieces(self, text: str, characters: int) -> Iterator["array[int]"]:
        """The text cut into pieces of so many characters, each encoded on its own; control tokens are pieces."""
        for at, run in enumerate(self._split.split(text)):
            if at % 2:
                yield array("I", (self._controls[run],))
            else:
                for start in range(0, len(run), characters):
                    yield unpack(self._tokenizer.encode(run[start : start + characters], special=False))

    def spells_control(self, text: str) -> bool:
        """Whether a control token is spelled in the text."""
        return self._split.search(text) is not None

    def end_for(self, parts: Sequence[str | ControlToken]) -> int | None:
        """The id with which this model ends a message: the one its prompt uses, if it uses any."""
        for part in reversed(parts):
            if isinstance(part, ControlToken) and part.id in self._ends:
                return part.id
        return min(self._ends, default=None)


def spelled(parts: Sequence[str | ControlToken]) -> str:
    """A prompt as one text."""
    return "".join(part if isinstance(part, str) else part.text for part in parts)
