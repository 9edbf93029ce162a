"""OpenAI Responses: `POST /v1/responses`, and what is told later of a response that was kept."""

from functools import partial

from catenary_protocols.apis.api import Api
from catenary_protocols.apis.responses.encoder import PREFIX, ResponsesEncoder
from catenary_protocols.apis.responses.failures import refusal_of
from catenary_protocols.apis.responses.items import page_of, with_ids
from catenary_protocols.apis.responses.read import ResponsesDraft, continued, read_responses
from catenary_protocols.apis.responses.retelling import told_again
from catenary_protocols.apis.sealed import Sealed

__all__ = [
    "PATH",
    "PREFIX",
    "ResponsesDraft",
    "ResponsesEncoder",
    "continued",
    "page_of",
    "responses_api",
    "told_again",
    "with_ids",
]

PATH = "/v1/responses"


def responses_api(sealed: Sealed) -> Api[ResponsesDraft]:
    """The API. `sealed` opens what clients bring back of the model's thoughts, and seals new ones."""
    return Api(
        name="responses",
        path=PATH,
        read=partial(read_responses, sealed=sealed),
        encoder=ResponsesEncoder,
        error=refusal_of,
        in_stream=frozenset({"context_length_exceeded"}),
    )
