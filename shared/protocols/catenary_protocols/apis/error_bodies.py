"""An error as each API's clients expect it. The status is `kind_of(error.code).status`."""

import msgspec

from catenary_protocols.errors import ErrorInfo, kind_of
from catenary_protocols.wire import Wire

_encode = msgspec.json.Encoder().encode


class OpenAIError(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What went wrong. `param` is the path of the request field, `code` one of the mesh's error codes.

    `retry` is there, and false, when trying again could repeat a side effect: a stream has no header left to say so.
    """

    message: str
    type: str
    param: str | None
    code: str
    retry: bool = True


class OpenAIErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """Body of an error answer of the OpenAI APIs."""

    error: OpenAIError


class AnthropicError(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What went wrong. `retry` as in `OpenAIError`."""

    type: str
    message: str
    retry: bool = True


class AnthropicErrorBody(Wire, frozen=True, tag_field="type", tag="error"):
    """Body of an error answer of the Anthropic API."""

    error: AnthropicError
    request_id: str = ""


def openai_error(info: ErrorInfo, _request_id: str = "") -> bytes:
    """`{"error": {"message", "type", "param", "code"}}`, and `"retry": false` where it must not be tried again."""
    kind = kind_of(info.code)
    error = OpenAIError(
        message=info.message, type=kind.openai_type, param=info.field or None, code=info.code, retry=info.retry
    )
    return _encode(OpenAIErrorBody(error=error))


def anthropic_error(info: ErrorInfo, request_id: str = "") -> bytes:
    """`{"type": "error", "error": {"type", "message"}, "request_id"}`."""
    kind = kind_of(info.code)
    error = AnthropicError(type=kind.anthropic_type, message=_anthropic_words(info), retry=info.retry)
    return _encode(AnthropicErrorBody(error=error, request_id=request_id))


def _anthropic_words(info: ErrorInfo) -> str:
    """The message; of a prompt that is too long, in the words by which clients know to make it shorter."""
    if info.code != "context_length_exceeded" or not info.numbers:
        return info.message
    prompt, completion, context = (info.numbers[name] for name in ("prompt", "completion", "context"))
    if prompt >= context:  # the answer needs a token, too
        return f"prompt is too long: {prompt} tokens > {min(context, prompt - 1)} maximum"
    return (
        f"input length and `max_tokens` exceed context limit: {prompt} + {completion} > {context}, "
        "decrease input length or `max_tokens` and try again"
    )
