"""A conversation to a prompt: render, encode, hash, check against the context, guide the answer."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from catenary_protocols.bus.messages import CountTokens, TurnRequest
from catenary_protocols.conversation import Conversation
from catenary_protocols.errors import RequestError
from catenary_tokenizers import (
    PromptError,
    Rendered,
    TemplateLimitError,
    block_hashes,
    extend_hashes,
    images_by_block,
    scope_of,
    unpack,
)
from catenary_tokenizers.divergence import SeenPrompt, seen_prompt

from catenary_tokenizer_service.core.guide import Thinking, guide_of
from catenary_tokenizer_service.core.shape import chat_messages, chat_tools, template_options
from catenary_tokenizer_service.core.truncate import shortened
from catenary_tokenizer_service.ingress.images import images_of, places_of
from catenary_tokenizer_service.models import ServedModel

TOKEN_BYTES = 4
LONG_SEGMENT = 64 << 10
"""Characters; shorter ones are encoded within a few milliseconds, sooner than another process answers."""


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
        image_at: where among the tokens these marks are.
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
    image_at: tuple[int, ...]
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
        end: of the text that the model reads.
        seen: what to compare the session's next prompt with.
        rendered_at: Unix seconds at which rendering was done.
        images: URLs of what its image marks stand for.
    """

    end: str
    ids: bytes
    seen: SeenPrompt
    rendered_at: float
    images: tuple[str, ...] = ()

    @property
    def tokens(self) -> int:
        """Length."""
        return len(self.ids) // TOKEN_BYTES


async def prepare(model: ServedModel, request: TurnRequest, last: SeenPrompt | None = None) -> Prompt:
    """The prompt of a request; `last` is its session's last one, if known. Raises `RequestError`."""
    began = time.time()
    conversation, wanted = whole(model, request.conversation, request), request.sampling.max_tokens
    if request.sampling.logprobs is not None and not model.card.logprobs:
        raise RequestError("this model's engine tells no log probabilities", code="unsupported", field="logprobs")
    check_known(model, request.sampling.stop_token_ids, "stop_token_ids")
    scope = scope_of(
        tenant=request.tenant, salt=request.salt, model=model.card.card, template=model.tokenizer.chat_template
    )
    one = await encode(model, conversation, scope)
    if request.truncate and not fits_context(one.tokens, wanted, model.card.context):
        conversation = await _shortened(model, conversation, wanted)
        one = await encode(model, conversation, scope)
    encoded = time.time()
    image_at = places_of(one.images, one.ids, model.tokenizer.control_tokens)
    if one.images:
        hashes, seen = hashes_of(one.ids, model.card.block_size, request.salt, one.images, image_at), one.seen
    else:
        chain = f"{model.card.block_size} {request.salt}"
        known = (last.ids, last.hashes) if last is not None and last.chain == chain else (b"", b"")
        hashes = extend_hashes(*known, one.ids, model.card.block_size, salt=request.salt)
        seen = replace(one.seen, hashes=hashes, chain=chain)
    thinking = thinking_of(one.end, model.thinking_markers)
    return Prompt(
        ids=one.ids,
        hashes=hashes,
        salt=request.salt,
        images=one.images,
        image_at=image_at,
        scope=scope,
        seen=seen,
        thinking=thinking,
        max_tokens=check_context(one.tokens, wanted, model.card.context),
        guide=guide_of(model.card, conversation, request.answer_schema, thinking),
        began=began,
        rendered=one.rendered_at,
        encoded=encoded,
    )


def whole(model: ServedModel, conversation: Conversation, of: TurnRequest | CountTokens) -> Conversation:
    """A conversation of the session that `of` is in, with the thoughts that its client left out."""
    return model.thoughts.restored(conversation, of.tenant, of.session)


async def encode(model: ServedModel, conversation: Conversation, scope: bytes = b"") -> Encoded:
    """A conversation as ids, with what was generated under `scope` spliced in; raises `RequestError`."""
    if conversation.plain:
        return await _given(model, conversation)
    images = images_of(conversation, seen=model.card.images)
    try:
        options = template_options(conversation)
        messages, tools = chat_messages(conversation, model.stabiliser), chat_tools(conversation)
        rendered = await _rendered(
            model, partial(model.tokenizer.render, messages, tools, now=datetime.now().astimezone(), **options)
        )
    except RecursionError as error:
        raise RequestError("messages, tools or template options are nested too deeply", field="messages") from error
    except (PromptError, TemplateLimitError) as error:
        raise RequestError(
            f"the model's chat template refuses this conversation: {error}", code="template_refused", field="messages"
        ) from error
    except TypeError as error:  # an option with the name of one of the renderer's own arguments
        raise RequestError(f"chat template options: {error}", field="chat_template_kwargs") from error
    rendered_at = time.time()
    await _warm(model, rendered)
    ids = model.tokenizer.encode_prompt(rendered, model.memory if scope else None, scope)
    return Encoded(rendered.end, ids, seen_prompt(ids, messages, tools), rendered_at, images)


async def _given(model: ServedModel, conversation: Conversation) -> Encoded:
    """A prompt that is not rendered: as text, in which control tokens are spelled out, or as ids."""
    tokenizer, ids, text = model.tokenizer, conversation.ids, conversation.text
    if ids:
        check_known(model, unpack(ids), "prompt")
        text = text or tokenizer.decode(ids)
    else:
        rendered = tokenizer.spelled(text)
        await _warm(model, rendered)
        ids = tokenizer.begin + tokenizer.encode_prompt(rendered)
    return Encoded(text, ids, seen_prompt(ids, (), ()), time.time())


def check_known(model: ServedModel, ids: Iterable[int], field: str) -> None:
    """An id past the vocabulary is not looked up on a GPU: there it could be the end of the engine."""
    last = len(model.tokenizer.table.pieces) - 1
    highest = max(ids, default=0)
    if highest > last:
        message = f"`{field}`: {highest} is no token of this model; its last is {last}"
        raise RequestError(message, code="invalid_value", field=field)


async def _rendered(model: ServedModel, render: Callable[[], Rendered]) -> Rendered:
    """A prompt; beside the loop where its template has no bounds of its own."""
    if model.needs_process and model.helpers is not None:
        return await model.helpers.in_turn(render)
    return render()


async def _warm(model: ServedModel, rendered: Rendered) -> None:
    """Have the long new segments encoded beside the loop, so that other turns' tokens do not wait for them."""
    if model.helpers is None:
        return
    for segment in model.tokenizer.cold_segments(rendered, LONG_SEGMENT):
        model.tokenizer.keep_segment(segment, await model.helpers.encode(model.directory, segment))


async def _shortened(model: ServedModel, conversation: Conversation, wanted: int | None) -> Conversation:
    """The conversation with as few messages less as it takes to fit the context."""
    tries = shortened(conversation)
    try:
        shorter = next(tries)
        while True:
            tokens = (await encode(model, shorter)).tokens
            shorter = tries.send(fits_context(tokens, wanted, model.card.context))
    except StopIteration as end:
        found: Conversation = end.value
        return found


def hashes_of(ids: bytes, block_size: int, salt: str, images: tuple[str, ...], image_at: tuple[int, ...]) -> bytes:
    """Sequence hashes of the whole blocks: other images make other blocks, from the first one on that differs."""
    return block_hashes(ids, block_size, salt=salt, images=images_by_block(images, image_at, block_size))


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
