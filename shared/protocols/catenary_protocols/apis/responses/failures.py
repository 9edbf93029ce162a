"""Why a response failed, in the words that its clients act on.

They send a request again after `server_error` and, when the message says how soon, after `rate_limit_exceeded`; they
shorten the conversation after `context_length_exceeded` and give up after `invalid_prompt`.
"""

import msgspec

from catenary_protocols.apis.error_bodies import openai_error
from catenary_protocols.apis.responses.answer import ResponseError
from catenary_protocols.errors import ErrorInfo, kind_of

_SAME = {"context_length_exceeded"}
_FIELDS = {"messages": "input", "max_tokens": "max_output_tokens", "logprobs": "top_logprobs"}
"""What the mesh calls fields of a request, and what this API does."""


def failure_of(info: ErrorInfo) -> ResponseError:
    """The error of a failed response."""
    message = info.message
    status = kind_of(info.code).status
    if info.code in _SAME:
        code = info.code
    elif not info.retry or (status < 500 and status != 429):
        code = "invalid_prompt"
    elif status in {429, 503}:
        code = "rate_limit_exceeded"
        message = f"{message}; try again in {max(info.retry_after, 0.5):g}s"
    else:
        code = "server_error"
    return ResponseError(code=code, message=message)


def refusal_of(info: ErrorInfo, request_id: str = "") -> bytes:
    """The body of an error answer, in which fields have the names of this API."""
    root = info.field.partition(".")[0].partition("[")[0]
    return openai_error(msgspec.structs.replace(info, field=_FIELDS.get(root, info.field)), request_id)
