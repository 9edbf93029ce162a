"""What all endpoints share, and the two things of a request that travel in its ASGI scope."""

import re
import secrets
from dataclasses import dataclass

from catenary_runtime.bus import Bus
from catenary_runtime.health import Health
from catenary_runtime.presence import Presence
from starlette.datastructures import Headers
from starlette.types import Scope

from catenary_frontend.auth import Keys
from catenary_frontend.catalog import Catalog
from catenary_frontend.outlet import Send, Spawn
from catenary_frontend.sealing import Sealer
from catenary_frontend.settings import FrontendSettings
from catenary_frontend.stored import StoredResponses
from catenary_frontend.turns import OpenTurns

REQUEST_ID_HEADERS = (b"x-request-id", b"request-id")
"""OpenAI's name for it, and Anthropic's."""
_RAW_SEND = "catenary.send"
_REQUEST_ID = "catenary.request_id"
_GOOD_ID = re.compile(r"[!-~]{1,128}")


@dataclass(frozen=True, slots=True)
class Edge:
    """The parts of this service that answer HTTP requests."""

    settings: FrontendSettings
    instance: str
    bus: Bus
    presence: Presence
    health: Health
    turns: OpenTurns
    catalog: Catalog
    keys: Keys
    sealer: Sealer
    stored: StoredResponses
    spawn: Spawn


def new_request_id() -> str:
    """An id for a request that has none."""
    return f"req_{secrets.token_hex(12)}"


def mark(scope: Scope, send: Send) -> str:
    """Put the server's own `send` and the request's id into its scope; returns the id."""
    said = Headers(scope=scope).get("x-request-id", "")
    scope[_RAW_SEND] = send
    scope[_REQUEST_ID] = said if _GOOD_ID.fullmatch(said) else new_request_id()
    return request_id_of(scope)


def raw_send(scope: Scope) -> Send:
    """The server's own `send`: the framework's wrappers would cost every token."""
    send: Send = scope[_RAW_SEND]
    return send


def request_id_of(scope: Scope) -> str:
    """The id that the client gave the request, or ours."""
    return str(scope[_REQUEST_ID])
