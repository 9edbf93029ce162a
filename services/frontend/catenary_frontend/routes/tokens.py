"""`POST /tokenize` and `POST /detokenize`."""

from catenary_protocols.apis.session import session_of
from catenary_protocols.apis.tokens import detokenize_answer, read_detokenize, read_tokenize, tokenize_answer
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from catenary_frontend.body import read_body
from catenary_frontend.counting import detokenize, tokenize
from catenary_frontend.edge import Edge
from catenary_frontend.openapi import DETOKENIZE_OPERATION, TOKENIZE_OPERATION
from catenary_frontend.routes.turns import Endpoint, find


def add_tokens(api: FastAPI, edge: Edge) -> None:
    """Both paths."""
    for path, endpoint, operation in (
        ("/tokenize", _tokenize(edge), TOKENIZE_OPERATION),
        ("/detokenize", _detokenize(edge), DETOKENIZE_OPERATION),
    ):
        api.add_api_route(path, endpoint, methods=["POST"], openapi_extra=operation)


def _tokenize(edge: Edge) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        caller = edge.keys.working(request.headers)
        draft = read_tokenize(await read_body(request, edge.settings.max_body_bytes))
        card = find(draft.model, edge, caller)
        session = session_of(draft, caller.tenant, request.headers)
        ids = await tokenize(edge, card.model, draft.conversation, session, caller.tenant)
        return Response(tokenize_answer(ids, card.context), media_type="application/json")

    return endpoint


def _detokenize(edge: Edge) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        caller = edge.keys.working(request.headers)
        model, ids = read_detokenize(await read_body(request, edge.settings.max_body_bytes))
        text = await detokenize(edge, find(model, edge, caller).model, ids)
        return Response(detokenize_answer(text), media_type="application/json")

    return endpoint
