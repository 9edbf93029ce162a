"""One model's tokenizer: render, encode, decode."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from catenary_tokenizers.chat import ChatTemplate
from catenary_tokenizers.cut import Cutter
from catenary_tokenizers.detokenise import Detokenizer, PieceTable
from catenary_tokenizers.encode import PlainEncoder
from catenary_tokenizers.ids import pack
from catenary_tokenizers.safety import Shield
from catenary_tokenizers.segments import CacheStats, SegmentCache
from catenary_tokenizers.shape import call_arguments
from catenary_tokenizers.splice import MarkedPrompt, assemble
from catenary_tokenizers.turn_memory import TurnMemory
from catenary_tokenizers.vocabulary import AddedToken

__all__ = ["ModelTokenizer", "Rendered", "Segment"]


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt between rendering and encoding.

    Attributes:
        parts: what the model reads, with the marks that keep content from becoming control tokens, cut at its control
            tokens: plain text at even places, control tokens at odd ones.
        clean: takes the marks out.
        calls: arguments of the conversation's calls, as they were given.
        answers: how many messages of the assistant's it holds.
    """

    parts: Sequence[str]
    clean: Callable[[str], str]
    calls: tuple[object, ...] = ()
    answers: int = 0

    @property
    def text(self) -> str:
        """What the model reads, control tokens spelled out."""
        return self.clean("".join(self.parts))

    @property
    def end(self) -> str:
        """The text's last words: its last three control tokens and what follows them."""
        return self.clean("".join(self.parts[-6:]))


@dataclass(frozen=True, slots=True)
class Segment:
    """What stands between two control tokens, to be encoded elsewhere: in another process that loaded the same model.

    Attributes:
        marked: the text with its marks.
        first: whether a prompt begins with it; some vocabularies encode that differently.
    """

    marked: str
    first: bool


