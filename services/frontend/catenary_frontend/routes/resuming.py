"""`GET /v1/turns/{id}/events`: a resumable stream of any API, from behind `Last-Event-ID` on, at any frontend."""

import time
from dataclasses import dataclass
from typing import Any

from catenary_protocols.apis.api import Api
from catenary_protocols.errors import RequestError
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from catenary_frontend.edge import Edge
from catenary_frontend.numbered import Numbered, last_event
from catenary_frontend.openapi import TURN_EVENTS_OPERATION
from catenary_frontend.opening import Asked, Memory, Opening, Running
from catenary_frontend.routes.turns import Endpoint, TurnResponse


@dataclass(frozen=True, slots=True)
class Resumable:
    """An API whose streams can be resumed here."""

    api: Api[Any]
    memory: Memory[Any] | None = None


def add_resuming(api: FastAPI, edge: Edge, *apis: Resumable) -> None:
    """The path."""
    path = "/v1/turns/{turn_id}/events"
    api.add_api_route(path, _events(edge, apis), methods=["GET"], openapi_extra=TURN_EVENTS_OPERATION)


def _events(edge: Edge, apis: tuple[Resumable, ...]) -> Endpoint:
    known = {one.api.name: (one, Opening(one.api, edge, one.memory)) for one in apis}

    async def endpoint(request: Request) -> Response:
        began = time.perf_counter()
        caller = edge.keys.working(request.headers)
        after = last_event(request.headers)
        turn_id = request.path_params["turn_id"]
        found = await edge.turns.find(turn_id)
        turn = found.request if found else None
        if found is None or turn is None or not turn.note or turn.tenant != caller.tenant or turn.api not in known:
            raise RequestError(f"no stream of turn {turn_id!r} can be resumed here", code="not_found")
        one, opening = known[turn.api]
        draft = one.api.read(turn.note)
        if one.memory is not None:
            draft = await one.memory.recall(draft, caller.tenant)
        encoder = Numbered(one.api.encoder(draft, turn.turn.turn_id, int(turn.arrived_at)), after)
        asked = Asked(draft, turn.model, turn.note, caller, began, caller.join(), resumable=True)
        running = Running(turn, found.tokenizer, encoder)
        return TurnResponse(lambda scope: opening.joined(request, asked, scope, running))

    return endpoint
