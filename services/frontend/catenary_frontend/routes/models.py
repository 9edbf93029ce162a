"""`GET /v1/models` and `GET /v1/models/{id}`, in the shape that the caller's API has."""

from catenary_protocols.apis.models import anthropic_model, anthropic_models, openai_model, openai_models
from catenary_protocols.errors import RequestError
from starlette.requests import Request
from starlette.responses import Response

from catenary_frontend.edge import Edge
from catenary_frontend.routes.turns import Endpoint


def list_endpoint(edge: Edge) -> Endpoint:
    """All models."""

    async def endpoint(request: Request) -> Response:
        caller = edge.keys.caller(request.headers)
        show = anthropic_models if "anthropic-version" in request.headers else openai_models
        return Response(show(edge.catalog.cards(caller.may_use)), media_type="application/json")

    return endpoint


def one_endpoint(edge: Edge) -> Endpoint:
    """One model; ids may hold slashes."""

    async def endpoint(request: Request) -> Response:
        caller = edge.keys.caller(request.headers)
        name = request.path_params["model"]
        card = next((card for card in edge.catalog.cards(caller.may_use) if card.model == name), None)
        if card is None:
            raise RequestError(f"no model {name!r} here", code="model_not_found", field="model")
        show = anthropic_model if "anthropic-version" in request.headers else openai_model
        return Response(show(card), media_type="application/json")

    return endpoint
