"""Responses: made, kept, told again. Any frontend answers for a response that is kept."""

import re
import time

from catenary_protocols.apis.api import Api
from catenary_protocols.apis.reading import wrong
from catenary_protocols.apis.responses import (
    PATH,
    PREFIX,
    ResponsesDraft,
    ResponsesEncoder,
    continued,
    page_of,
    responses_api,
    told_again,
    with_ids,
)
from catenary_protocols.apis.responses.answer import DeletedResponse, InputTokens
from catenary_protocols.apis.session import session_of
from catenary_protocols.bus.messages import TurnRequest
from catenary_protocols.errors import RequestError
from fastapi import FastAPI
from msgspec.json import encode
from starlette.requests import Request
from starlette.responses import Response

from catenary_frontend.auth import Caller
from catenary_frontend.body import read_body
from catenary_frontend.counting import count_tokens
from catenary_frontend.edge import Edge
from catenary_frontend.exchange import Keep
from catenary_frontend.openapi import (
    DELETE_RESPONSE_OPERATION,
    INPUT_ITEMS_OPERATION,
    INPUT_TOKENS_OPERATION,
    RESPONSE_OPERATION,
    RESPONSES_OPERATION,
)
from catenary_frontend.opening import Asked, Opening, Running
from catenary_frontend.routes.turns import Endpoint, TurnResponse, check, turn_endpoint

_ONE = PATH + "/{response_id}"
_LONGEST_PAGE = 100
"""Items."""
_LAST_EVENT = 10**9
_NUMBER = re.compile(r"-?[0-9]{1,10}")


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
        stored = self._edge.stored

        async def put(body: bytes) -> None:
            await stored.put(tenant, PREFIX + turn_id, with_ids(draft.items, turn_id), body)

        return Keep(put, self._edge.spawn)


def add_responses(api: FastAPI, edge: Edge) -> None:
    """All paths of the API."""
    responses = responses_api(edge.sealer)
    for path, endpoint, method, operation in (
        (PATH, turn_endpoint(responses, edge, Kept(edge)), "POST", RESPONSES_OPERATION),
        (f"{PATH}/input_tokens", _count(responses, edge), "POST", INPUT_TOKENS_OPERATION),
        (_ONE, _get(responses, edge), "GET", RESPONSE_OPERATION),
        (_ONE, _delete(edge), "DELETE", DELETE_RESPONSE_OPERATION),
        (f"{_ONE}/input_items", _input_items(edge), "GET", INPUT_ITEMS_OPERATION),
    ):
        api.add_api_route(path, endpoint, methods=[method], openapi_extra=operation)


def _count(api: Api[ResponsesDraft], edge: Edge) -> Endpoint:
    memory = Kept(edge)

    async def endpoint(request: Request) -> Response:
        caller = edge.keys.working(request.headers)
        draft = await memory.recall(api.read(await read_body(request, edge.settings.max_body_bytes)), caller.tenant)
        session = session_of(draft, caller.tenant, request.headers)
        tokens = await count_tokens(edge, check(draft, edge, caller).model, draft.conversation, session)
        return _json(encode(InputTokens(input_tokens=tokens)))

    return endpoint


def _get(api: Api[ResponsesDraft], edge: Edge) -> Endpoint:
    memory = Kept(edge)
    opening = Opening(api, edge, memory)

    async def draft_of(turn: TurnRequest) -> ResponsesDraft:
        return await memory.recall(api.read(turn.note), turn.tenant)

    async def stream(request: Request, caller: Caller, id_: str) -> Response:
        began = time.perf_counter()
        after = _number(request, "starting_after", default=-1, least=-1, most=_LAST_EVENT)
        live = await _live(edge, caller.tenant, id_)
        if live is None:
            record = await edge.stored.get(caller.tenant, id_)
            return Response(told_again(bytes(record.response), after), media_type="text/event-stream")
        turn, owner = live
        draft = await draft_of(turn)
        encoder = ResponsesEncoder(draft, turn.turn.turn_id, int(turn.arrived_at), after=after)
        asked = Asked(draft, turn.model, turn.note, caller, began, caller.join())
        running = Running(turn, owner, encoder)
        return TurnResponse(lambda scope: opening.joined(request, asked, scope, running))

    async def endpoint(request: Request) -> Response:
        caller = edge.keys.caller(request.headers)
        id_ = request.path_params["response_id"]
        if request.query_params.get("stream") == "true":
            return await stream(request, caller, id_)
        try:
            return _json(bytes((await edge.stored.get(caller.tenant, id_)).response))
        except RequestError:
            live = await _live(edge, caller.tenant, id_)
            if live is None:
                raise
        turn, _ = live
        return _json(ResponsesEncoder(await draft_of(turn), turn.turn.turn_id, int(turn.arrived_at)).body())

    return endpoint


async def _live(edge: Edge, tenant: str, id_: str) -> tuple[TurnRequest, str] | None:
    """A response's turn and who has its log, if someone has, and if it is this tenant's."""
    found = await edge.turns.find(id_.removeprefix(PREFIX)) if id_.startswith(PREFIX) else None
    if found is None or found.request is None or not found.request.note or found.request.tenant != tenant:
        return None
    return found.request, found.tokenizer


def _number(request: Request, name: str, *, default: int, least: int, most: int) -> int:
    text = request.query_params.get(name, str(default))
    number = int(text) if _NUMBER.fullmatch(text) else most + 1
    if not least <= number <= most:
        raise wrong(name, f"must be a number from {least} to {most}")
    return number


def _delete(edge: Edge) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        tenant = edge.keys.caller(request.headers).tenant
        id_ = request.path_params["response_id"]
        await edge.stored.delete(tenant, id_)
        return _json(encode(DeletedResponse(id=id_)))

    return endpoint


def _input_items(edge: Edge) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        tenant = edge.keys.caller(request.headers).tenant
        query = request.query_params
        order = query.get("order", "desc")
        if order not in {"asc", "desc"}:
            raise wrong("order", "must be asc or desc")
        limit = _number(request, "limit", default=20, least=1, most=_LONGEST_PAGE)
        record = await edge.stored.get(tenant, request.path_params["response_id"])
        items = record.items if order == "asc" else record.items[::-1]
        return _json(encode(page_of(items, query.get("after", ""), limit)))

    return endpoint


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")
