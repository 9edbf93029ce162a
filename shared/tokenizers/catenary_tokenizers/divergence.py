"""Where and why a session's prompt is no extension of its last one: that is where its cached blocks end."""

from __future__ import annotations

import marshal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from xxhash import xxh3_64_intdigest

from catenary_tokenizers.ids import TOKEN_BYTES, common_tokens

__all__ = ["Cause", "Divergence", "PromptWatch", "SeenPrompt", "diverged", "seen_prompt"]

Cause = Literal["tools", "system", "message", "removed", "rendering"]
_OVERHEAD = 400  # bytes of an entry's objects beside its ids and digests


@dataclass(frozen=True, slots=True)
class SeenPrompt:
    """What is kept of a prompt to compare the next one with.

    Attributes:
        ids: its tokens, little-endian `u32`.
        tools: digest of the tools.
        messages: role and digest of each message.
        hashes: of its whole blocks, to hash of the next prompt only what is new (`blocks.extend_hashes`); may be empty.
        chain: what the hashes depend on beside the tokens.
    """

    ids: bytes
    tools: int
    messages: tuple[tuple[str, int], ...]
    hashes: bytes = b""
    chain: str = ""


@dataclass(frozen=True, slots=True)
class Divergence:
    """How a prompt left its session's last one.

    Attributes:
        cause: what changed: the `tools`, a `system` text, another `message`, messages were `removed` (a compaction, an
            edit of history), or only the `rendering` (a template that drops old reasoning, another template variable).
        message: place of the first message that differs; None for tools and rendering.
        role: that message's role, else empty.
        token: offset of the first token that differs.
        blocks_lost: whole blocks of the last prompt from there on.
    """

    cause: Cause
    message: int | None
    role: str
    token: int
    blocks_lost: int


def seen_prompt(
    ids: bytes, messages: Iterable[Mapping[str, object]], tools: Sequence[Mapping[str, object]]
) -> SeenPrompt:
    """Digest a conversation, of plain dictionaries and lists, and its prompt."""
    return SeenPrompt(
        ids, _digest(list(tools)), tuple((str(message["role"]), _digest(message)) for message in messages)
    )


def diverged(last: SeenPrompt, now: SeenPrompt, block_size: int) -> Divergence | None:
    """How `now` leaves `last`; None if it goes on from it."""
    if now.ids.startswith(last.ids):
        return None
    token = common_tokens(last.ids, now.ids)
    lost = len(last.ids) // TOKEN_BYTES // block_size - token // block_size
    if last.tools != now.tools:
        return Divergence("tools", None, "", token, lost)
    for place, (role, digest) in enumerate(last.messages):
        if place >= len(now.messages):
            return Divergence("removed", place, role, token, lost)
        if now.messages[place] != (role, digest):
            cause: Cause = "system" if role == "system" else "message"
            return Divergence("removed" if len(now.messages) < len(last.messages) else cause, place, role, token, lost)
    return Divergence("rendering", None, "", token, lost)


class PromptWatch:
    """The last prompt of each session, bounded in bytes, the session longest silent dropped first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._last: dict[str, SeenPrompt] = {}

    def last(self, session: str) -> SeenPrompt | None:
        """A session's last prompt, if it is kept."""
        return self._last.get(session)

    def observe(self, session: str, prompt: SeenPrompt, block_size: int) -> Divergence | None:
        """Keep a session's prompt and tell how it left the one before; None for a first prompt or an extension."""
        last = self._last.pop(session, None)
        if last is not None:
            self._bytes -= _size(last)
        self._last[session] = prompt
        self._bytes += _size(prompt)
        while self._bytes > self._max_bytes:
            self._bytes -= _size(self._last.pop(next(iter(self._last))))
        return diverged(last, prompt, block_size) if last is not None else None


def _digest(value: object) -> int:
    # Of all serialisers the quickest; its version 2 writes equal values as equal bytes.
    plain: Any = value
    return xxh3_64_intdigest(marshal.dumps(plain, 2))


def _size(prompt: SeenPrompt) -> int:
    return _OVERHEAD + len(prompt.ids) + len(prompt.hashes) + 120 * len(prompt.messages)
