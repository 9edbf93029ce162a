"""A conversation to a prompt: render, encode, hash, check against the context, guide the answer."""

import json
import time
from dataclasses import dataclass
from datetime import datetime

from catenary_protocols.bus.messages import TurnRequest
from catenary_protocols.conversation import Conversation
from catenary_protocols.errors import RequestError
from catenary_tokenizers import PromptError, TemplateLimitError, block_hashes, scope_of
from catenary_tokenizers.divergence import SeenPrompt, seen_prompt

from catenary_tokenizer_service.core.guide import Thinking, guide_of
from catenary_tokenizer_service.core.truncate import shortened
from catenary_tokenizer_service.ingress.images import images_of, salt_with
from catenary_tokenizer_service.ingress.shape import chat_messages, chat_tools
from catenary_tokenizer_service.models import ServedModel

TOKEN_BYTES = 4


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt ready to be placed.

    Attributes:
        ids: little-endian u32.
        hashes: sequence hashes of its whole blocks, u64.
        scope: who may share what was generated after it.
        seen: what to compare the session's next prompt with.
        thinking: what the template left behind for the parser.
        max_tokens: limit of generated tokens, at most what the context leaves.
        guide: what constrains the engine, or "".
        salt: keeps its blocks apart from others that are alike.
        images: URLs of what its image marks stand for.
        began, rendered, encoded: Unix seconds, for spans.
    """

    ids: bytes
    hashes: bytes
    scope: bytes
    seen: SeenPrompt
    thinking: Thinking
    max_tokens: int
    guide: str
    salt: str
    images: tuple[str, ...]
    began: float
    rendered: float
    encoded: float

    @property
    def tokens(self) -> int:
        """Length."""
        return len(self.ids) // TOKEN_BYTES


@dataclass(frozen=True, slots=True)
class Encoded:
    """A conversation as ids.

    Attributes:
        text: what the model reads.
        seen: what to compare the session's next prompt with.
        rendered_at: Unix seconds at which rendering was done.
    """

    text: str
    ids: bytes
    seen: SeenPrompt
    rendered_at: float

    @property
    def tokens(self) -> int:
        """Length."""
        return len(self.ids) // TOKEN_BYTES


def prepare(model: ServedModel, request: TurnRequest) -> Prompt:
    """The prompt of a request; raises `RequestError`."""
    began = time.time()
    conversation, wanted = request.conversation, request.sampling.max_tokens
    if request.sampling.logprobs is not None and not model.card.logprobs:
        raise RequestError("this model's engine tells no log probabilities", code="unsupported", field="logprobs")
    salt = salt_with(images_of(conversation, seen=model.card.images), request.salt)
    scope = scope_of(tenant=request.tenant, salt=salt, model=model.card.card, template=model.tokenizer.chat_template)
    one = encode(model, conversation, scope)
    if request.truncate and not fits_context(one.tokens, wanted, model.card.context):
        conversation = shortened(
            conversation, lambda shorter: fits_context(encode(model, shorter).tokens, wanted, model.card.context)
        )
        one = encode(model, conversation, scope)
    encoded = time.time()
    thinking = thinking_of(one.text, model.thinking_markers)
    return Prompt(
        ids=one.ids,
        hashes=block_hashes(one.ids, model.card.block_size, salt=salt),
        salt=salt,
        images=images_of(conversation, seen=model.card.images),
        scope=scope,
        seen=one.seen,
        thinking=thinking,
        max_tokens=check_context(one.tokens, wanted, model.card.context),
        guide=guide_of(model.card, conversation, request.answer_schema, thinking),
        began=began,
        rendered=one.rendered_at,
        encoded=encoded,
    )


def encode(model: ServedModel, conversation: Conversation, scope: bytes = b"") -> Encoded:
    """A conversation as ids, with what was generated under `scope` spliced in; raises `RequestError`."""
    if conversation.plain:
        return _given(model, conversation)
    options: dict[str, object] = json.loads(conversation.template) if conversation.template else {}
    if conversation.thinking is not None:
        options.setdefault("enable_thinking", conversation.thinking)
    images_of(conversation, seen=model.card.images)  # refuses what the model cannot take
    messages, tools = chat_messages(conversation), chat_tools(conversation)
    try:
        rendered = model.tokenizer.render(messages, tools, now=datetime.now().astimezone(), **options)
    except (PromptError, TemplateLimitError) as error:
        raise RequestError(
            f"the model's chat template refuses this conversation: {error}", code="template_refused", field="messages"
        ) from error
    except TypeError as error:  # an option with the name of one of the renderer's own arguments
        raise RequestError(f"chat template options: {error}", field="chat_template_kwargs") from error
    rendered_at = time.time()
    ids = model.tokenizer.encode_prompt(rendered, model.memory if scope else None, scope)
    return Encoded(rendered.text, ids, seen_prompt(ids, messages, tools), rendered_at)


def _given(model: ServedModel, conversation: Conversation) -> Encoded:
    """A prompt that is not rendered: as text, in which control tokens are spelled out, or as ids."""
    tokenizer = model.tokenizer
    ids = conversation.ids or tokenizer.encode(conversation.text, special=True, begin=True)
    text = conversation.text or tokenizer.decode(ids)
    return Encoded(text, ids, seen_prompt(ids, (), ()), time.time())


def fits_context(tokens: int, max_tokens: int | None, context: int) -> bool:
    """Whether a prompt leaves room for its answer, of one token at least."""
    return tokens + (max_tokens or 1) <= context


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
