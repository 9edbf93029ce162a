"""A conversation to a prompt: render, encode, hash, check against the context."""

import json
import time
from dataclasses import dataclass
from typing import Literal

from catenary_protocols.conversation import Conversation, Sampling
from catenary_protocols.errors import RequestError
from catenary_tokenizers import PromptError, TemplateLimitError, block_hashes

from catenary_tokenizer_service.ingress.shape import chat_messages, chat_tools
from catenary_tokenizer_service.models import ServedModel

Thinking = Literal["none", "open", "closed"]
TOKEN_BYTES = 4


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt ready to be placed.

    Attributes:
        ids: little-endian u32.
        hashes: sequence hashes of its whole blocks, u64.
        thinking: what the template left behind for the parser.
        max_tokens: limit of generated tokens, at most what the context leaves.
        began, rendered, encoded: Unix seconds, for spans.
    """

    ids: bytes
    hashes: bytes
    thinking: Thinking
    max_tokens: int
    began: float
    rendered: float
    encoded: float

    @property
    def tokens(self) -> int:
        """Length."""
        return len(self.ids) // TOKEN_BYTES


def prepare(model: ServedModel, conversation: Conversation, sampling: Sampling, salt: str) -> Prompt:
    """The prompt of a request; raises `RequestError`."""
    began = time.time()
    text, ids, rendered = encode(model, conversation)
    encoded = time.time()
    tokens = len(ids) // TOKEN_BYTES
    limit = check_context(tokens, sampling.max_tokens, model.card.context)
    hashes = block_hashes(ids, model.card.block_size, salt=salt)
    return Prompt(ids, hashes, thinking_of(text, model.thinking_markers), limit, began, rendered, encoded)


def encode(model: ServedModel, conversation: Conversation) -> tuple[str, bytes, float]:
    """Rendered text, ids, and the Unix time at which rendering was done; raises `RequestError`."""
    options: dict[str, object] = json.loads(conversation.template) if conversation.template else {}
    if conversation.thinking is not None:
        options.setdefault("enable_thinking", conversation.thinking)
    try:
        rendered = model.tokenizer.render(chat_messages(conversation), chat_tools(conversation), now=None, **options)
    except (PromptError, TemplateLimitError) as error:
        raise RequestError(
            f"the model's chat template refuses this conversation: {error}", code="template_refused", field="messages"
        ) from error
    except TypeError as error:  # an option with the name of one of the renderer's own arguments
        raise RequestError(f"chat template options: {error}", field="chat_template_kwargs") from error
    done = time.time()
    return rendered.text, model.tokenizer.encode_prompt(rendered), done


def check_context(tokens: int, max_tokens: int | None, context: int) -> int:
    """The limit of generated tokens; raises `RequestError` when prompt and answer do not fit."""
    room = context - tokens
    wanted = max_tokens if max_tokens is not None else max(room, 1)
    if wanted <= room:
        return wanted
    field = "messages" if room < 1 else "max_tokens"
    raise RequestError(
        f"This model's maximum context length is {context} tokens. However, you requested {tokens + wanted} tokens "
        f"({tokens} in the messages, {wanted} in the completion). Please reduce the length of either one.",
        code="context_length_exceeded",
        field=field,
        numbers={"prompt": tokens, "completion": max_tokens or 0, "context": context},
    )


def thinking_of(prompt: str, markers: tuple[str, str] | None) -> Thinking:
    """Whether the template opened thinking, or wrote it as closed, at the prompt's end."""
    if markers is None:
        return "none"
    opener, closer = markers
    tail = prompt[-256:].rstrip()
    if tail.endswith(opener):
        return "open"
    if tail.endswith(closer) and tail[: -len(closer)].rstrip().endswith(opener):
        return "closed"
    return "none"