class ModelTokenizer:
    """A loaded model directory; see `load`. Ids are little-endian `u32` bytes everywhere.

    Attributes:
        control_tokens: text to id of every token that can be a marker.
        eos_ids: ids that end a turn.
        begin: ids that start a text where they are asked for.
        context_length: most tokens of prompt and answer together; None if the directory does not say.
        template: the chat template.
        tool_template: the one for conversations with tools, where the model has its own.
        table: pieces for `Detokenizer`.
    """

    def __init__(
        self,
        *,
        encoders: tuple[PlainEncoder, PlainEncoder],
        controls: Sequence[AddedToken],
        cutter: Cutter,
        table: PieceTable,
        template: ChatTemplate,
        tool_template: ChatTemplate,
        shield: Shield,
        content_shield: Shield,
        eos_ids: frozenset[int],
        begin: bytes,
        context_length: int | None,
        cache_bytes: int,
    ) -> None:
        self.control_tokens: Mapping[str, int] = {token.text: token.id for token in controls}
        self.eos_ids = eos_ids
        self.begin = begin
        self.context_length = context_length
        self.template = template
        self.tool_template = tool_template
        self.table = table
        self._shield = shield
        self._content_shield = content_shield
        self._first, self._later = encoders
        self._same_start = self._first is self._later
        self._packed = {token.text: pack([token.id]) for token in controls}
        self._cutter = cutter
        self._cache = SegmentCache(cache_bytes)
        self._first_cache = self._cache if self._same_start else SegmentCache(cache_bytes // 8)

    @property
    def chat_template(self) -> str:
        """The template's source, `""` for a model without one."""
        return self.template.source

    @property
    def cache_stats(self) -> CacheStats:
        """Hits, misses and size of the segment cache."""
        return self._cache.stats

    def clear_cache(self) -> None:
        """Forget all segments and counts."""
        self._cache.clear()
        self._first_cache.clear()

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        tools: Sequence[Mapping[str, object]] = (),
        *,
        now: datetime | None = None,
        **kwargs: object,
    ) -> Rendered:
        """The prompt of a conversation.

        Args:
            messages: in Hugging Face's chat form: `role`, `content`, `reasoning_content`, `tool_calls`
                (`function.name`, `function.arguments` as object or JSON text), `tool_call_id`, `name`.
            tools: function tools with JSON schemas.
            now: the date, for templates that print it.
            kwargs: template variables (`enable_thinking`, …); `add_generation_prompt` is true unless given.

        Raises:
            PromptError: the template refuses the conversation.
            TemplateLimitError: it would not end in time.
        """
        template = self.tool_template if tools else self.template
        marked = template.render(messages, tools, self._content_shield, now, kwargs)
        return Rendered(
            parts=self._cutter.cut(marked),
            clean=self._shield.clean,
            calls=call_arguments(messages),
            answers=sum(message["role"] == "assistant" for message in messages),
        )

    def encode_prompt(self, rendered: Rendered, memory: TurnMemory | None = None, scope: bytes = b"") -> bytes:
        """Ids of a rendered prompt: control tokens only where the template wrote them.

        Args:
            rendered: from `render`.
            memory: answers whose generated ids take the place of their re-encoding.
            scope: who may share them; see `scope_of`.
        """
        ids = self._encode_parts(rendered.parts)
        if memory is None:
            return b"".join(ids)
        prompt = MarkedPrompt(
            parts=rendered.parts,
            ids=ids,
            encode=self._encode_text,
            clean=rendered.clean,
            escape=self._shield.escape,
            calls=rendered.calls,
            answers=rendered.answers,
        )
        return assemble(prompt, memory, scope)

    def spelled(self, text: str) -> Rendered:
        """A prompt that is written by hand: control tokens spelled in it become their ids."""
        return Rendered(self._cutter.cut(self._shield.escape(text)), self._shield.clean)

    def cold_segments(self, rendered: Rendered, longer_than: int) -> list[Segment]:
        """Segments of a prompt that would have to be encoded now and have more characters than this."""
        return [
            Segment(part, self._is_first(place))
            for place, part in enumerate(rendered.parts[0::2])
            if len(part) > longer_than and not self._cache_at(place).holds(part)
        ]

    def encode_segment(self, segment: Segment) -> bytes:
        """A segment's ids, which `keep_segment` takes. Keeps nothing itself."""
        return (self._encode_first if segment.first else self._encode_later)(segment.marked)

    def keep_segment(self, segment: Segment, ids: bytes) -> None:
        """Ids of a segment that the same model has encoded elsewhere: the next prompt finds it known."""
        (self._first_cache if segment.first else self._cache).keep(segment.marked, ids)

    def encode(self, text: str, *, special: bool, begin: bool = False) -> bytes:
        """Ids of a text.

        Args:
            text: any text.
            special: whether control tokens spelled in it become their ids.
            begin: whether the model's begin token comes first.
        """
        ids = self._encode(self._shield.escape(text) if special else self._shield.shield(text))
        return self.begin + ids if begin else ids

    def decode(self, ids: bytes) -> str:
        """All of `ids` as text, control tokens spelled out, broken bytes as U+FFFD."""
        return self.table.decode(ids)

    def detokenizer(self, prompt: bytes = b"") -> Detokenizer:
        """A fresh stream after `prompt` (its last four ids are enough)."""
        return Detokenizer(self.table, prompt)

    def _encode(self, marked: str) -> bytes:
        return b"".join(self._encode_parts(self._cutter.cut(marked)))

    def _encode_parts(self, parts: Sequence[str]) -> list[bytes]:
        """Ids of each part."""
        ids = [b""] * len(parts)
        ids[1::2] = map(self._packed.__getitem__, parts[1::2])
        ids[0::2] = self._cache.get_all(parts[0::2], self._encode_later)
        if not self._same_start and parts[0]:
            ids[0] = self._first_cache.get(parts[0], self._encode_first)
        return ids

    def _is_first(self, place: int) -> bool:
        return place == 0 and not self._same_start

    def _cache_at(self, place: int) -> SegmentCache:
        return self._first_cache if self._is_first(place) else self._cache

    def _encode_text(self, part: str) -> bytes:
        return self._cache.get(part, self._encode_later)

    def _encode_first(self, part: str) -> bytes:
        return self._first.encode(self._shield.clean(part))

    def _encode_later(self, part: str) -> bytes:
        return self._later.encode(self._shield.clean(part))
