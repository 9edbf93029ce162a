"""The router's admin port: what every service has, and `/placements/<turn>`, why a turn runs where it does."""

from collections.abc import Callable
from typing import Any

import msgspec
from catenary_runtime.health import Receive, Send

from catenary_router.core.history import Decision

PATH = "/placements/"


def with_placements(common: Any, of: Callable[[str], tuple[Decision, ...]]) -> Any:
    """An ASGI app: `GET /placements/<turn>` is a JSON list of decisions, or 404; all else is the common app's."""

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(PATH):
            await common(scope, receive, send)
            return
        found = of(scope["path"].removeprefix(PATH))
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200 if found else 404, "headers": headers})
        await send({"type": "http.response.body", "body": msgspec.json.encode(found)})

    return app
