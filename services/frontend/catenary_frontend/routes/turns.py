"""A turn over HTTP, for any API: read, open, and let the mesh's events write the answer."""

import secrets
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

import structlog
from catenary_protocols.apis.api import Api, Draft
from catenary_protocols.apis.session import session_of
from catenary_protocols.bus.codec import encode_json
from catenary_protocols.bus.messages import ModelCard, TurnRequest
from catenary_protocols.bus.tool_plane import TurnFact
from catenary_protocols.conversation import ImagePart, ToolMessage, UserMessage
from catenary_protocols.errors import CapacityError, CatenaryError, RequestError
from catenary_protocols.ids import TurnKey, new_turn_id
from catenary_runtime import semconv, telemetry
from msgspec import structs
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope
from starlette.types import Send as AnySend

from catenary_frontend.account import Account
from catenary_frontend.body import read_body
from catenary_frontend.choices import Choices
from catenary_frontend.edge import Edge, raw_send, request_id_of
from catenary_frontend.exchange import Exchange, Keep, Pace
from catenary_frontend.metrics import REQUESTS
from catenary_frontend.outlet import Outlet
from catenary_frontend.turn import OpenTurn

log = structlog.get_logger()
D = TypeVar("D", bound=Draft)
Endpoint = Callable[[Request], Awaitable[Response]]


class Memory(Protocol[D]):
    """What an API keeps from one turn to the next."""

    async def recall(self, draft: D, tenant: str) -> D:
        """The draft with what went before it; raises `CatenaryError`."""

    def keep(self, draft: D, tenant: str, turn_id: str) -> Keep | None:
        """Where the whole answer goes, if it is to be kept."""


@dataclass(frozen=True, slots=True)
class Asked(Generic[D]):
    """A request, and all that is known of it before its turn begins.

    Attributes:
        model: what its model is called in the mesh; the answer has the client's own name for it.
        body: as it was read.
    """

    draft: D
    model: str
    body: bytes
    tenant: str
    began: float


def turn_endpoint(api: Api[D], edge: Edge, memory: Memory[D] | None = None) -> Endpoint:
    """The endpoint of one API."""

    async def endpoint(request: Request) -> Response:
        try:
            tenant = edge.keys.tenant_of(request.headers)
            body = await read_body(request, edge.settings.max_body_bytes)
            began = time.perf_counter()
            draft = api.read(body)
            if memory is not None:
                draft = await memory.recall(draft, tenant)
            card = check(draft, edge)
            draft = _fitted(draft, card)
        except CatenaryError as error:
            REQUESTS.labels(api=api.name, model="", code=error.code).inc()
            log.info("turn.refused", request=request_id_of(request.scope), code=error.code, field=error.field)
            raise
        return TurnResponse(api, edge, request, Asked(draft, card.model, body, tenant, began), memory)

    return endpoint


def check(draft: Draft, edge: Edge) -> ModelCard:
    """The model's card; raises what keeps this request from being a turn: `RequestError` or `CapacityError`."""
    card = edge.catalog.find(draft.model)
    if edge.health.stopping:
        raise CapacityError("this frontend is shutting down", code="draining", retry_after=1)
    for place, message in enumerate(() if card.images else draft.conversation.messages):
        if isinstance(message, UserMessage | ToolMessage) and any(isinstance(p, ImagePart) for p in message.parts):
            raise RequestError(
                f"model {card.model!r} cannot see images", code="unsupported", field=f"messages[{place}].content"
            )
    return card


def _fitted(draft: D, card: ModelCard) -> D:
    """The draft without a limit that its model could not reach, from a client that knows nothing of the model."""
    limit = draft.sampling.max_tokens
    if not draft.clamp or limit is None or limit <= card.context:
        return draft
    return replace(draft, sampling=structs.replace(draft.sampling, max_tokens=None))


