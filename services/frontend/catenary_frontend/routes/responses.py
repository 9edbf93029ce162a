"""Responses: made, kept, told again. Any frontend answers for a response that is kept."""

from catenary_protocols.apis.reading import wrong
from catenary_protocols.apis.responses import PATH, PREFIX, ResponsesDraft, continued, page_of, responses_api, with_ids
from catenary_protocols.apis.responses.answer import DeletedResponse
from fastapi import FastAPI
from msgspec.json import encode
from starlette.requests import Request
from starlette.responses import Response

from catenary_frontend.edge import Edge
from catenary_frontend.exchange import Keep
from catenary_frontend.openapi import (
    DELETE_RESPONSE_OPERATION,
    INPUT_ITEMS_OPERATION,
    RESPONSE_OPERATION,
    RESPONSES_OPERATION,
)
from catenary_frontend.routes.turns import Endpoint, turn_endpoint

_ONE = PATH + "/{response_id}"
_LONGEST_PAGE = 100
"""Items."""


class Kept:
    """`turns.Memory` of Responses."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    async def recall(self, draft: ResponsesDraft, tenant: str) -> ResponsesDraft:
        """The draft with the conversation that it goes on with."""
        previous = draft.request.previous_response_id
        if not previous:
            return draft
        record = await self._edge.stored.get(tenant, previous, field="previous_response_id")
        return continued(draft, (*record.items, *record.output))

    def keep(self, draft: ResponsesDraft, tenant: str, turn_id: str) -> Keep | None:
        """Into the bucket, unless the client wants it nowhere."""
        if not draft.store:
            return None
        items = with_ids(draft.items, turn_id)
        return Keep(lambda body: self._edge.stored.put(tenant, PREFIX + turn_id, items, body), self._edge.spawn)


def add_responses(api: FastAPI, edge: Edge) -> None:
    """All paths of the API."""
    responses = responses_api(edge.sealer)
    for path, endpoint, method, operation in (
        (PATH, turn_endpoint(responses, edge, Kept(edge)), "POST", RESPONSES_OPERATION),
        (_ONE, _get(edge), "GET", RESPONSE_OPERATION),
        (_ONE, _delete(edge), "DELETE", DELETE_RESPONSE_OPERATION),
        (f"{_ONE}/input_items", _input_items(edge), "GET", INPUT_ITEMS_OPERATION),
    ):
        api.add_api_route(path, endpoint, methods=[method], openapi_extra=operation)


def _get(edge: Edge) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        tenant = edge.keys.tenant_of(request.headers)
        record = await edge.stored.get(tenant, request.path_params["response_id"])
        return _json(bytes(record.response))

    return endpoint


def _delete(edge: Edge) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        tenant = edge.keys.tenant_of(request.headers)
        id_ = request.path_params["response_id"]
        await edge.stored.delete(tenant, id_)
        return _json(encode(DeletedResponse(id=id_)))

    return endpoint


def _input_items(edge: Edge) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        tenant = edge.keys.tenant_of(request.headers)
        query = request.query_params
        order, limit = query.get("order", "desc"), query.get("limit", "20")
        if order not in {"asc", "desc"}:
            raise wrong("order", "must be asc or desc")
        if not limit.isdecimal() or not 1 <= int(limit) <= _LONGEST_PAGE:
            raise wrong("limit", f"must be a number from 1 to {_LONGEST_PAGE}")
        record = await edge.stored.get(tenant, request.path_params["response_id"])
        items = record.items if order == "asc" else record.items[::-1]
        return _json(encode(page_of(items, query.get("after", ""), int(limit))))

    return endpoint


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")
