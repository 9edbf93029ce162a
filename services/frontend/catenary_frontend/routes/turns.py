"""A turn over HTTP, for any API: read, open, and let the mesh's events write the answer."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

import structlog
from catenary_protocols.apis.api import Api, Draft
from catenary_protocols.apis.reading import wrong
from catenary_protocols.bus.messages import ModelCard
from catenary_protocols.errors import CapacityError, CatenaryError
from msgspec import structs
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope
from starlette.types import Send as AnySend

from catenary_frontend.auth import Caller
from catenary_frontend.body import read_body
from catenary_frontend.edge import Edge, request_id_of
from catenary_frontend.exchange import Exchange
from catenary_frontend.metrics import REQUESTS
from catenary_frontend.numbered import wants_to_resume
from catenary_frontend.opening import Asked, D, Memory, Opening

log = structlog.get_logger()
Endpoint = Callable[[Request], Awaitable[Response]]


def turn_endpoint(api: Api[D], edge: Edge, memory: Memory[D] | None = None) -> Endpoint:
    """The endpoint of one API."""
    opening = Opening(api, edge, memory)

    async def endpoint(request: Request) -> Response:
        try:
            caller = edge.keys.working(request.headers)
            body = await read_body(request, edge.settings.max_body_bytes)
            began = time.perf_counter()
            draft = api.read(body)
            if memory is not None:
                draft = await memory.recall(draft, caller.tenant)
            card = check(draft, edge, caller)
            draft = replace(_fitted(draft, card), hints=caller.hints(draft), run_tools=caller.tools_to_run(draft))
            lease = caller.begin(draft.choices)
        except CatenaryError as error:
            REQUESTS.labels(api=api.name, model="", code=error.code).inc()
            log.info("turn.refused", request=request_id_of(request.scope), code=error.code, field=error.field)
            raise
        asked = Asked(draft, card.model, body, caller, began, lease, resumable=wants_to_resume(request.headers))
        return TurnResponse(lambda scope: opening.fresh(request, asked, scope))

    return endpoint


def find(model: str, edge: Edge, caller: Caller) -> ModelCard:
    """The card of a model that the caller may use; raises `RequestError` or `CapacityError`."""
    caller.check(model)
    return edge.catalog.find(model, caller.may_use)


def check(draft: Draft, edge: Edge, caller: Caller) -> ModelCard:
    """The model's card; raises what keeps this request from being a turn: `RequestError` or `CapacityError`."""
    card = find(draft.model, edge, caller)
    if edge.health.stopping:
        raise CapacityError("this frontend is shutting down", code="draining", retry_after=1)
    image = None if card.images else next(draft.conversation.images(), None)
    if image is not None:
        raise wrong(image.field, f"model {card.model!r} cannot see images", code="unsupported")
    return card


def _fitted(draft: D, card: ModelCard) -> D:
    """The draft without a limit that its model could not reach, from a client that knows nothing of the model."""
    limit = draft.sampling.max_tokens
    if not draft.clamp or limit is None or limit <= card.context:
        return draft
    return replace(draft, sampling=structs.replace(draft.sampling, max_tokens=None))


class TurnResponse(Response):
    """Opens an exchange when the server asks for the answer, and stays until the connection is over."""

    def __init__(self, begin: Callable[[Scope], Exchange]) -> None:
        self.background = None
        self.status_code = 200
        self._begin = begin

    async def __call__(self, scope: Scope, receive: Receive, send: AnySend) -> None:  # noqa: ARG002  # see `raw_send`
        """Answer. Events are written from the bus callback; this coroutine only notices the end."""
        exchange = self._begin(scope)
        try:
            while (await receive())["type"] != "http.disconnect":
                continue
        finally:
            exchange.left()