class TurnResponse(Response, Generic[D]):
    """Opens the turn when the server asks for the answer, and stays until the connection is over."""

    def __init__(
        self, api: Api[D], edge: Edge, request: Request, asked: Asked[D], memory: Memory[D] | None = None
    ) -> None:
        self.background = None
        self.status_code = 200
        self._api = api
        self._edge = edge
        self._request = request
        self._asked = asked
        self._memory = memory
        self._turns: list[OpenTurn] = []

    async def __call__(self, scope: Scope, receive: Receive, send: AnySend) -> None:  # noqa: ARG002  # see `raw_send`
        """Answer. Events are written from the bus callback; this coroutine only notices the end."""
        exchange = self._open(scope)
        try:
            while (await receive())["type"] != "http.disconnect":
                continue
        finally:
            exchange.left()

    def _open(self, scope: Scope) -> Exchange:
        edge, draft, headers = self._edge, self._asked.draft, self._request.headers
        tenant = self._asked.tenant
        now = time.time()
        turn_id = new_turn_id(int(now * 1000), secrets.token_bytes(10))
        session = session_of(draft, tenant, headers)
        request = self._request_of(turn_id, session, now)
        span = telemetry.start(
            "request",
            telemetry.extract(headers),
            _attributes(request, stream=draft.stream),
            kind=telemetry.SpanKind.SERVER,
        )
        account = Account(
            turn_id=turn_id,
            api=self._api.name,
            model=draft.model,
            session=session,
            stream=draft.stream,
            request_id=request_id_of(scope),
            began=self._asked.began,
            span=span,
            tell=self._tell,
        )
        exchange = Exchange(
            api=self._api,
            encoder=self._api.encoder(draft, turn_id, int(now)),
            outlet=Outlet(raw_send(scope), edge.spawn, edge.settings.slow_reader_bytes),
            account=account,
            pace=Pace(edge.settings.hold_s, edge.settings.heartbeat_s, edge.settings.resume_s),
            stop=self._stop,
            keep=self._memory.keep(draft, tenant, turn_id) if self._memory else None,
        )
        clients = Choices(exchange, draft.choices, self._stop)
        for choice, one in enumerate(_each(request)):
            client = exchange if draft.choices == 1 else clients.client_of(choice)
            self._turns.append(edge.turns.open(one, client, telemetry.headers_of(span)))
        return exchange

    def _request_of(self, turn_id: str, session: str, now: float) -> TurnRequest:
        edge, asked = self._edge, self._asked
        draft = asked.draft
        return TurnRequest(
            turn=TurnKey(turn_id=turn_id),
            frontend=edge.instance,
            frontend_incarnation=edge.presence.incarnation,
            model=asked.model,
            session=session,
            conversation=draft.conversation,
            sampling=draft.sampling,
            arrived_at=now,
            hints=draft.hints,
            tenant=asked.tenant,
            salt=asked.tenant,
            api=self._api.name,
            run_tools=draft.run_tools,
            answer_schema=draft.answer_schema,
            truncate=draft.truncate,
            choices=draft.choices,
        )

    def _stop(self, reason: str) -> None:
        for turn in self._turns:
            self._edge.turns.cancel(turn, reason)

    def _tell(self, fact: TurnFact) -> None:
        bus = self._edge.bus
        bus.publish(bus.subjects.to("observe", what=fact.what), encode_json(fact))


def _each(request: TurnRequest) -> Iterator[TurnRequest]:
    """A turn for each choice. Without a seed of the client's, each gets one of its own: they are to differ."""
    yield request
    sampling = request.sampling
    first = sampling.seed if sampling.seed is not None else secrets.randbits(31)
    for choice in range(1, request.choices):
        yield structs.replace(
            request,
            turn=TurnKey(turn_id=new_turn_id(int(request.arrived_at * 1000), secrets.token_bytes(10))),
            choice=choice,
            sampling=structs.replace(sampling, seed=(first + choice) % 2**31),
        )


def _attributes(request: TurnRequest, *, stream: bool) -> dict[str, str | int | float | bool]:
    sampling = request.sampling
    known: dict[str, str | int | float | bool | None] = {
        semconv.OPERATION: "chat",
        semconv.PROVIDER: "catenary",
        semconv.API: request.api,
        semconv.TURN_ID: request.turn.turn_id,
        semconv.CONVERSATION_ID: request.session,
        semconv.REQUEST_MODEL: request.model,
        semconv.REQUEST_STREAM: stream,
        semconv.REQUEST_MAX_TOKENS: sampling.max_tokens,
        semconv.REQUEST_TEMPERATURE: sampling.temperature,
        semconv.REQUEST_TOP_P: sampling.top_p,
        semconv.REQUEST_SEED: sampling.seed,
    }
    return {name: value for name, value in known.items() if value is not None}
