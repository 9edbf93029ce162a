"""`POST /v1/messages` and `POST /v1/messages/count_tokens`."""

import msgspec
from catenary_protocols.apis.messages import messages_api, read_count
from catenary_protocols.apis.messages.answer import TokenCountAnswer
from catenary_protocols.apis.session import session_of
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from catenary_frontend.body import read_body
from catenary_frontend.counting import count_tokens
from catenary_frontend.edge import Edge
from catenary_frontend.openapi import COUNT_OPERATION, MESSAGES_OPERATION
from catenary_frontend.routes.turns import Endpoint, check, turn_endpoint


def add_messages(api: FastAPI, edge: Edge) -> None:
    """All paths of the API."""
    messages = messages_api(edge.sealer)
    for path, endpoint, operation in (
        (messages.path, turn_endpoint(messages, edge), MESSAGES_OPERATION),
        (f"{messages.path}/count_tokens", _count(edge), COUNT_OPERATION),
    ):
        api.add_api_route(path, endpoint, methods=["POST"], openapi_extra=operation)


def _count(edge: Edge) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        caller = edge.keys.working(request.headers)
        draft = read_count(edge.sealer, await read_body(request, edge.settings.max_body_bytes))
        model = check(draft, edge, caller).model
        session = session_of(draft, caller.tenant, request.headers)
        tokens = await count_tokens(edge, model, draft.conversation, session)
        return Response(msgspec.json.encode(TokenCountAnswer(input_tokens=tokens)), media_type="application/json")

    return endpoint
