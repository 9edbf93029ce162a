"""The ASGI app: probes, a request id on every answer, and the APIs' routes."""

from collections.abc import Awaitable, Callable
from typing import Any

from catenary_protocols.apis.chat import CHAT
from catenary_protocols.apis.completions import COMPLETIONS
from catenary_protocols.apis.messages import messages_api
from catenary_protocols.apis.responses import responses_api
from catenary_runtime.health import PATHS, respond
from fastapi import FastAPI
from starlette.types import Message, Receive, Scope, Send

from catenary_frontend.edge import REQUEST_ID_HEADERS, Edge, mark
from catenary_frontend.errors import HANDLERS
from catenary_frontend.openapi import (
    CHAT_OPERATION,
    COMPLETIONS_OPERATION,
    MODEL_OPERATION,
    MODELS_OPERATION,
    document,
)
from catenary_frontend.routes.messages import add_messages
from catenary_frontend.routes.models import list_endpoint, one_endpoint
from catenary_frontend.routes.reference import add_reference
from catenary_frontend.routes.responses import Kept, add_responses
from catenary_frontend.routes.resuming import Resumable, add_resuming
from catenary_frontend.routes.tokens import add_tokens
from catenary_frontend.routes.turns import turn_endpoint

App = Callable[[Scope, Receive, Send], Awaitable[None]]


def make_app(edge: Edge, version: str) -> App:
    """The app of one frontend."""
    api = FastAPI(
        title="Catenary",
        version=version,
        exception_handlers=dict[Any, Any](HANDLERS),
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # a redirect would be no answer of any of the APIs
    )
    api.add_api_route(CHAT.path, turn_endpoint(CHAT, edge), methods=["POST"], openapi_extra=CHAT_OPERATION)
    api.add_api_route(
        COMPLETIONS.path, turn_endpoint(COMPLETIONS, edge), methods=["POST"], openapi_extra=COMPLETIONS_OPERATION
    )
    add_responses(api, edge)
    add_messages(api, edge)
    add_tokens(api, edge)
    add_resuming(
        api,
        edge,
        Resumable(CHAT),
        Resumable(COMPLETIONS),
        Resumable(messages_api(edge.sealer)),
        Resumable(responses_api(edge.sealer), Kept(edge)),
    )
    api.add_api_route("/v1/models", list_endpoint(edge), methods=["GET"], openapi_extra=MODELS_OPERATION)
    api.add_api_route("/v1/models/{model:path}", one_endpoint(edge), methods=["GET"], openapi_extra=MODEL_OPERATION)
    document(api)
    add_reference(api)

    # Metrics tell of every tenant: where there are keys, they are on the admin port alone.
    probes = PATHS - {"/metrics"} if edge.keys else PATHS

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if scope["path"] in probes:
            await respond(edge.health, scope["path"], send)
            return
        if scope["method"] == "HEAD":  # answered as GET; the server, whose scope stays as it is, sends no body
            scope = {**scope, "method": "GET"}
        request_id = mark(scope, send).encode()

        async def stamped(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *((name, request_id) for name in REQUEST_ID_HEADERS)]
            await send(message)

        await api(scope, receive, stamped)

    return app
